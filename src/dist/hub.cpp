#include "dist/hub.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "dist/control.h"

namespace tessera::dist {
namespace {

constexpr double kFarewell = 2;  // seconds in which hosts close their connections

double hub_clock() { return static_cast<double>(now_ns()) * 1e-9; }

}  // namespace

class Hub::Thread {
 public:
  explicit Thread(const HubOptions& options)
      : options_(options),
        door_(Socket::listen(options.port), options.key),
        members_(static_cast<size_t>(options.hosts)),
        port_(door_.port()) {
    thread_ = thread_without_signals([this] { work(); });
  }
  ~Thread() {
    is_deserted_ = true;
    thread_.join();
  }
  int port() const { return port_; }

 private:
  /// A host of the run.
  struct Member {
    std::optional<Channel> channel;  // none: it has not come, or is gone
    Hello hello;
    HostAddress address{};
    int first = 0;
    double heard = 0;
    bool is_gone = false, has_ended = false;
    int code = 0, next_procs = 0;
    std::vector<Whereabouts> ranks;  // as it said last
    std::vector<Whereabouts> told;   // what it was told of all ranks
  };

  void work() {
    const double began = hub_clock();
    double next_beat = 0;
    while (over_at_ == 0 || (is_anybody_here() && hub_clock() < over_at_ + kFarewell)) {
      std::vector<int> fds;
      door_.add_to(fds);
      for (const Member& m : members_)
        if (m.channel) fds.push_back(m.channel->fd());
      wait_readable(fds, kBeat / 2);
      door_.step([&](const Hello& hello) { check(hello); },
                 [&](Channel&& c, const Hello& h) { enter(std::move(c), h); });
      for (size_t i = 0; i < members_.size(); ++i) hear(i);
      if (generation_ < 0 && over_at_ == 0 && hub_clock() - began > options_.join_timeout) give_up();
      if (is_deserted_ && !is_anybody_here()) return;
      if (is_deserted_ && generation_ < 0 && over_at_ == 0) finish(1, "the first host has given up");
      if (hub_clock() < next_beat) continue;
      next_beat = hub_clock() + kBeat;
      beat();
    }
  }

  bool is_anybody_here() const {
    return std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.channel.has_value(); });
  }

  // ---- who comes ----

  void check(const Hello& hello) const {
    if (hello.hosts != options_.hosts)
      throw Error(fmt::format("the run has {} hosts, not {}", options_.hosts, hello.hosts));
    if (hello.host < 0 || hello.host >= options_.hosts)
      throw Error(fmt::format("there is no host {} among {}", hello.host, options_.hosts));
    const Member& m = members_[static_cast<size_t>(hello.host)];
    if (m.channel || m.is_gone || generation_ >= 0)
      throw Error(fmt::format("host {} has come already, from {}", hello.host, m.hello.name));
    if (hello.procs < 1 || hello.procs > kMaxRanks) throw Error(fmt::format("{} processes of a host", hello.procs));
  }

  void enter(Channel&& channel, const Hello& hello) {
    Member& m = members_[static_cast<size_t>(hello.host)];
    const HostAddress from = channel.socket().peer();
    if (!is_loopback(from) && from != channel.socket().local()) m.address = from;
    m.channel = std::move(channel);
    m.hello = hello;
    m.heard = hub_clock();
    if (std::all_of(members_.begin(), members_.end(), [](const Member& one) { return one.channel.has_value(); }))
      begin();
  }

  void give_up() {
    std::vector<size_t> missing;
    for (size_t i = 0; i < members_.size(); ++i)
      if (!members_[i].channel) missing.push_back(i);
    finish(1, fmt::format("host{} {} of {} did not come within {:g} s", missing.size() > 1 ? "s" : "",
                          fmt::join(missing, ", "), members_.size(), options_.join_timeout));
  }

  void begin() {
    int ranks = 0;
    for (Member& m : members_)
      if (!m.is_gone) m.first = std::exchange(ranks, ranks + m.hello.procs);
    if (ranks > kMaxRanks) return finish(1, fmt::format("{} ranks are more than {}", ranks, kMaxRanks));
    ++generation_;
    ranks_ = ranks;
    if (generation_ == 0) all_ranks_ = ranks;
    is_aborted_ = false;
    culprit_ = nullptr;
    for (Member& m : members_) {
      m.has_ended = false;
      m.code = 0;
      m.ranks.clear();
      m.told.assign(static_cast<size_t>(ranks), {});
      tell(m, Begin{static_cast<uint32_t>(generation_), ranks, m.first, m.hello.procs});
    }
  }

  // ---- what they say ----

  void hear(size_t i) {
    Member& m = members_[i];
    if (!m.channel) return;
    std::string why;
    try {
      const bool is_open = m.channel->receive();
      while (m.channel)
        if (const std::optional<Message> message = m.channel->next()) {
          m.heard = hub_clock();
          std::visit([&](const auto& said) { take(m, said); }, *message);
        } else break;
      if (!m.channel) return;
      if (!is_open) why = "has gone";
      else if (hub_clock() - m.heard > kSilence) why = fmt::format("does not answer for {:g} s", kSilence);
    } catch (const Error& e) {
      why = fmt::format("is lost ({})", e.what());
    }
    if (!why.empty()) lose(m, why);
  }

  void take(Member& m, const HostState& state) {
    if (static_cast<int>(state.generation) != generation_) return;
    m.ranks.clear();
    for (const RankState& r : state.ranks)
      if (r.rank >= m.first && r.rank < m.first + m.hello.procs)
        m.ranks.push_back({r.rank, m.address, r.port, r.phase, r.has_left, r.engine});
    if (&m != &members_[0]) tell(members_[0], state);  // its launcher looks after the waiting
    if (!state.aborted.empty()) abort(state.aborted, &m);
  }

  void take(Member& m, const Ended& ended) {
    if (static_cast<int>(ended.generation) != generation_) return;
    m.has_ended = true;
    m.code = ended.code;
    m.next_procs = std::clamp(ended.procs, 0, m.hello.procs);
    was_interrupted_ |= ended.was_interrupted != 0;
    decide();
  }

  void take(Member& m, const Interrupt& interrupt) {
    for (Member& other : members_)
      if (&other != &m) tell(other, interrupt);
  }

  void take(Member&, const AskStack& asked) {
    for (Member& m : members_)
      if (asked.rank >= m.first && asked.rank < m.first + m.hello.procs) tell(m, asked);
  }
  void take(Member&, const Stack& stack) { tell(members_[0], stack); }

  template <class T>
  void take(Member&, const T&) {
    throw Error("dist: a message that a host does not send");
  }

  void abort(const std::string& reason, Member* culprit) {
    if (std::exchange(is_aborted_, true)) return;
    culprit_ = culprit;
    for (Member& m : members_) tell(m, Abort{static_cast<uint32_t>(generation_), reason});
  }

  void lose(Member& m, const std::string& how) {
    m.channel.reset();
    if (generation_ < 0 || over_at_ > 0) return;  // it may come again, or nobody cares
    m.is_gone = true;
    if (m.has_ended && m.code == 0) return;  // it has done its part
    const int last = m.first + m.hello.procs - 1;
    abort(fmt::format("host {} ({}) {}, and with it rank{}", m.hello.host, m.hello.name, how,
                      m.hello.procs > 1 ? fmt::format("s {} to {}", m.first, last) : fmt::format(" {}", m.first)),
          &m);
    decide();
  }

  // ---- what follows ----

  // Once all that are there have ended: over, or anew.
  void decide() {
    if (generation_ < 0 || over_at_ > 0) return;
    int code = is_aborted_ && culprit_ ? culprit_->code : 0, procs = 0;
    for (const Member& m : members_) {
      if (m.channel && !m.has_ended) return;
      if (code == 0) code = m.code;
      if (m.channel) procs += m.next_procs;
    }
    if (is_aborted_ && code == 0) code = 1;
    if (code == 0 || code == kBadUsage || was_interrupted_ || restarts_ >= options_.max_restarts)
      return finish(code, "");
    const int least = options_.min_procs > 0 ? options_.min_procs : all_ranks_;
    if (procs < least)
      return finish(code, fmt::format("of {} processes {} are left, and it takes {}", all_ranks_, procs, least));
    ++restarts_;
    for (Member& m : members_) m.hello.procs = m.next_procs;
    begin();
  }

  void finish(int code, const std::string& why) {
    over_at_ = hub_clock();
    for (Member& m : members_) tell(m, End{code, why});
  }

  // What has changed since each was told; an empty table says that the hub lives.
  void beat() {
    for (Member& m : members_) {
      Table table{static_cast<uint32_t>(std::max(generation_, 0)), {}};
      for (const Member& other : members_)
        for (const Whereabouts& w : other.ranks)
          if (Whereabouts& told = m.told[static_cast<size_t>(w.rank)]; &other != &m && told != w)
            table.ranks.push_back(told = w);
      tell(m, table);
    }
  }

  void tell(Member& m, const Message& message) {
    if (!m.channel) return;
    try {
      m.channel->send(message);
    } catch (const Error&) {
      // It is found to be gone when it is heard next.
    }
  }

  const HubOptions options_;
  Door door_;
  std::vector<Member> members_;
  int port_;
  int generation_ = -1, ranks_ = 0, all_ranks_ = 0, restarts_ = 0;
  bool is_aborted_ = false, was_interrupted_ = false;
  Member* culprit_ = nullptr;
  double over_at_ = 0;
  std::atomic<bool> is_deserted_{false};  // the launcher is done
  std::thread thread_;
};

Hub::Hub(const HubOptions& options) : thread_(std::make_unique<Thread>(options)) {}
Hub::~Hub() = default;
int Hub::port() const { return thread_->port(); }

}  // namespace tessera::dist
