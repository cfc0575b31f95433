#include "ops/autocast.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "core/capture_state.h"
#include "ops/lower_copy.h"
#include "ops/op_table.h"
#include "ops/record.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera::amp {

constinit thread_local AutocastState autocast_state;

// What a region has cast of parameters.
class CastCache {
 public:
  struct Entry {
    Tensor source, lower;
    CopyOrigin origin;
    uint32_t version;  // of the source
  };
  std::unordered_map<const TensorImpl*, Entry> casts;
};

namespace {

// The outermost region of this thread: what it has cast serves the regions within, too.
struct Region {
  std::unique_ptr<CastCache>* casts = nullptr;  // null: there is none
  const CaptureState* capture = nullptr;        // in which it began
};
constinit thread_local Region outermost;

uint8_t bit(DeviceType device) { return static_cast<uint8_t>(1 << static_cast<int>(device)); }
bool is_on(DeviceType device) { return autocast_state.devices & bit(device); }
const AutocastOptions& options_for(const Tensor& t) {
  return autocast_state.options[static_cast<int>(t.device().type)];
}

bool is_eligible(const Tensor& t) {
  return t.defined() && is_floating(t.dtype()) && t.dtype() != Float64 && is_on(t.device().type);
}

// The copy that the optimizer keeps, or a new one, for it to keep.
Tensor cast_parameter(const Tensor& t, DType dtype) {
  const std::shared_ptr<LowerCopy> kept = find_lower_copy(t);
  Tensor lower = kept ? kept->fresh(t) : Tensor();
  if (lower.defined() && lower.dtype() == dtype) {
    static const Op& op = find_op("cast");
    record_call(op, {t}, {lower}, CastAttrs{dtype});
    return lower;
  }
  lower = cast(t, dtype);
  if (kept) kept->keep(t, lower);
  return lower;
}

// A parameter serves many calls of a forward pass; a copy made where nothing was recorded cannot serve one that is.
Tensor cached_cast(const Tensor& t, DType dtype) {
  if (outermost.capture != current_capture) return cast(t, dtype);  // a captured function casts in each run
  if (!*outermost.casts) *outermost.casts = std::make_unique<CastCache>();
  auto& casts = (*outermost.casts)->casts;
  CopyOrigin origin(t);
  const uint32_t version = t.storage()->version.load(std::memory_order_relaxed);
  if (auto it = casts.find(t.ref().get()); it != casts.end()) {
    const CastCache::Entry& c = it->second;
    if (c.lower.dtype() == dtype && c.version == version && c.origin == origin &&
        (c.lower.requires_grad() || !grad_enabled()))
      return c.lower;
  }
  Tensor lower = cast_parameter(t, dtype);
  casts.insert_or_assign(t.ref().get(), CastCache::Entry{t, lower, std::move(origin), version});
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
  return previous;
}

constexpr uint8_t kAllDevices = (1 << kDeviceTypeCount) - 1;

}  // namespace

Autocast::Autocast(DType dtype, const AutocastOptions& options) : previous_(enter(kAllDevices, dtype, options)) {
  if (!outermost.casts) outermost = {&casts_, current_capture};
}
Autocast::Autocast(DType dtype, DeviceType device, const AutocastOptions& options)
    : previous_(enter(bit(device), dtype, options)) {
  if (!outermost.casts) outermost = {&casts_, current_capture};
}
Autocast::~Autocast() {
  autocast_state = previous_;
  if (outermost.casts == &casts_) outermost = {};
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
