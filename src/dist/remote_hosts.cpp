#include "dist/remote_hosts.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "dist/environment.h"
#include "dist/socket.h"
#include "tessera/error.h"

namespace tessera::dist {
namespace {

constexpr int kWaits = 50;         // for hosts whose run is over,
constexpr double kEachWait = 0.1;  // so many seconds

// Variables of ours that ssh would leave behind, such as the engine's. A launcher gives its ranks some of its own.
std::vector<std::string> own_variables() {
  std::vector<std::string> out;
  for (const std::string& v : environment())
    if (v.starts_with("TESSERA_") && !v.starts_with(fmt::format("{}=", kSecretVariable)) &&
        !v.starts_with(fmt::format("{}=", kMemoryVariable)))
      out.push_back(v);
  return out;
}

// The same launcher in the same folder, with the secret from its input: a command line is everybody's to read.
std::string remote_command(const LaunchOptions& options, size_t host, const std::string& rendezvous) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string out = fmt::format("read -r {0} && export {0} && cd {1} && exec", kSecretVariable,
                                quoted(std::filesystem::current_path().string()));
  std::vector<std::string> words{"env"};
  for (const std::string& v : own_variables()) words.push_back(v);
  words.insert(words.end(),
               {self, "launch", "--nodes", std::to_string(options.hosts.size()), "--node-rank", std::to_string(host),
                "--rendezvous", rendezvous, "--procs", std::to_string(options.hosts[host].slots), "--threads",
                std::to_string(options.threads), "--grace", fmt::format("{}", options.grace), "--join-timeout",
                fmt::format("{}", options.join_timeout)});
  if (options.pins) words.push_back("--pin");
  if (options.ordered) words.insert(words.end(), {"--reduction", "ordered"});
  if (options.timeout > 0) words.insert(words.end(), {"--timeout", fmt::format("{}", options.timeout)});
  words.push_back("--");
  words.insert(words.end(), options.command.begin(), options.command.end());
  for (const std::string& word : words) out += " " + quoted(word);
  return out;
}

}  // namespace

std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

RemoteHosts::RemoteHosts(const LaunchOptions& options, const std::string& rendezvous, const std::string& secret)
    : options_(options), processes_(options.hosts.empty() ? 0 : options.hosts.size() - 1) {
  for (size_t i = 0; i < processes_.size(); ++i)
    processes_[i].begin(
        {"ssh", "-o", "BatchMode=yes", "--", options.hosts[i + 1].name, remote_command(options, i + 1, rendezvous)},
        environment(), secret + "\n");
}

RemoteHosts::~RemoteHosts() {
  for (Process& p : processes_) {
    if (p.pid > 0 && !p.status) kill(-p.pid, SIGKILL), waitpid(p.pid, nullptr, 0);
    p.out.close(), p.err.close();
  }
}

void RemoteHosts::add_to(std::vector<int>& fds) const {
  for (const Process& p : processes_)
    for (const int fd : {p.out.fd, p.err.fd})
      if (fd >= 0) fds.push_back(fd);
}

void RemoteHosts::read(bool runs) {
  for (size_t i = 0; i < processes_.size(); ++i) {
    Process& p = processes_[i];
    const std::string& name = options_.hosts[i + 1].name;
    if (p.out.fd >= 0) p.out.read_some([&](const std::string& line) { options_.print(line, false); });
    if (p.err.fd >= 0)
      p.err.read_some([&](const std::string& line) {
        const bool is_rank = line.starts_with("[");
        if (is_rank) options_.print(line, true);
        else if (!runs) options_.print(fmt::format("note: {} says: {}", name, line), true);
      });
    p.reap();
  }
}

void RemoteHosts::check() const {
  for (size_t i = 0; i < processes_.size(); ++i)
    if (const auto& status = processes_[i].status)
      throw Error(fmt::format("launch: ssh to host {} has ended with code {}", options_.hosts[i + 1].name,
                              WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status)));
}

bool RemoteHosts::any_living() const {
  return std::any_of(processes_.begin(), processes_.end(), [](const Process& p) { return !p.status || p.is_open(); });
}

void RemoteHosts::wait() {
  for (int i = 0; i < kWaits && any_living(); ++i) {
    std::vector<int> fds;
    add_to(fds);
    wait_readable(fds, kEachWait);
    read(true);
  }
}

}  // namespace tessera::dist
