#include "ops/sparse_volumes.h"

#include <array>
#include <cstdint>
#include <vector>

#include "ops/on_card.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

CardKernel volumes_kernel("sparse_volumes", R"(
struct Rows {
  const int *begins, *places;
  const T* weights;
  int count, length;
};
struct Volume {
  Rows of[3];
};
// The entries of a row, if there are at most two.
struct Pair {
  int count, place[2];
  T weight[2];
  TESSERA_DEVICE Pair(const Rows& rows, int row) : count(rows.begins[row + 1] - rows.begins[row]) {
    const int begin = rows.begins[row];
    unroll<2>([&](auto e) {
      place[e] = e < count ? rows.places[begin + e] : 0;
      weight[e] = e < count ? rows.weights[begin + e] : T(0);
    });
  }
};

// A thread has four results that lie one behind the other along the first dim: they share entries of the other two,
// and what these make of a plane of x is kept for the next result.
extern "C" TESSERA_KERNEL(256) void sparse_volumes(const T* x, T* y, Volume m, i64 total) {
  const i64 i = block_in_grid() * 256 + thread_in_block();
  if (i >= total) return;
  const Rows &outer = m.of[0], &middle = m.of[1], &inner = m.of[2];
  const i64 line = quotient(i, inner.count), plane = quotient(line, middle.count);
  const i64 groups = (outer.count + 3) / 4, volume = quotient(plane, groups);
  const int b = int(line - plane * middle.count), c = int(i - line * inner.count), first = int(plane - volume * groups) * 4;
  const Pair down(middle, b), across(inner, c);
  const bool are_short = down.count <= 2 && across.count <= 2;
  const T* const from = x + volume * (outer.length * middle.length * inner.length);
  const auto of_plane = [&](int place) {
    const T* const at = from + place * middle.length * inner.length;
    T sum(0);
    if (are_short) {
      unroll<2>([&](auto t) {
        if (t >= down.count) return;
        T part(0);
        unroll<2>([&](auto u) {
          if (u < across.count) part += across.weight[u] * at[down.place[t] * inner.length + across.place[u]];
        });
        sum += down.weight[t] * part;
      });
      return sum;
    }
    for (int t = middle.begins[b]; t < middle.begins[b + 1]; ++t) {
      T part(0);
      for (int u = inner.begins[c]; u < inner.begins[c + 1]; ++u)
        part += inner.weights[u] * at[middle.places[t] * inner.length + inner.places[u]];
      sum += middle.weights[t] * part;
    }
    return sum;
  };
  int known[2] = {-1, -1};
  T value[2] = {};
  T* const to = y + ((volume * outer.count + first) * middle.count + b) * inner.count + c;
  for (int k = 0; k < 4 && first + k < outer.count; ++k) {
    T sum(0);
    for (int s = outer.begins[first + k]; s < outer.begins[first + k + 1]; ++s) {
      const int place = outer.places[s];
      if (place != known[0] && place != known[1]) {
        known[0] = known[1], value[0] = value[1];
        known[1] = place, value[1] = of_plane(place);
      }
      sum += outer.weights[s] * (place == known[1] ? value[1] : value[0]);
    }
    to[i64{k} * middle.count * inner.count] = sum;
  }
}
)");

struct CardRows {  // Rows of the text
  const void *begins, *places, *weights;
  int count, length;
};

int row_count(const Tensor& begins) { return static_cast<int>(begins.numel() - 1); }

}  // namespace

bool card_takes_volumes(const Tensor& x) {
  if (!on_card(x) || (x.dtype() != Float32 && x.dtype() != Float64) || x.dim() < 3) return false;
  return x.size(-1) * x.size(-2) * x.size(-3) <= INT32_MAX;
}

Tensor sparse_volumes(const Tensor& given, std::span<const SparseDim> dims) {
  const std::vector<SparseDim> all(dims.begin(), dims.end());
  const auto forward = [=](const Tensors& in) {
    const Tensor x = contiguous(in[0]);
    Shape shape = x.shape();
    std::array<CardRows, 3> rows{};
    for (size_t d = 0; d < 3; ++d) {
      const SparseMatrix& m = all[d].matrix;
      rows[d] = {m.begins.data_ptr(), m.places.data_ptr(), m.weights.data_ptr(), row_count(m.begins),
                 row_count(m.begins_back)};
      shape[shape.size() - 3 + d] = rows[d].count;
    }
    const Tensor y = empty(shape, x.dtype(), x.device());
    const void* const from = x.data_ptr();
    const int64_t threads = rows[0].count == 0 ? 0 : y.numel() / rows[0].count * ((rows[0].count + 3) / 4);
    if (threads > 0) volumes_kernel.launch(x, (threads + 255) / 256, from, y.data_ptr(), rows, threads);
    return Tensors{y};
  };
  const auto backward = [=](const Tensors&, const Tensors&, const Tensors& grads) {
    return Tensors{sparse_slopes(grads[0], all)};
  };
  return custom_function("sparse_volumes", {given}, forward, backward)[0];
}

}  // namespace tessera
