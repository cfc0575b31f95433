// Worlds and groups: who belongs together, and who says so.
#include "dist/group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "dist/neighbours.h"

namespace tessera::dist {
namespace {

int number(const char* variable, int least, int most) {
  const char* const text = std::getenv(variable);
  if (!text) throw Error(fmt::format("dist: {} is not set", variable));
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto [last, code] = std::from_chars(text, end, value);
  if (code != std::errc() || last != end || value < least || value > most)
    throw Error(fmt::format("dist: {}={} is not a number from {} to {}", variable, text, least, most));
  return value;
}

std::shared_ptr<Group::State> alone() {
  auto state = std::make_shared<Group::State>();
  state->members = {0};
  return state;
}

std::shared_ptr<Group::State> join_world(const WorldOptions& options) {
  if (!std::getenv(kMemoryVariable)) {
    // Processes that do not know each other would each train all of it.
    for (const char* variable : {kSizeVariable, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
      if (const char* size = std::getenv(variable); size && std::string_view(size) != "1")
        throw Error(fmt::format(
            "dist: {}={}, of a launcher that is not supported: start the program by `tessera launch`", variable, size));
    return alone();
  }
  static std::mutex mutex;
  static std::shared_ptr<Group::State> joined;  // its memory is that of one member
  const std::lock_guard lock(mutex);
  if (joined) return joined;
  auto control = Control::join(number(kMemoryVariable, 0, 1 << 20));
  control->timeout = options.timeout;
  const int rank = number(kRankVariable, 0, control->ranks() - 1);
  if (number(kSizeVariable, 1, kMaxRanks) != control->ranks())
    throw Error(
        fmt::format("dist: the launcher began {} ranks, and {} says otherwise", control->ranks(), kSizeVariable));
  return joined = make_world(std::move(control), rank);
}

}  // namespace

std::shared_ptr<Control> create_run(int ranks) {
  std::shared_ptr<Control> control = Control::create(ranks);
  if (ranks > 1) control->set_world(Neighbours::allocate(*control, ranks));
  return control;
}

std::shared_ptr<Group::State> make_world(std::shared_ptr<Control> control, int rank) {
  auto state = std::make_shared<Group::State>();
  for (int r = 0; r < control->ranks(); ++r) state->members.push_back(r);
  state->rank = rank;
  control->place(rank).pid = static_cast<int32_t>(getpid());
  if (state->size() > 1) state->engine = std::make_unique<Neighbours>(control, control->world(), state->members, rank);
  state->control = std::move(control);
  return state;
}

struct Group::State::Worker {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool ends = false;
  std::thread thread;

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return ends || !tasks.empty(); });
      if (tasks.empty()) return;
      std::function<void()> next = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      next();
      next = {};  // may end the group
      lock.lock();
    }
  }
};

Group::State::~State() {
  if (!worker_) return;
  {
    const std::lock_guard lock(worker_->mutex);
    worker_->ends = true;
  }
  worker_->changed.notify_all();
  if (worker_->thread.get_id() == std::this_thread::get_id()) worker_->thread.detach();
  else worker_->thread.join();
}

void Group::State::later(std::function<void()> task) {
  if (!worker_) {
    worker_ = std::make_shared<Worker>();
    worker_->thread = std::thread([worker = worker_] { worker->work(); });
  }
  {
    const std::lock_guard lock(worker_->mutex);
    worker_->tasks.push_back(std::move(task));
  }
  worker_->changed.notify_all();
}

int Group::rank() const { return state_->rank; }
int Group::size() const { return state_->size(); }
std::string_view Group::engine() const { return state_->engine ? state_->engine->name() : "none"; }

Group Group::split(int color) const {
  if (!state_->engine) return *this;
  const auto of_all = [&](int64_t mine) {
    return all_gather(tensor(std::vector<int64_t>{mine}, {1}), *this).to_vector<int64_t>();
  };
  const std::vector<int64_t> colors = of_all(color);
  auto state = std::make_shared<State>();
  int first = -1;
  for (int r = 0; r < size(); ++r) {
    if (colors[r] != color) continue;
    if (first < 0) first = r;
    if (r == rank()) state->rank = state->size();
    state->members.push_back(state_->members[r]);
  }
  state->control = state_->control;
  const bool is_first = first == rank() && state->size() > 1;
  const std::vector<int64_t> places =
      of_all(is_first ? static_cast<int64_t>(Neighbours::allocate(*state->control, state->size())) : 0);
  if (state->size() > 1)
    state->engine =
        std::make_unique<Neighbours>(state->control, static_cast<uint64_t>(places[first]), state->members, state->rank);
  return Group(std::move(state));
}

World::World(const WorldOptions& options) : Group(join_world(options)) {}

InPhase::InPhase(const Group& group, Phase phase) : phase_(nullptr) {
  const Group::State& state = group.state();
  if (!state.control) return;
  phase_ = &state.control->place(state.members[static_cast<size_t>(state.rank)]).phase;
  before_ = phase_->exchange(static_cast<uint8_t>(phase), std::memory_order_relaxed);
}
InPhase::~InPhase() {
  if (phase_) phase_->store(before_, std::memory_order_relaxed);
}

void set_step(const Group& group, int64_t step) {
  const Group::State& state = group.state();
  if (state.control) state.control->place(state.members[static_cast<size_t>(state.rank)]).step = step;
}

void run_ranks(int size, const std::function<void(const World&)>& body, const WorldOptions& options) {
  const std::shared_ptr<Control> control = create_run(size);
  control->timeout = options.timeout;
  std::mutex mutex;
  std::exception_ptr failure, aborted;
  const auto rank = [&](int r) {
    try {
      body(World(make_world(control, r)));
    } catch (const Aborted&) {
      const std::lock_guard lock(mutex);
      aborted = std::current_exception();
    } catch (const std::exception& e) {
      control->abort(fmt::format("rank {}: {}", r, e.what()));
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
    control->place(r).has_left = 1;
  };
  std::vector<std::thread> threads;
  for (int r = 1; r < size; ++r) threads.emplace_back(rank, r);
  rank(0);
  for (std::thread& t : threads) t.join();
  if (failure || aborted) std::rethrow_exception(failure ? failure : aborted);
}

}  // namespace tessera::dist
