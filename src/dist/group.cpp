// Worlds and groups: who belongs together, and who says so.
#include "dist/group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "dist/collective_ops.h"
#include "dist/environment.h"
#include "dist/hub.h"
#include "dist/mpi.h"
#include "dist/neighbours.h"
#include "dist/tcp.h"

namespace tessera::dist {
namespace {

std::shared_ptr<Group::State> alone(const WorldOptions& options) {
  if (options.even_alone) return make_world(create_run(1), 0, options);
  collective_ops();
  auto state = std::make_shared<Group::State>();
  state->members = {0};
  return state;
}

/// This process's line to the other ranks where it has no launcher of ours, and the hub where it is rank 0. The line is
/// cut first.
struct OwnLine {
  std::unique_ptr<Hub> hub;
  std::unique_ptr<Uplink> uplink;
  std::shared_ptr<Control> control;
  ~OwnLine() {
    if (!control) return;
    control->place(control->hosts().first).has_left = 1;
    uplink->ended(0, false, 1);
  }
};

std::shared_ptr<Group::State> join_others(const Launched& launched, const WorldOptions& options) {
  constexpr double kJoin = 300;  // seconds
  const Key key = key_of(launched.secret);
  static const Mpi::AtExit mpi;
  static OwnLine line;
  if (launched.rank == 0)
    line.hub = std::make_unique<Hub>(
        HubOptions{.port = launched.rendezvous.port, .key = key, .hosts = launched.size, .join_timeout = kJoin});
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  Hello hello;
  hello.host = launched.rank, hello.hosts = launched.size, hello.procs = 1;
  hello.name = name;
  line.uplink = std::make_unique<Uplink>(launched.rendezvous, key, hello, kJoin);
  const std::optional<Begin> begin = line.uplink->wait_begin(2 * kJoin);
  if (!begin) throw Error("dist: " + line.uplink->end().value_or(End{1, "nothing begins"}).why);
  auto control = create_part(*begin, line.uplink->hub_address(), key);
  line.control = control;
  line.uplink->attach(control, begin->generation);
  show_stack(control->stack(launched.rank));
  auto state = make_world(std::move(control), launched.rank, options);
  state->local_rank = launched.local_rank;
  return state;
}

std::shared_ptr<Group::State> join_launcher(const WorldOptions& options) {
  auto control = Control::join(number_of_variable(kMemoryVariable, 0, 1 << 20));
  const int rank = number_of_variable(kRankVariable, 0, control->ranks() - 1);
  if (number_of_variable(kSizeVariable, 1, kMaxRanks) != control->ranks())
    throw Error(
        fmt::format("dist: the launcher began {} ranks, and {} says otherwise", control->ranks(), kSizeVariable));
  show_stack(control->stack(rank));
  return make_world(std::move(control), rank, options);
}

std::shared_ptr<Group::State> join_world(const WorldOptions& options) {
  static std::mutex mutex;
  static std::shared_ptr<Group::State> joined;  // its memory is that of one member
  const std::lock_guard lock(mutex);
  if (joined) return joined;
  if (std::getenv(kMemoryVariable)) return joined = join_launcher(options);
  if (const std::optional<Launched> launched = launched_by_others()) return joined = join_others(*launched, options);
  return alone(options);
}

// Of the first rank of a group: where its ranks meet, which it tells the others.
uint64_t place_of_engine(const Group::State& state) {
  return state.share_memory() ? Neighbours::allocate(*state.control, state.size()) : state.mesh->new_group();
}

}  // namespace

std::shared_ptr<Control> create_run(int ranks) {
  Hosts hosts;
  hosts.key = key_of(new_secret());
  hosts.hub = kThisHost;
  std::shared_ptr<Control> control = Control::create(ranks, hosts);
  control->set_world(Neighbours::allocate(*control, ranks));
  return control;
}

std::shared_ptr<Control> create_part(const Begin& begin, const HostAddress& hub, const Key& key) {
  std::shared_ptr<Control> control = Control::create(begin.ranks, {begin.first, begin.procs, hub, key});
  if (begin.procs == begin.ranks) control->set_world(Neighbours::allocate(*control, begin.ranks));
  return control;
}

std::shared_ptr<Group::State> make_world(std::shared_ptr<Control> control, int rank, const WorldOptions& options) {
  collective_ops();
  auto state = std::make_shared<Group::State>();
  for (int r = 0; r < control->ranks(); ++r) state->members.push_back(r);
  state->rank = rank;
  state->local_rank = rank - control->hosts().first;
  const char* const asked = std::getenv("TESSERA_ENGINE");
  state->asked_engine = options.engine.empty() && asked ? asked : options.engine;
  const char* const asked_gpu = std::getenv("TESSERA_GPU_ENGINE");
  state->asked_gpu_engine = asked_gpu ? asked_gpu : "";
  control->timeout = options.timeout > 0 ? options.timeout : timeout_of_variable();
  control->place(rank).pid = static_cast<int32_t>(getpid());
  state->control = std::move(control);
  if (state->size() == 1 && !options.even_alone) return state;
  const bool shares = state->share_memory();
  state->control->place(rank).engine = state->engine_number();
  if (!shares) state->mesh = std::make_shared<Mesh>(state->control, rank);
  state->make_engine(shares ? state->control->world() : 0);
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
  state->mesh = state_->mesh;
  state->asked_engine = state_->asked_engine;
  state->asked_gpu_engine = state_->asked_gpu_engine;
  const bool is_first = first == rank() && state->size() > 1;
  const std::vector<int64_t> places = of_all(is_first ? static_cast<int64_t>(place_of_engine(*state)) : 0);
  if (state->size() > 1) state->make_engine(static_cast<uint64_t>(places[first]));
  return Group(std::move(state));
}

World::World(const WorldOptions& options) : Group(join_world(options)) {}
int World::local_rank() const { return state_->local_rank; }

InPhase::InPhase(const Group& group, Phase phase) : phase_(nullptr) {
  const Group::State& state = group.state();
  if (!state.control) return;
  PhaseClock& clock = state.control->place(state.members[static_cast<size_t>(state.rank)]).phase;
  phase_ = &clock.now;
  before_ = clock.enter(static_cast<uint8_t>(phase));
}
InPhase::~InPhase() {
  static_assert(std::is_standard_layout_v<PhaseClock>);
  if (phase_) reinterpret_cast<PhaseClock*>(phase_)->enter(before_);
}

double milliseconds_waited(const Group& group) {
  const Group::State& state = group.state();
  if (!state.control) return 0;
  const Place& place = state.control->place(state.members[static_cast<size_t>(state.rank)]);
  return static_cast<double>(place.waited.load(std::memory_order_relaxed)) * 1e-6;
}

void set_step(const Group& group, int64_t step) {
  const Group::State& state = group.state();
  if (state.control) state.control->place(state.members[static_cast<size_t>(state.rank)]).step = step;
}

void run_ranks(int size, const std::function<void(const World&)>& body, const WorldOptions& options) {
  const std::shared_ptr<Control> control = create_run(size);
  std::mutex mutex;
  std::exception_ptr failure, aborted;
  const auto rank = [&](int r) {
    try {
      body(World(make_world(control, r, options)));
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
