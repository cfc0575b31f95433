// What libtessera_gloo.so offers: the few functions of Gloo that ranks exchange bytes with. No header of Gloo is
// needed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tessera::dist {

/// Calls may come from any thread. Where one fails, error() says why to the thread that made it.
struct GlooFunctions {
  static constexpr uint32_t kVersion = 1;
  static constexpr size_t kMostOfAddress = 1024;
  enum Waited : int { Done, NotYet, Lost };
  uint32_t version;
  const char* (*error)();
  /// One of so many ranks, which others reach at that address of this host; null: it failed.
  void* (*open)(const char* address, int rank, int size);
  /// Where a rank of them connects to this one: bytes of it, into kMostOfAddress. 0: it failed.
  size_t (*address)(void* context, int peer, char* out);
  /// To that rank, which does the same. False: it failed.
  bool (*connect)(void* context, int peer, const char* address, size_t bytes);
  /// A message, whose memory stays where it is until it is dropped; null: it failed.
  void* (*send)(void* context, void* data, size_t bytes, int peer, uint64_t lane);
  void* (*receive)(void* context, void* data, size_t bytes, int peer, uint64_t lane);
  /// For so many milliseconds at most, or a little more. A message is waited for no more once it is done.
  Waited (*wait)(void* message, int milliseconds);
  void (*drop)(void* message);
  void (*close)(void* context);
};

}  // namespace tessera::dist
