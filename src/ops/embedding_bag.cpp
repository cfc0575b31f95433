// Embeddings with padding, and embeddings reduced by bags.
#include <cmath>

#include "core/capture_state.h"
#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/precise.h"
#include "tessera/autograd.h"
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
Bags bags_by_offsets(const Tensor& index, const Tensor& offsets, bool include_last) {
  if (offsets.dim() != 1 || (offsets.dtype() != Int64 && offsets.dtype() != Int32))
    fail(kBag, "offsets must be i64 or i32 [bags], not {}", describe(offsets));
  if (include_last && offsets.size(0) < 1) fail(kBag, "no last offset in {}", describe(offsets));
  check_offsets(offsets, index.size(0));
  const Tensor places = arange(0, static_cast<double>(index.size(0)), 1, Int64, index.device());
  return {searchsorted(cast(offsets, Int64), places, true) + -1.0, offsets.size(0) - include_last};
}

// Rows [bags, n, width] reduced along n; `counted` [bags, n, 1] says which of them count, or is undefined.
Tensor reduced_rows(const Tensor& rows, const Tensor& counted, BagMode mode) {
  if (rows.shape()[1] == Dim(0)) return sum(rows, {1});
  const Tensor zero = number_like(rows, 0);
  const auto or_else = [&](const Tensor& other) { return counted.defined() ? where(counted, rows, other) : rows; };
  if (mode == BagMode::Max) {
    const Tensor most = amax(or_else(number_like(rows, -INFINITY)), {1});
    return counted.defined() ? where(any(counted, {1}), most, zero) : most;
  }
  if (!counted.defined()) return mode == BagMode::Mean ? mean(rows, {1}) : sum(rows, {1});
  const Tensor total = sum(or_else(zero), {1});
  return mode == BagMode::Sum ? total : total / clamp(sum(cast(counted, rows.dtype()), {1}), 1, INFINITY);
}

// Rows [n, width] reduced by their bags. Those of no bag go to one behind the last, which is cut off.
Tensor reduced_bags(const Tensor& rows, const Bags& bags, BagMode mode) {
  const Tensor none = zeros({Dim(bags.count + 1), rows.shape()[1]}, rows.dtype(), rows.device());
  Tensor y;
  if (mode == BagMode::Max) {
    const Tensor places = expand(unsqueeze(bags.of, 1), rows.shape());
    y = scatter_reduce(none, 0, places, rows, ScatterReduction::Max, false);
  } else {
    y = index_add(none, 0, bags.of, rows);
  }
  if (mode == BagMode::Mean) {
    const Tensor each = ones({rows.shape()[0], Dim(1)}, rows.dtype(), rows.device());
    y = y / clamp(index_add(slice(none, 1, 0, 1), 0, bags.of, each), 1, INFINITY);
  }
  return slice(y, 0, 0, bags.count);
}

}  // namespace

Tensor embedding(const Tensor& index, const Tensor& weight, int64_t padding_idx) {
  const int64_t row = padding_row("embedding", weight, padding_idx);
  const Tensor rows = embedding(index, weight);
  if (!grad_enabled() && !is_capturing()) return rows;
  return where(unsqueeze(eq(index, number_like(index, static_cast<double>(row))), -1), rows.detach(), rows);
}

Tensor embedding_bag(const Tensor& index, const Tensor& weight, const EmbeddingBagOptions& o) {
  if (weight.dim() != 2 || !is_floating(weight.dtype()))
    fail(kBag, "the weight must be floating [rows, width], not {}", describe(weight));
  if (index.dtype() != Int64 && index.dtype() != Int32) fail(kBag, "the index is {}, not i64 or i32", describe(index));
  if (index.dim() != (o.offsets.defined() ? 1 : 2))
    fail(kBag, "the index {} is neither [bags, n] nor [n] with offsets", to_string(index.shape()));
  const Tensor& factors = o.per_sample_weights;
  if (factors.defined() && o.mode != BagMode::Sum) fail(kBag, "per_sample_weights are for sums");
  if (factors.defined()) require_shape(kBag, "per_sample_weights", factors.meta(), index.shape());

  Tensor counted;
  if (o.padding_idx)
    counted = ne(index, number_like(index, static_cast<double>(padding_row(kBag, weight, *o.padding_idx))));
  return in_single(embedding(index, weight), [&](const Tensor& found) {
    const Tensor rows = factors.defined() ? found * unsqueeze(cast(factors, found.dtype()), -1) : found;
    if (index.dim() == 2) return reduced_rows(rows, counted.defined() ? unsqueeze(counted, 2) : counted, o.mode);
    Bags bags = bags_by_offsets(index, o.offsets, o.include_last_offset);
    if (counted.defined()) bags.of = where(counted, bags.of, number_like(bags.of, static_cast<double>(bags.count)));
    return reduced_bags(rows, bags, o.mode);
  });
}

}  // namespace tessera
