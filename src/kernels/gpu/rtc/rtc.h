// Kernels that are compiled while the program runs, kept on disk between runs and in memory until the process ends.
//
//   const Program program{"#include <tessera/tile/arch/gpu/block.h>\n"
//                         "extern \"C\" TESSERA_KERNEL(256) void fill(float* to, float value) { ... }", {"fill"}};
//   load(program, cuda(0)).launch(0, {blocks, 256, 0}, to, value);
#pragma once
#include <memory>

#include "core/gpu/backend.h"
#include "kernels/gpu/rtc/compiler.h"

namespace tessera::gpu {

struct Program {
  std::string source;                     // in which the tile library's headers are found as <tessera/tile/...>
  std::vector<std::string> kernels;       // their names: they are extern "C"
  std::vector<std::string> options = {};  // for the compiler, besides C++20 and the architecture
};

/// The machine code of a program for cards of an architecture ("sm_90", "gfx90a"): from disk, or else compiled and kept
/// there. Of threads that ask for the same at once, one compiles; what was wrong is not compiled again by this process.
/// Needs no card. Throws CompileError, or Error where there is no compiler.
std::string machine_code(const Program& program, DeviceType type, const std::string& architecture);

/// A program on a device. Modules stay until the process ends, since queued work and captured graphs may use them.
class Module {
 public:
  Module(DeviceState& on, ModuleHandle handle, const std::vector<std::string>& kernels);
  /// Queues a kernel of the program, by its place in `kernels`, on this thread's current stream; nothing for no blocks.
  /// The arguments' types are those of its parameters.
  template <class... A>
  void launch(size_t kernel, const Grid& grid, const A&... arguments) const {
    const void* pointers[] = {&arguments..., nullptr};
    launch(kernel, grid, const_cast<void**>(pointers));
  }
  void launch(size_t kernel, const Grid& grid, void** arguments) const;

 private:
  DeviceState& on_;
  std::vector<KernelHandle> kernels_;
};

/// machine_code() for the device's card, loaded there; a later call with an equal program gives the same module. Safe
/// to call from any thread. Callers keep the reference: this looks at the whole source.
const Module& load(const Program& program, Device device);

/// For tests: `compiler` compiles for a device type from now on; null: the vendor's.
void install(DeviceType type, Compiler* compiler);

}  // namespace tessera::gpu
