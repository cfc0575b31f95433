// Kernels of functions that few programs call: text, compiled at the first call on a GPU and kept on disk. What is
// captured, or where the vendor's compiler is not installed, is made of operators.
#pragma once
#include <mutex>
#include <string>
#include <vector>

#include "core/capture_state.h"
#include "kernels/gpu/rtc/rtc.h"
#include "tessera/tensor.h"

namespace tessera {

/// Whether such kernels may work on x.
bool on_card(const Tensor& x);

/// What kernels on the device of x write that they found wrong.
gpu::Fault* fault_on(const Tensor& x);

/// A kernel of 256 threads a block, once for each type of elements, which its text calls T:
///   CardKernel twice("twice", R"(extern "C" TESSERA_KERNEL(256) void twice(const T* x, T* y, i64 n) { ... })");
///   twice.launch(x, blocks, x.data<float>(), ...);
/// The text sees namespace tile with arch/gpu/group.h and kernels/functors.h, and raise(fault, op, index, bound), which
/// says that an index is out of range: the next call that waits for the device throws it. `fault` is fault_on(x).
class CardKernel {
 public:
  CardKernel(const char* name, std::string text);
  CardKernel(const CardKernel&) = delete;
  /// On the device and for the type of x. The arguments' types are those of the kernel's parameters. Throws Error where
  /// it cannot be compiled.
  template <class... A>
  void launch(const Tensor& x, int64_t blocks, const A&... arguments) {
    on(x.device(), x.dtype()).launch(0, {blocks, 256, 0}, arguments...);
  }

  const char* name() const { return name_; }
  gpu::Program program(DType dtype) const;
  /// All there are.
  static std::vector<const CardKernel*>& all();

 private:
  struct Loaded {
    Device device;
    DType dtype;
    const gpu::Module* module;
  };
  const gpu::Module& on(Device device, DType dtype);

  const char* name_;
  std::string text_;
  std::mutex mutex_;
  std::vector<Loaded> loaded_;
};

}  // namespace tessera
