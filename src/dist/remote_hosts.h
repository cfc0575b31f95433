// Launchers on other hosts, begun through ssh.
#pragma once
#include "dist/launcher.h"
#include "dist/process.h"

namespace tessera::dist {

class RemoteHosts {
 public:
  /// All of options.hosts but the first, which meet at that place.
  RemoteHosts(const LaunchOptions& options, const std::string& rendezvous, const std::string& secret);
  ~RemoteHosts();
  RemoteHosts(const RemoteHosts&) = delete;
  void add_to(std::vector<int>& fds) const;
  /// Passes on what their ranks say; what the launchers say themselves, the first one says, too, once it runs.
  void read(bool runs);
  /// Throws Error where one has ended.
  void check() const;
  /// Until all have ended, for some seconds.
  void wait();

 private:
  bool any_living() const;
  const LaunchOptions& options_;
  std::vector<Process> processes_;
};

/// What a shell reads as that one word.
std::string quoted(const std::string& word);

}  // namespace tessera::dist
