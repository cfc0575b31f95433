// Embeddings with padding, and embeddings reduced by bags.
#include <cmath>

#include "core/attrs.h"
#include "core/capture_state.h"
#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/on_host.h"
#include "ops/op_table.h"
#include "ops/precise.h"
#include "tessera/autograd.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_layers.h"
#include "tessera/ops_shape.h"
#include "tile/vec.h"

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

// ---- sums of rows where they lie: as operators, the rows would be written and read again

int64_t checked_row(int64_t row, int64_t rows) {
  if (row < 0 || row >= rows) fail("embedding", "index {} is out of range for size {}", row, rows);
  return row;
}

// to[width] = the sum of rows of weight times a factor, as many columns at a time as registers hold. `end`: of the rows
// of all bags, of which those that come next are asked for.
template <class T, class Index>
void add_rows(const T* weight, int64_t width, const Index* index, int64_t count, const Index* end, T factor, T* to) {
  using V = tile::NativeVec<T>;
  constexpr int vectors = 8;
  constexpr int64_t some = vectors * V::lanes, ahead = 8, line = 64 / sizeof(T);
  const auto row = [&](int64_t i) { return weight + static_cast<int64_t>(index[i]) * width; };
  for (int64_t first = 0; first < width; first += some) {
    const int64_t columns = std::min(some, width - first);
    V sums[vectors] = {};
    T rest[some] = {};
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t k = 0; k < columns && index + i + ahead < end; k += line)
        __builtin_prefetch(row(i + ahead) + first + k);
      const T* const from = row(i) + first;
      if (columns == some) {
        TESSERA_UNROLL
        for (int v = 0; v < vectors; ++v) sums[v] += tile::load<V>(from + v * V::lanes);
      } else {
        for (int64_t k = 0; k < columns; ++k) rest[k] += from[k];
      }
    }
    if (columns == some) {
      TESSERA_UNROLL
      for (int v = 0; v < vectors; ++v) tile::store(rest + v * V::lanes, sums[v]);
    }
    for (int64_t k = 0; k < columns; ++k) to[first + k] = rest[k] * factor;
  }
}

bool sums_on_host(const Tensor& index, const Tensor& weight, const EmbeddingBagOptions& o) {
  const bool plain = index.dim() == 2 && !o.per_sample_weights.defined() && !o.padding_idx && o.mode != BagMode::Max;
  return plain && on_host(weight) && on_host(index) && (weight.dtype() == Float32 || weight.dtype() == Float64) &&
         index.size(1) > 0;
}

// Index [bags, n] of rows of weight -> their sums times a factor, [bags, width].
Tensor host_bags(const Tensor& index, const Tensor& weight, double factor) {
  const auto forward = [factor](const Tensors& in) {
    const Tensor places = contiguous(in[0]), rows = contiguous(in[1]);
    const int64_t n = places.size(1), width = rows.size(1), count = rows.size(0);
    const Tensor y = empty({places.shape()[0], rows.shape()[1]}, rows.dtype());
    const auto run = [&]<class T, class Index>(const T* from, const Index* index, T* to) {
      each_part(places.size(0), n * width, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * n; i < end * n; ++i) checked_row(static_cast<int64_t>(index[i]), count);
        for (int64_t i = begin; i < end; ++i)
          add_rows(from, width, index + i * n, n, index + end * n, static_cast<T>(factor), to + i * width);
      });
    };
    const auto by_index = [&]<class T>(const T* from, T* to) {
      if (places.dtype() == Int64) run(from, places.data<int64_t>(), to);
      else run(from, places.data<int32_t>(), to);
    };
    if (rows.dtype() == Float64) by_index(rows.data<double>(), y.data<double>());
    else by_index(rows.data<float>(), y.data<float>());
    return Tensors{y};
  };
  const auto backward = [factor](const Tensors& in, const Tensors&, const Tensors& grads) {
    const Tensor each = expand(unsqueeze(grads[0] * factor, 1), {in[0].shape()[0], in[0].shape()[1], in[1].shape()[1]});
    return Tensors{{},
                   dispatch_one(find_op("embedding_backward"), {in[0], each}, ScatterAttrs{0, in[1].shape()[0], 0, 1})};
  };
  return custom_function(std::string(kBag), {index, weight}, forward, backward)[0];
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

  if (sums_on_host(index, weight, o))
    return host_bags(index, weight, o.mode == BagMode::Mean ? 1.0 / static_cast<double>(index.size(1)) : 1.0);
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
