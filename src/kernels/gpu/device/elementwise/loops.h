// Loop nests over operands with strides: dims that lie together in every operand are merged, so that most nests have
// one or two; threads find their element by division, which is a product where there are fewer than 2^30.
#pragma once
#include "kernels/gpu/device/runtime/gpu.h"
#include "tile/arch/gpu/pack.h"

namespace tessera::gpu_kernels {

template <int Operands>
struct Nest {
  static constexpr int operands = Operands;
  static constexpr i64 most = i64{1} << 30;
  i64 total = 1;
  int rank = 0;
  i64 lengths[max_rank];
  tile::Inverse inverses[max_rank];
  i64 strides[Operands][max_rank];

  /// Adds a dim inside those that are there; dims of one element vanish, neighbours merge.
  void add(i64 length, const i64 (&step)[Operands]) {
    total *= length;
    if (length == 1) return;
    bool merges = rank > 0;
    for (int k = 0; k < Operands && merges; ++k) merges = strides[k][rank - 1] == step[k] * length;
    if (!merges) ++rank;
    lengths[rank - 1] = merges ? lengths[rank - 1] * length : length;
    if (0 < lengths[rank - 1] && lengths[rank - 1] < most) inverses[rank - 1] = tile::Inverse::of(lengths[rank - 1]);
    for (int k = 0; k < Operands; ++k) strides[k][rank - 1] = step[k];
  }

  /// Units of `width` neighbours in the last dim; those at the ends of rows may have fewer.
  i64 units(int width) const {
    return rank == 0 ? total : total / lengths[rank - 1] * tile::ceil_div<i64>(lengths[rank - 1], width);
  }

  /// Whether there are any, of neighbours in memory in every operand, or of one element that repeats.
  bool has_units(int width) const {
    bool has = rank > 0 && lengths[rank - 1] >= width;
    for (int k = 0; k < Operands && has; ++k) has = strides[k][rank - 1] == 0 || strides[k][rank - 1] == 1;
    return has;
  }
  /// Whether those of operand k begin at whole ones in memory. `bytes` is that of an element.
  bool is_whole(int k, int width, int bytes, const void* data) const {
    if (strides[k][rank - 1] == 0) return true;
    bool whole = reinterpret_cast<size_t>(data) % (width * bytes) == 0;
    for (int d = 0; d + 1 < rank && whole; ++d) whole = strides[k][d] % width == 0;
    return whole;
  }
  bool has_no_gaps(int k) const {
    i64 step = 1;
    for (int d = rank - 1; d >= 0 && strides[k][d] == step; --d) step *= lengths[d];
    return step == total;
  }
  /// Whether all can be taken at once from every operand, with none left over.
  bool takes_vectors(int width, int bytes, void* const (&data)[Operands]) const {
    bool takes = has_units(width) && lengths[rank - 1] % width == 0;
    for (int k = 0; k < Operands && takes; ++k) takes = is_whole(k, width, bytes, data[k]);
    return takes;
  }

  /// Offsets of element `index`, counted in row-major order; dim `rank - 1` is counted in units of `width`. Returns how
  /// many elements are left in its row.
  TESSERA_DEVICE i64 locate(i64 index, int width, i64 (&offset)[Operands]) const {
    i64 left = 1;
    for (int k = 0; k < Operands; ++k) offset[k] = 0;
    if (rank == 1) {
      for (int k = 0; k < Operands; ++k) offset[k] = index * width * strides[k][0];
      return lengths[0] - index * width;
    }
    if (rank == 2) {  // as most are: without a loop
      const i64 length = tile::ceil_div<i64>(lengths[1], width);
      const i64 row = width == 1 && total < most ? inverses[1](static_cast<int>(index)) : tile::quotient(index, length);
      const i64 at = (index - row * length) * width;
      for (int k = 0; k < Operands; ++k) offset[k] = row * strides[k][0] + at * strides[k][1];
      return lengths[1] - at;
    }
#pragma unroll 1  // divisions are long, and are not worth copies
    for (int d = rank - 1; d >= 0; --d) {
#if defined(__CUDA_ARCH__)
      asm volatile("" : "+r"(d));  // nvcc forgets the pragma in most callers, and makes seven copies
#endif
      const i64 length = d == rank - 1 ? tile::ceil_div<i64>(lengths[d], width) : lengths[d];
      i64 at = index;  // all that is left in the outermost dim
      if (d > 0 && total < most && (width == 1 || d < rank - 1)) {
        const int number = static_cast<int>(index), quotient = inverses[d](number);
        at = number - quotient * static_cast<int>(length);
        index = quotient;
      } else if (d > 0 && index <= 0xffffffffll && length <= 0xffffffffll) {
        const u32 quotient = static_cast<u32>(index) / static_cast<u32>(length);
        at = static_cast<u32>(index) - quotient * static_cast<u32>(length);
        index = quotient;
      } else if (d > 0) {
        at = index % length;
        index /= length;
      }
      if (d == rank - 1) at *= width, left = lengths[d] - at;
      for (int k = 0; k < Operands; ++k) offset[k] += at * strides[k][d];
    }
    return left;
  }
};

/// The nest of `rank` dims over operands with the strides of TensorArgs.
template <int Operands, class Lengths>
Nest<Operands> make_nest(int rank, const Lengths& lengths, const TensorArg* const (&operand)[Operands]) {
  Nest<Operands> nest;
  for (int d = 0; d < rank; ++d) {
    i64 step[Operands];
    for (int k = 0; k < Operands; ++k) step[k] = operand[k]->strides[d];
    nest.add(lengths[d], step);
  }
  return nest;
}

using tile::shifted, tile::store_at_once;

/// As many neighbours as there are left in a row of `length`, at most a pack: at once where they lie at a whole one,
/// else of 16 bytes from the two that hold them, if all of these is the row's.
template <class T, int width>
TESSERA_DEVICE Pack<T, width> load_unit(const T* from, bool whole, i64 left, [[maybe_unused]] i64 length = 0) {
  if (whole && left >= width) return *reinterpret_cast<const Pack<T, width>*>(from);
#if !defined(__HIP__)
  if constexpr (width * sizeof(T) == 16 && sizeof(T) > 1) {
    if (left >= 2 * width && left <= length - width) {
      const int shift = static_cast<int>(reinterpret_cast<size_t>(from) % 16);
      const auto* const packs = reinterpret_cast<const Pack<T, width>*>(reinterpret_cast<size_t>(from) - shift);
      return shifted(packs[0], packs[shift != 0], shift);
    }
  }
#endif
  Pack<T, width> unit{};
#pragma unroll
  for (int j = 0; j < width; ++j)
    if (j < left) unit.lane[j] = from[j];
  return unit;
}
template <class T, int width>
TESSERA_DEVICE void store_unit(T* to, const Pack<T, width>& unit, bool whole, i64 left) {
  if (whole && left >= width) return store_at_once(to, unit);
#pragma unroll
  for (int j = 0; j < width; ++j)
    if (j < left) to[j] = unit.lane[j];
}

/// Four neighbours of f32, f16 or bf16, as they lie in memory: converted when all operands are under way.
class RawFloats {
 public:
  /// Fewer where the row ends; or all, of which those from `next` on lie `gap` further.
  TESSERA_DEVICE void load(const void* p, Scalar type, i64 i, bool whole, i64 left, i64 next = 4, int gap = 0) {
    if (whole && left >= 4) return load(p, type, i);
    words_ = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const i64 at = i + j + (j < next ? 0 : gap);
      if (j < left && type == Scalar::f32) words_.lane[j] = static_cast<const u32*>(p)[at];
      else if (j < left) words_.lane[j / 2] |= static_cast<u32>(static_cast<const tile::u16*>(p)[at]) << j % 2 * 16;
    }
  }
  TESSERA_DEVICE void load(const void* p, Scalar type, i64 i) {
    if (type == Scalar::f32) {
      words_ = *reinterpret_cast<const Pack<u32, 4>*>(static_cast<const float*>(p) + i);
    } else {
      const auto halves = *reinterpret_cast<const Pack<u32, 2>*>(static_cast<const tile::u16*>(p) + i);
      words_ = {halves.lane[0], halves.lane[1], 0, 0};
    }
  }
  TESSERA_DEVICE float value(Scalar type, int i) const {
    if (type == Scalar::f32) return tile::bit_cast<float>(words_.lane[i]);
    const auto bits = static_cast<tile::u16>(words_.lane[i / 2] >> i % 2 * 16);
    return type == Scalar::f16 ? static_cast<float>(tile::bit_cast<f16>(bits))
                               : static_cast<float>(tile::bit_cast<bf16>(bits));
  }

 private:
  Pack<u32, 4> words_;
};

template <class T>
TESSERA_DEVICE void store_four(void* p, i64 i, const float (&x)[4], bool whole, i64 left) {
  Pack<T, 4> out;
  tile::unroll<4>([&](auto j) { out.lane[j] = tile::convert_element<T>(x[j]); });
  store_unit(static_cast<T*>(p) + i, out, whole, left);
}
TESSERA_DEVICE void store_four(void* p, Scalar type, i64 i, const float (&x)[4], bool whole = true, i64 left = 4) {
  if (type == Scalar::f32) store_four<float>(p, i, x, whole, left);
  else if (type == Scalar::f16) store_four<f16>(p, i, x, whole, left);
  else store_four<bf16>(p, i, x, whole, left);
}

}  // namespace tessera::gpu_kernels
