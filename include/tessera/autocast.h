// Automatic mixed precision, the forward half: operators run in the dtype that suits each of them. docs/amp.md lists
// what each one does; tessera/amp.h has the rest.
//
//   Tensor loss;
//   {
//     amp::Autocast guard(BFloat16);
//     loss = cross_entropy(model(x), target);
//   }
//   loss.backward();
#pragma once
#include <memory>

#include "tessera/tensor.h"

namespace tessera::amp {

class CastCache;

struct AutocastOptions {
  bool enabled = true;  ///< false: operators run as they are given, whatever surrounds the region
  /// A f32 parameter is cast once, and its copy kept until the outermost region ends or the parameter is written to.
  bool cache_weights = true;
  /// Residual streams and norms stay in the lower dtype: less memory and time, and less exact than PyTorch's f32.
  bool lower_residual = false;
};

/// What a thread's operators go by.
struct AutocastState {
  uint8_t devices = 0;  ///< bit d: on for DeviceType d
  DType dtype[kDeviceTypeCount] = {BFloat16, BFloat16, BFloat16};
  AutocastOptions options[kDeviceTypeCount];
};

/// While alive, operators of this thread choose their dtype, as in PyTorch: products run in `dtype`; sums,
/// exponentials, losses and norms in f32; those that need equal dtypes in the widest; all others as they are given.
/// Inputs are cast by operators, so gradients arrive in the inputs' own dtypes. Integers, f64 and in-place operators
/// are left alone. Regions nest: the inner one, also one that is not `enabled`, replaces the outer on its devices.
/// Backward runs without autocast, wherever it is called.
class Autocast {
 public:
  /// On every kind of device. Throws Error unless `dtype` is f16 or bf16.
  explicit Autocast(DType dtype, const AutocastOptions& options = {});
  /// On one kind of device.
  Autocast(DType dtype, DeviceType device, const AutocastOptions& options = {});
  Autocast(DType dtype, Device device, const AutocastOptions& options = {}) : Autocast(dtype, device.type, options) {}
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  AutocastState previous_;
  std::unique_ptr<CastCache> casts_;  // the outermost region's serve those within, too
};

/// Operators run as they are given while alive, on every kind of device.
class NoAutocast : Autocast {
 public:
  NoAutocast() : Autocast(BFloat16, {.enabled = false}) {}
};

/// Whether operators on such a device choose their dtype on this thread.
bool autocast_enabled(DeviceType device = DeviceType::CPU);
/// The lower dtype of the innermost region of this thread for such a device.
DType autocast_dtype(DeviceType device = DeviceType::CPU);

}  // namespace tessera::amp
