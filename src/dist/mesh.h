// Streams between ranks that share no memory.
#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>

#include "dist/control.h"
#include "dist/socket.h"

namespace tessera::dist {

/// What a stream is for, of a group's two ranks.
enum class Purpose : uint8_t { Collectives, Messages };

/// A rank's streams to others: opened at first use, those from others taken by a thread.
class Mesh {
 public:
  /// As `rank` of the run, which says in its Place where it takes streams.
  Mesh(std::shared_ptr<Control> control, int rank);
  ~Mesh();

  /// One to that rank of the run, which takes it. Throws Aborted, also where it cannot be reached.
  Socket open(int to, uint64_t group, Purpose purpose);
  /// The one that rank has opened or opens. Throws Aborted.
  Socket take(int from, uint64_t group, Purpose purpose);
  /// A number that no other group of the run has.
  uint64_t new_group() { return static_cast<uint64_t>(rank_ + 1) << 32 | ++groups_; }

 private:
  using Name = std::tuple<uint64_t, int, Purpose>;  // group, from, purpose
  void work();
  [[noreturn]] void not_reached(int rank, const Error& e) const;

  std::shared_ptr<Control> control_;
  int rank_;
  std::atomic<uint32_t> groups_{0};
  Door door_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::map<Name, Socket> waiting_;
  Bell work_;
  std::atomic<bool> is_leaving_{false};
  std::thread thread_;
};

}  // namespace tessera::dist
