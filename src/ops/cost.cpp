#include "ops/cost.h"

#include "ops/elements.h"

namespace tessera {

double elements_of(const Shape& shape) {
  double n = 1;
  for (const Dim d : shape) n *= static_cast<double>(d.value());
  return n;
}

double product_flops(std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs&) {
  return 2 * elements_of(out[0].shape) * static_cast<double>(in[0].shape.back().value());
}

namespace {

double bytes_moved_of(const TensorMeta& t) {
  if (is_absent(t)) return 0;
  double n = static_cast<double>(size_of(t.dtype));
  for (size_t d = 0; d < t.shape.size(); ++d)
    if (t.shape[d] == Dim(0) || t.strides.empty() || t.strides[d] != 0) n *= static_cast<double>(t.shape[d].value());
  return n;
}

}  // namespace

Cost cost_of(const Op& op, std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs& attrs) {
  Cost cost;
  for (const auto metas : {in, out})
    for (const TensorMeta& t : metas) cost.bytes += bytes_moved_of(t);
  const bool only_moves = op.elements == &moved<1> || op.elements == &moved<kAll>;
  if (op.flops) cost.flops = op.flops(in, out, attrs);
  else if (!only_moves)
    for (const TensorMeta& t : out)
      if (!is_absent(t)) cost.flops += elements_of(t.shape);
  return cost;
}

}  // namespace tessera
