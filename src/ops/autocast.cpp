#include "ops/autocast.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "core/gpu/backend.h"
#include "core/lower_copies.h"
#include "ops/op_table.h"
#include "ops/record.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera::amp {

constinit thread_local AutocastState autocast_state;

namespace {

// When a parameter was cast; the lower copy serves until any of it changes.
struct Moment {
  Ref<Storage> storage;
  uint32_t version;
  int graph = 0;                       // a replay must cast anew, and what is captured is not there before
  uint64_t replays = 0;                // which may have written the parameter
  gpu::StreamHandle stream = nullptr;  // others do not wait for the cast
  bool operator==(const Moment&) const = default;

  explicit Moment(const Tensor& t) : storage(t.storage()), version(storage->version.load(std::memory_order_relaxed)) {
    if (!t.device().is_card()) return;
    graph = gpu::graph_being_captured(t.device());
    replays = gpu::replays();
    stream = gpu::stream_of(gpu::state(t.device())).handle;
  }
};

struct CachedCast {
  Tensor source, lower;
  Moment moment;
};

thread_local int depth = 0;  // of regions, enabled or not
thread_local std::unordered_map<const TensorImpl*, CachedCast> cached_casts;

uint8_t bit(DeviceType device) { return static_cast<uint8_t>(1 << static_cast<int>(device)); }
bool is_on(DeviceType device) { return autocast_state.devices & bit(device); }
const AutocastOptions& options_for(const Tensor& t) {
  return autocast_state.options[static_cast<int>(t.device().type)];
}

bool is_eligible(const Tensor& t) {
  return t.defined() && is_floating(t.dtype()) && t.dtype() != Float64 && is_on(t.device().type);
}

// A parameter serves many calls of a forward pass; a copy made where nothing was recorded cannot serve one that is.
Tensor cached_cast(const Tensor& t, DType dtype) {
  const Moment now(t);
  auto it = cached_casts.find(t.ref().get());
  if (it != cached_casts.end()) {
    const CachedCast& c = it->second;
    if (c.lower.dtype() == dtype && c.moment == now && (c.lower.requires_grad() || !grad_enabled())) return c.lower;
  }
  Tensor lower = lower_copy(t, dtype);
  if (lower.defined()) {
    static const Op& op = find_op("cast");
    record_call(op, {t}, {lower}, CastAttrs{dtype});
  } else {
    lower = cast(t, dtype);
    keep_lower_copy(t, lower);
  }
  cached_casts.insert_or_assign(t.ref().get(), CachedCast{t, lower, now});
  return lower;
}

Tensor cast_input(const Tensor& t, DType dtype) {
  const bool weight =
      options_for(t).cache_weights && t.dtype() == Float32 && dtype != Float32 && t.requires_grad() && t.is_leaf();
  return weight ? cached_cast(t, dtype) : cast(t, dtype);
}

AutocastState enter(uint8_t devices, DType dtype, const AutocastOptions& options) {
  if (dtype != Float16 && dtype != BFloat16)
    throw Error(fmt::format("Autocast: {} is no lower precision: f16 or bf16", name(dtype)));
  const AutocastState previous = autocast_state;
  AutocastState& s = autocast_state;
  s.devices = static_cast<uint8_t>(options.enabled ? s.devices | devices : s.devices & ~devices);
  for (int d = 0; d < kDeviceTypeCount; ++d)
    if (devices >> d & 1) s.dtype[d] = dtype, s.options[d] = options;
  ++depth;
  return previous;
}

constexpr uint8_t kAllDevices = (1 << kDeviceTypeCount) - 1;

}  // namespace

Autocast::Autocast(DType dtype, const AutocastOptions& options) : previous_(enter(kAllDevices, dtype, options)) {}
Autocast::Autocast(DType dtype, DeviceType device, const AutocastOptions& options)
    : previous_(enter(bit(device), dtype, options)) {}
Autocast::~Autocast() {
  autocast_state = previous_;
  if (--depth == 0) cached_casts.clear();
}

bool autocast_enabled(DeviceType device) { return is_on(device); }
DType autocast_dtype(DeviceType device) { return autocast_state.dtype[static_cast<int>(device)]; }

void autocast(const Op& op, Tensors& in) {
  using Policy = tessera::Autocast;
  if (op.autocast == Policy::None) return;
  const auto* first = std::find_if(in.begin(), in.end(), is_eligible);
  if (first == in.end()) return;
  const bool lower_norm = op.autocast == Policy::Norm && options_for(*first).lower_residual;
  DType dtype = Float32;
  if (op.autocast == Policy::Lower || op.autocast == Policy::Promote || lower_norm)
    dtype = autocast_dtype(first->device().type);
  if (op.autocast == Policy::Promote)
    for (const Tensor& t : in)
      if (is_eligible(t)) dtype = promote(dtype, t.dtype());
  for (Tensor& t : in) {
    if (is_eligible(t) && t.dtype() != dtype) t = cast_input(t, dtype);
    if (lower_norm) break;  // the kernels take x with f32 weights
  }
}

Tensor autocast_to_float32(const Tensor& x) { return is_eligible(x) ? cast(x, Float32) : x; }

bool is_wide_residual(const Tensor& x) {
  return is_eligible(x) && x.dtype() != autocast_dtype(x.device().type) && !options_for(x).lower_residual;
}

}  // namespace tessera::amp
