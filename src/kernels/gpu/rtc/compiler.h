// Compilers of GPU code that work in memory.
#pragma once
#include <string>
#include <vector>

#include "tessera/device.h"
#include "tessera/error.h"

namespace tessera::gpu {

/// A program that its compiler refused. what() is the first of its errors, with file and line.
struct CompileError : Error {
  CompileError(const std::string& what, std::string log) : Error(what), log(std::move(log)) {}
  std::string log;  // all that the compiler said
};

class Compiler {
 public:
  virtual ~Compiler() = default;
  /// With its version: "NVRTC 13.0".
  virtual std::string name() const = 0;
  /// Machine code for an architecture ("sm_90", "gfx90a"). Embedded headers are found as <tessera/tile/...>. Threads
  /// may call it at the same time. Throws CompileError.
  virtual std::string compile(const std::string& source, const std::string& architecture,
                              const std::vector<std::string>& options) = 0;
};

/// NVRTC for CUDA, hipRTC for HIP: opened when it is first asked for, from the library that TESSERA_NVRTC or
/// TESSERA_HIPRTC names, or from where it is usually installed. Throws Error where there is none.
Compiler& vendor_compiler(DeviceType type);
/// Whether there is one.
bool has_compiler(DeviceType type);

/// The first error in what a compiler said, as "file(line): message"; empty if there is none.
std::string first_error(const std::string& log);

}  // namespace tessera::gpu
