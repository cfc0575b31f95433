#include "dist/uplink.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <sstream>
#include <thread>

#include "dist/hub.h"
#include "dist/waiting_ranks.h"

namespace tessera::dist {
namespace {

constexpr double kAgain = 0.1;  // seconds between attempts to come to the hub

double link_clock() { return static_cast<double>(now_ns()) * 1e-9; }

// Whether it may be otherwise in a moment.
bool may_change(const std::string& why) {
  return why.find(" refuses: ") == std::string::npos && why.find("there is no host ") == std::string::npos;
}

Channel come_to_hub(const Rendezvous& hub, const Key& key, const Hello& hello, double seconds,
                    const std::function<void()>& look) {
  const double until = link_clock() + seconds;
  for (;;) {
    std::string why = fmt::format("dist: there is no host {}", hub.host);
    try {
      for (const HostAddress& address : resolve(hub.host)) {
        try {
          return knock(address, hub.port, key, hello, std::max(1.0, std::min(5.0, until - link_clock())));
        } catch (const Error& e) {
          why = e.what();
          if (!may_change(why)) throw;
        }
      }
    } catch (const Error& e) {
      why = e.what();
      if (!may_change(why)) throw;
    }
    if (link_clock() + kAgain > until) throw Error(fmt::format("{} (for {:g} s)", why, seconds));
    std::this_thread::sleep_for(std::chrono::duration<double>(kAgain));
    look();
  }
}

}  // namespace

Rendezvous parse_rendezvous(const std::string& text) {
  const size_t colon = text.rfind(':');
  Rendezvous out;
  if (colon != std::string::npos) {
    out.host = text.substr(0, colon);
    const char* const end = text.data() + text.size();
    const auto [last, code] = std::from_chars(text.data() + colon + 1, end, out.port);
    if (code != std::errc() || last != end) out.port = -1;
  }
  if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']')
    out.host = out.host.substr(1, out.host.size() - 2);
  if (out.host.empty() || out.port < 1 || out.port > 65535)
    throw Error(fmt::format("dist: \"{}\" is no HOST:PORT", text));
  return out;
}

class Uplink::Thread {
 public:
  Thread(const Rendezvous& hub, const Key& key, const Hello& hello, double seconds, const std::function<void()>& look)
      : hub_(hub), channel_(come_to_hub(hub, key, hello, seconds, look)), heard_(link_clock()) {
    thread_ = thread_without_signals([this] { work(); });
  }
  ~Thread() {
    is_leaving_ = true;
    work_.ring();
    thread_.join();
  }

  std::optional<Begin> wait_begin(double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return begin_ || end_; });
    return std::exchange(begin_, {});
  }
  std::optional<End> end() {
    const std::lock_guard lock(mutex_);
    return end_;
  }
  void attach(std::shared_ptr<Control> control, uint32_t generation) {
    const std::lock_guard lock(mutex_);
    control_ = std::move(control);
    generation_ = generation;
    asked_.clear(), stacks_.clear();
    is_abort_said_ = false;
  }
  void say(const Message& message) {
    const std::lock_guard lock(mutex_);
    to_say_.push_back(message);
    work_.ring();
  }
  // The last word on the ranks of this host goes before it.
  void say_ended(const Ended& ended) {
    const std::lock_guard lock(mutex_);
    if (control_) to_say_.push_back(state());
    to_say_.push_back(ended);
    control_ = nullptr;
    work_.ring();
  }
  uint32_t generation() const { return generation_; }
  int next_interrupt() {
    const std::lock_guard lock(mutex_);
    news_.hush();
    if (interrupts_.empty()) return 0;
    const int out = interrupts_.front();
    interrupts_.pop_front();
    return out;
  }
  int next_asked() {
    const std::lock_guard lock(mutex_);
    if (asked_.empty()) return -1;
    const int out = asked_.front();
    asked_.pop_front();
    return out;
  }
  std::optional<RankStack> next_stack() {
    const std::lock_guard lock(mutex_);
    if (stacks_.empty()) return {};
    RankStack out = std::move(stacks_.front());
    stacks_.pop_front();
    return out;
  }
  int fd() const { return news_.fd(); }
  HostAddress hub_address() const { return channel_.socket().peer(); }

 private:
  void work() {
    std::string why;
    double next_beat = 0;
    while (why.empty()) {
      wait_readable({channel_.fd(), work_.fd()}, kBeat / 2);
      work_.hush();
      try {
        const bool is_open = channel_.receive();
        while (const std::optional<Message> message = channel_.next()) {
          heard_ = link_clock();
          std::visit([&](const auto& said) { take(said); }, *message);
        }
        if (is_over()) return;
        if (!is_open) why = "has gone";
        else if (link_clock() - heard_ > kSilence) why = fmt::format("does not answer for {:g} s", kSilence);
        const bool is_abort = has_new_abort();
        for (const Message& message : taken()) channel_.send(message);
        if (is_abort || link_clock() >= next_beat) {
          next_beat = link_clock() + kBeat;
          channel_.send(locked_state());
        }
        if (is_leaving_) return;
      } catch (const Error& e) {
        why = fmt::format("is lost ({})", e.what());
      }
    }
    const std::lock_guard lock(mutex_);
    why = fmt::format("the first host, {} port {}, {}", hub_.host, hub_.port, why);
    if (control_) control_->abort(why);
    end_ = End{1, control_ ? "" : why};
    tell();
  }

  bool is_over() {
    const std::lock_guard lock(mutex_);
    return end_.has_value();
  }
  std::deque<Message> taken() {
    const std::lock_guard lock(mutex_);
    return std::exchange(to_say_, {});
  }
  // Is called with the lock held.
  void tell() {
    changed_.notify_all();
    news_.ring();
  }

  // ---- what the hub says ----

  void take(const Begin& begin) {
    const std::lock_guard lock(mutex_);
    if (begin.ranks < 1 || begin.ranks > kMaxRanks || begin.first < 0 || begin.procs < 1 ||
        begin.first > begin.ranks - begin.procs)
      throw Error("dist: the hub has lost count");
    begin_ = begin;
    tell();
  }
  void take(const End& end) {
    const std::lock_guard lock(mutex_);
    end_ = end;
    tell();
  }
  void take(const Abort& abort) {
    const std::lock_guard lock(mutex_);
    if (control_ && abort.generation == generation_) control_->abort(abort.reason), is_abort_said_ = true;
    tell();
  }
  void take(const Interrupt& interrupt) {
    const std::lock_guard lock(mutex_);
    interrupts_.push_back(interrupt.signal);
    tell();
  }
  bool is_of_another(int rank) const { return rank >= 0 && rank < control_->ranks() && !control_->is_local(rank); }
  void take(const Table& table) {
    const std::lock_guard lock(mutex_);
    if (!control_ || table.generation != generation_) return;
    for (const Whereabouts& w : table.ranks) {
      if (!is_of_another(w.rank)) continue;
      Place& place = control_->place(w.rank);
      if (place.port == 0) place.address = w.address == HostAddress{} ? hub_address() : w.address;
      place.port.store(w.port, std::memory_order_release);
      if (place.phase.now != w.phase) place.phase.enter(w.phase % kPhases);
      place.has_left = w.has_left;
      place.engine = w.engine;
    }
  }
  // Of another host, for the launcher that names who is waited for.
  void take(const HostState& state) {
    const std::lock_guard lock(mutex_);
    if (!control_ || state.generation != generation_) return;
    for (const RankState& r : state.ranks) {
      if (!is_of_another(r.rank)) continue;
      Place& place = control_->place(r.rank);
      place.since.store(now_ns() - r.waited_ns, std::memory_order_relaxed);
      place.waits_for.store(r.waits_for, std::memory_order_relaxed);
      place.calls.store(r.calls, std::memory_order_relaxed);
      place.kind.store(r.kind, std::memory_order_relaxed);
      place.step.store(r.step, std::memory_order_relaxed);
      place.process.store(r.process, std::memory_order_relaxed);
    }
    for (const Charge& c : state.charges)
      if (c.rank >= 0 && c.rank < control_->ranks() && c.ns > 0) control_->charge(c.rank, c.phase, c.ns);
  }
  void take(const AskStack& asked) {
    const std::lock_guard lock(mutex_);
    if (!control_ || asked.generation != generation_ || asked.rank < 0 || !control_->is_local(asked.rank)) return;
    asked_.push_back(asked.rank);
    tell();
  }
  void take(const Stack& stack) {
    const std::lock_guard lock(mutex_);
    if (!control_ || stack.generation != generation_ || !is_of_another(stack.rank)) return;
    std::istringstream lines(stack.lines);
    RankStack& out = stacks_.emplace_back(RankStack{stack.rank, {}});
    for (std::string line; std::getline(lines, line);) out.lines.push_back(line);
    tell();
  }
  template <class T>
  void take(const T&) {
    throw Error("dist: a message that a hub does not send");
  }

  // ---- what this host says ----

  bool has_new_abort() {
    const std::lock_guard lock(mutex_);
    return control_ && !is_abort_said_ && !control_->abort_reason().empty();
  }
  HostState locked_state() {
    const std::lock_guard lock(mutex_);
    return state();
  }
  HostState state() {
    HostState out{generation_, "", {}, {}};
    if (!control_) return out;
    out.aborted = control_->abort_reason();
    is_abort_said_ |= !out.aborted.empty();
    const Hosts& hosts = control_->hosts();
    for (int r = hosts.first; r < hosts.first + hosts.count; ++r) {
      const Place& place = control_->place(r);
      const int pid = place.pid.load();
      out.ranks.push_back({.rank = r,
                           .waits_for = place.waits_for.load(std::memory_order_relaxed),
                           .waited_ns = now_ns() - place.since.load(std::memory_order_relaxed),
                           .step = place.step.load(std::memory_order_relaxed),
                           .calls = place.calls.load(std::memory_order_relaxed),
                           .port = place.port.load(),
                           .kind = place.kind.load(std::memory_order_relaxed),
                           .phase = place.phase.now.load(std::memory_order_relaxed),
                           .has_left = place.has_left.load(),
                           .process = static_cast<uint8_t>(pid > 0 ? letter_of_process(pid) : 'X'),
                           .engine = place.engine.load()});
    }
    if (hosts.first > 0)  // the first host keeps the account
      for (int r = 0; r < control_->ranks(); ++r)
        for (uint8_t phase = 0; phase < kPhases; ++phase)
          if (const int64_t ns = control_->place(r).kept_waiting[phase].exchange(0, std::memory_order_relaxed))
            out.charges.push_back({r, phase, ns});
    return out;
  }

  const Rendezvous hub_;
  Channel channel_;
  double heard_;
  Bell work_, news_;  // for the thread, and from it
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Control> control_;
  std::atomic<uint32_t> generation_{0};
  bool is_abort_said_ = false;
  std::deque<Message> to_say_;
  std::deque<int> interrupts_, asked_;
  std::deque<RankStack> stacks_;
  std::optional<Begin> begin_;
  std::optional<End> end_;
  std::atomic<bool> is_leaving_{false};
  std::thread thread_;
};

Uplink::Uplink(const Rendezvous& hub, const Key& key, const Hello& hello, double seconds,
               const std::function<void()>& look)
    : thread_(std::make_unique<Thread>(hub, key, hello, seconds, look)) {}
Uplink::~Uplink() = default;
std::optional<Begin> Uplink::wait_begin(double seconds) { return thread_->wait_begin(seconds); }
std::optional<End> Uplink::end() const { return thread_->end(); }
void Uplink::attach(std::shared_ptr<Control> control, uint32_t generation) {
  thread_->attach(std::move(control), generation);
}
void Uplink::ended(int code, bool was_interrupted, int procs) {
  thread_->say_ended({thread_->generation(), code, procs, static_cast<uint8_t>(was_interrupted)});
}
void Uplink::ask_for_stack(int rank) { thread_->say(AskStack{thread_->generation(), rank}); }
void Uplink::answer(int rank, const std::vector<std::string>& stack) {
  thread_->say(Stack{thread_->generation(), rank, fmt::format("{}", fmt::join(stack, "\n"))});
}
int Uplink::next_asked() { return thread_->next_asked(); }
std::optional<RankStack> Uplink::next_stack() { return thread_->next_stack(); }
void Uplink::interrupt(int signal) { thread_->say(Interrupt{signal}); }
int Uplink::next_interrupt() { return thread_->next_interrupt(); }
int Uplink::fd() const { return thread_->fd(); }
HostAddress Uplink::hub_address() const { return thread_->hub_address(); }

}  // namespace tessera::dist
