// Tensors on their way from one device to another.
#include <cstring>

#include "core/capture_state.h"
#include "core/gpu/backend.h"
#include "ops/op_table.h"
#include "ops/output_layout.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

extern const Op to_device_op;

Metas infer_to_device(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("to_device", in);
  return {{in[0].shape, in[0].dtype, attrs.as<DeviceAttrs>().device}};
}
Tensors to_device_vjp(const Saved& s, const Tensors& grads) { return {grads[0].to(s.metas[0].device)}; }
Tensors to_device_reference(std::span<const Tensor> in, const Attrs&) { return {in[0].contiguous()}; }

// Bytes, in the order of the streams involved: a matter of the host, which knows both devices.
Tensors to_device_compute(std::span<const Tensor> in, const Attrs& attrs) {
  NoGrad plain;
  const Tensor from = in[0].contiguous();
  const TensorMeta metas[] = {from.meta()};
  const Metas inferred = infer_to_device(metas, attrs);
  const Tensor to = make_output(output_layout(to_device_op, metas, inferred[0]));
  const size_t bytes = static_cast<size_t>(from.numel()) * size_of(from.dtype());
  if (bytes == 0) return {to};
  if (from.device().is_gpu() || to.device().is_gpu()) gpu::copy(to, from.data_ptr(), *from.storage());
  else std::memcpy(to.data_ptr(), from.data_ptr(), bytes);
  return {to};
}

const Op to_device_op = {.name = "to_device",
                         .inputs = "x",
                         .outputs = "y",
                         .attrs = attrs_of<DeviceAttrs>,
                         .infer = infer_to_device,
                         .vjp = to_device_vjp,
                         .reference = to_device_reference,
                         .saves = {.metas = 1},
                         .transfers = true,
                         .compute = to_device_compute};

}  // namespace

std::span<const Op* const> transfer_ops() {
  static constexpr const Op* ops[] = {&to_device_op};
  return ops;
}

Tensor Tensor::to(Device device) const {
  const Device here = this->device();
  if (here.meta && !device.meta && !is_capturing())
    throw Error("to: " + describe(*this) + " has no memory, so there is nothing to move to " + to_string(device));
  device.meta |= here.meta;
  if (device == here) return *this;
  const bool will_run = is_capturing() || (device.is_card() && here.is_card());
  if (device.type != here.type && device.is_gpu() && here.is_gpu() && will_run)
    return to(cpu()).to(device);  // the vendors' libraries know nothing of each other
  if (!is_contiguous() && is_contiguous(ChannelsLast)) return permute({0, 2, 3, 1}).to(device).permute({0, 3, 1, 2});
  return dispatch_one(to_device_op, {contiguous()}, DeviceAttrs{device});
}

}  // namespace tessera
