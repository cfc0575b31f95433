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
extern "C" TESSERA_KERNEL(256) void sparse_volumes(const T* x, T* y, Volume m, i64 total) {
  const i64 i = block_in_grid() * 256 + thread_in_block();
  if (i >= total) return;
  const auto& [outer, middle, inner] = m.of;
  const i64 volume = i / (outer.count * middle.count * inner.count);
  const int place = int(i - volume * (outer.count * middle.count * inner.count)), row = place / inner.count;
  const int a = row / middle.count, b = row - a * middle.count, c = place - row * inner.count;
  const T* const from = x + volume * (outer.length * middle.length * inner.length);
  T sum(0);
  for (int s = outer.begins[a]; s < outer.begins[a + 1]; ++s)
    for (int t = middle.begins[b]; t < middle.begins[b + 1]; ++t) {
      const T* const line = from + (outer.places[s] * middle.length + middle.places[t]) * inner.length;
      T part(0);
      for (int u = inner.begins[c]; u < inner.begins[c + 1]; ++u) part += inner.weights[u] * line[inner.places[u]];
      sum += outer.weights[s] * middle.weights[t] * part;
    }
  y[i] = sum;
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
    if (y.numel() > 0) volumes_kernel.launch(x, (y.numel() + 255) / 256, from, y.data_ptr(), rows, y.numel());
    return Tensors{y};
  };
  const auto backward = [=](const Tensors&, const Tensors&, const Tensors& grads) {
    return Tensors{sparse_slopes(grads[0], all)};
  };
  return custom_function("sparse_volumes", {given}, forward, backward)[0];
}

}  // namespace tessera
