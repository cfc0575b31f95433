// Inputs that stay the same, packed once: the layout is a kernel's own, which it states as Kernel::pack.
#include "ops/call_plan.h"
#include "ops/check.h"
#include "ops/conv.h"
#include "ops/conv_act.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/autograd.h"
#include "tessera/packing.h"

namespace tessera {
namespace {

Metas infer_pack(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("pack", in);
  const auto& packed = attrs.as<PackAttrs>();
  TensorMeta y{in[0].shape, in[0].dtype, in[0].device};
  if (packed.layout.empty()) return {y};
  if (!y.shape.is_symbolic() &&
      packed.bytes / static_cast<int64_t>(size_of(y.dtype)) < std::max<int64_t>(y.shape.numel().value(), 1))
    fail("pack", "{} does not fit into {} bytes", describe(y), packed.bytes);
  y.packing = packing_named(packed.layout);
  y.storage_bytes = packed.bytes;
  return {y};
}

Tensors pack_reference(std::span<const Tensor> in, const Attrs&) {
  return {reference::generate(in[0].shape(), in[0].dtype(), [&](auto& i) { return reference::get(in[0], i); })};
}

const Op pack_op = {.name = "pack",
                    .inputs = "x",
                    .outputs = "y",
                    .attrs = attrs_of<PackAttrs>,
                    .infer = infer_pack,
                    .reference = pack_reference,
                    .pitched = Pitched::None};

// What the kernel of linear() wants; many rows and few get the same.
std::optional<Packing> linear_packing(const TensorMeta& weight) {
  const Attrs attrs = LinearAttrs{};
  const Op& op = find_op("linear");
  const TensorMeta in[] = {{{1, weight.shape[1]}, weight.dtype, weight.device}, weight, absent_meta(), absent_meta()};
  const Metas out = infer_outputs(op, in, attrs, weight.device, false);
  const Operand ins[] = {Operand(in[0], nullptr), Operand(weight, nullptr), {}, {}};
  const Operand outs[] = {Operand(out[0], nullptr), {}};
  return packing_of({op, ins, attrs, outs}, 1);
}

std::optional<Packing> filter_packing(const TensorMeta& weight) {
  const Attrs attrs = ConvAttrs{};
  const TensorMeta in[] = {
      {{Dim(1), weight.shape[1], Dim(1), Dim(1)}, weight.dtype, weight.device}, weight, absent_meta()};
  const Metas out = infer_outputs(conv2d_op, in, attrs, weight.device, false);
  const Operand ins[] = {Operand(in[0], nullptr), Operand(weight, nullptr), {}};
  const Operand outs[] = {Operand(out[0], nullptr)};
  return packing_of({conv2d_op, ins, attrs, outs}, 1);
}

Tensor packed_as(const Tensor& weight, const std::optional<Packing>& wanted) {
  if (!wanted) return weight;
  NoGrad plain;
  return dispatch_one(pack_op, {weight}, PackAttrs{*wanted->name, wanted->bytes});
}

}  // namespace

std::span<const Op* const> pack_ops() {
  static constexpr const Op* ops[] = {&pack_op};
  return ops;
}

Tensor pack_linear(const Tensor& weight) {
  if (!weight.defined() || weight.dim() != 2)
    fail("pack_linear", "the weight has two dims, [out, in], not {}", describe(weight));
  if (weight.is_packed() || weight.shape().is_symbolic()) return weight;
  if (weight.device().is_gpu() && weight.device().meta) return weight;  // no card is there to be asked
  return packed_as(weight, linear_packing(weight.meta()));
}
Tensor pack_filters(const Tensor& weight) {
  if (!weight.defined() || weight.dim() != 4 || weight.is_packed() || weight.shape().is_symbolic()) return weight;
  if (weight.device().meta || weight.size(2) != 1 || weight.size(3) != 1) return weight;
  return packed_as(weight, filter_packing(weight.meta()));
}

}  // namespace tessera
