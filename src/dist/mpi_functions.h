// What libtessera_mpi.so offers: the few functions of MPI that ranks exchange bytes with. No header of MPI is needed.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace tessera::dist {

/// Calls may come from any thread, one at a time.
struct MpiFunctions {
  static constexpr uint32_t kVersion = 1;
  uint32_t version;
  /// Joins those that mpirun began, once. Null, or why it cannot.
  const char* (*start)(int* rank, int* size);
  /// One message of all these pieces, which stay where they are until it is done.
  void* (*send)(const iovec* pieces, size_t count, int to, int tag);
  void* (*receive)(const iovec* pieces, size_t count, int from, int tag);
  /// Whether the message has gone or come; then the request is no more.
  bool (*is_done)(void* request);
  /// Forgets a request that nobody waits for any more.
  void (*drop)(void* request);
  /// After all messages, once all ranks come to it.
  void (*finish)();
};

}  // namespace tessera::dist
