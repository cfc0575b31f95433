// Embeddings with padding, and embeddings reduced by bags.
#include <cmath>

#include "core/capture_state.h"
#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/precise.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_layers.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

constexpr std::string_view kBag = "embedding_bag";

int64_t padding_row(std::string_view op, const Tensor& weight, int64_t padding_idx) {
  const int64_t rows = weight.size(0);
  if (padding_idx < -rows || padding_idx >= rows)
    fail(op, "the padding's row {} is not one of {} rows", padding_idx, rows);
  return padding_idx < 0 ? padding_idx + rows : padding_idx;
}

// Where they can be read for nothing.
void check_offsets(const Tensor& offsets, int64_t count) {
  if (offsets.device().type != DeviceType::CPU || offsets.device().meta || is_capturing()) return;
  int64_t last = 0;
  for (const int64_t at : offsets.to_vector<int64_t>()) {
    if (at < last || at > count) fail(kBag, "offset {} is not in [{}, {}]: they ascend", at, last, count);
    last = at;
  }
  if (offsets.numel() > 0 && select(offsets, 0, 0).item<int64_t>() != 0) fail(kBag, "the first offset is not 0");
}

/// Which bag each element of the flat index is in, `count` for none.
struct Bags {
  Tensor of;
  int64_t count;
};
Bags bags_of_rows(const Tensor& index) {
  const int64_t bags = index.size(0);
  const Tensor column = unsqueeze(arange(0, static_cast<double>(bags), 1, Int64, index.device()), 1);
  return {reshape(expand(column, index.shape()), {Dim(-1)}), bags};
}
Bags bags_by_offsets(const Tensor& index, const Tensor& offsets, bool include_last) {
  if (offsets.dim() != 1 || (offsets.dtype() != Int64 && offsets.dtype() != Int32))
    fail(kBag, "offsets must be i64 or i32 [bags], not {}", describe(offsets));
  if (include_last && offsets.size(0) < 1) fail(kBag, "no last offset in {}", describe(offsets));
  check_offsets(offsets, index.size(0));
  const Tensor places = arange(0, static_cast<double>(index.size(0)), 1, Int64, index.device());
  return {searchsorted(cast(offsets, Int64), places, true) + -1.0, offsets.size(0) - include_last};
}
Bags bags_of(const Tensor& index, const EmbeddingBagOptions& o) {
  if (index.dtype() != Int64 && index.dtype() != Int32) fail(kBag, "the index is {}, not i64 or i32", describe(index));
  if (index.dim() != (o.offsets.defined() ? 1 : 2))
    fail(kBag, "the index {} is neither [bags, n] nor [n] with offsets", to_string(index.shape()));
  return o.offsets.defined() ? bags_by_offsets(index, o.offsets, o.include_last_offset) : bags_of_rows(index);
}

}  // namespace

Tensor embedding(const Tensor& index, const Tensor& weight, int64_t padding_idx) {
  const int64_t row = padding_row("embedding", weight, padding_idx);
  const Tensor rows = embedding(index, weight);
  return where(unsqueeze(eq(index, number_like(index, static_cast<double>(row))), -1), rows.detach(), rows);
}

// Elements of no bag go to one behind the last, which is cut off.
Tensor embedding_bag(const Tensor& index, const Tensor& weight, const EmbeddingBagOptions& o) {
  if (weight.dim() != 2 || !is_floating(weight.dtype()))
    fail(kBag, "the weight must be floating [rows, width], not {}", describe(weight));
  const bool weighted = o.per_sample_weights.defined();
  if (weighted && o.mode != BagMode::Sum) fail(kBag, "per_sample_weights are for sums");
  if (weighted) require_shape(kBag, "per_sample_weights", o.per_sample_weights.meta(), index.shape());
  const Bags bags = bags_of(index, o);
  const Tensor flat = reshape(index, {Dim(-1)});
  Tensor bag = bags.of;
  if (o.padding_idx) {
    const Tensor row = number_like(flat, static_cast<double>(padding_row(kBag, weight, *o.padding_idx)));
    bag = where(eq(flat, row), number_like(bag, static_cast<double>(bags.count)), bag);
  }
  const Tensor found = embedding(flat, weight);
  const Tensor reduced = in_single(found, [&](Tensor rows) {
    if (weighted) rows = rows * unsqueeze(reshape(cast(o.per_sample_weights, rows.dtype()), {Dim(-1)}), 1);
    const Tensor none = zeros({Dim(bags.count + 1), weight.shape()[1]}, rows.dtype(), rows.device());
    if (o.mode == BagMode::Max)
      return scatter_reduce(none, 0, expand(unsqueeze(bag, 1), rows.shape()), rows, ScatterReduction::Max, false);
    const Tensor total = index_add(none, 0, bag, rows);
    if (o.mode == BagMode::Sum) return total;
    const Tensor counts = index_add(zeros({bags.count + 1}, rows.dtype(), rows.device()), 0, bag,
                                    ones(bag.shape(), rows.dtype(), rows.device()));
    return total / unsqueeze(clamp(counts, 1, INFINITY), 1);
  });
  return slice(reduced, 0, 0, bags.count);
}

}  // namespace tessera
