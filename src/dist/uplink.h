// A host's line to the hub: a launcher's, or that of a rank which another launcher began.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/control.h"
#include "dist/socket.h"
#include "tessera/interrupt.h"

namespace tessera::dist {

/// Where the hub is.
struct Rendezvous {
  std::string host;
  int port = 0;
};
/// Of "HOST:PORT", also "[::1]:80". Throws Error where it is none.
Rendezvous parse_rendezvous(const std::string& text);

/// Where a rank of another host is: a line for each call.
struct RankStack {
  int rank = 0;
  std::vector<std::string> lines;
};

class Uplink {
 public:
  /// Comes to the hub as the host that `hello` describes, and tries again until `seconds` are over. Throws Error, and
  /// what `look` throws, which is called between attempts.
  Uplink(const Rendezvous& hub, const Key& key, const Hello& hello, double seconds,
         const std::function<void()>& look = check_interrupt);
  /// Says that all is done here, unless it was said.
  ~Uplink();

  /// Waits until the ranks begin, for the first time or anew, the run is over, or so many seconds.
  std::optional<Begin> wait_begin(double seconds);
  /// How the run has ended, if it has.
  std::optional<End> end() const;
  /// The run that goes on now: what the hub says gets into it, and the other way round.
  void attach(std::shared_ptr<Control> control, uint32_t generation);
  /// All ranks of this host have ended, and would begin anew as `procs`.
  void ended(int code, bool was_interrupted, int procs);
  /// Asks the host of that rank where it is; the answer comes as a stack.
  void ask_for_stack(int rank);
  void answer(int rank, const std::vector<std::string>& stack);
  /// The next rank of this host that another one asks for; -1: none.
  int next_asked();
  /// The next answer; none: nothing has come.
  std::optional<RankStack> next_stack();
  /// A signal for all other hosts.
  void interrupt(int signal);
  /// One that came from another host; 0: none.
  int next_interrupt();
  /// Can be read when something has come.
  int fd() const;
  HostAddress hub_address() const;

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tessera::dist
