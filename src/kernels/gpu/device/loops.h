// Loop nests over operands with strides: dims that lie together in every operand are merged, so that most nests have
// one or two; threads find their element by division.
#pragma once
#include "gpu.h"

namespace tessera::gpu_kernels {

template <int Operands>
struct Nest {
  static constexpr int operands = Operands;
  i64 total = 1;
  int rank = 0;
  i64 lengths[max_rank];
  i64 strides[Operands][max_rank];

  /// Adds a dim inside those that are there; dims of one element vanish, neighbours merge.
  void add(i64 length, const i64 (&step)[Operands]) {
    total *= length;
    if (length == 1) return;
    bool merges = rank > 0;
    for (int k = 0; k < Operands && merges; ++k) merges = strides[k][rank - 1] == step[k] * length;
    if (!merges) ++rank;
    lengths[rank - 1] = merges ? lengths[rank - 1] * length : length;
    for (int k = 0; k < Operands; ++k) strides[k][rank - 1] = step[k];
  }

  /// Whether `width` neighbouring elements can be taken at once from every operand whose last stride is 1; the others
  /// must repeat there. `bytes` is that of an element.
  bool takes_vectors(int width, int bytes, void* const (&data)[Operands]) const {
    if (rank == 0 || lengths[rank - 1] % width != 0) return false;
    for (int k = 0; k < Operands; ++k) {
      const i64 last = strides[k][rank - 1];
      if (last == 0) continue;
      if (last != 1 || reinterpret_cast<size_t>(data[k]) % (width * bytes) != 0) return false;
      for (int d = 0; d + 1 < rank; ++d)
        if (strides[k][d] % width != 0) return false;
    }
    return true;
  }

  /// Offsets of element `index`, counted in row-major order; dim `rank - 1` is counted in units of `width`.
  TESSERA_DEVICE void locate(i64 index, int width, i64 (&offset)[Operands]) const {
    for (int k = 0; k < Operands; ++k) offset[k] = 0;
    if (rank == 1) {
      for (int k = 0; k < Operands; ++k) offset[k] = index * width * strides[k][0];
      return;
    }
#pragma unroll 1  // divisions are long, and are not worth copies
    for (int d = rank - 1; d >= 0; --d) {
      const i64 length = d == rank - 1 ? lengths[d] / width : lengths[d];
      i64 at;
      if (index <= 0xffffffffll && length <= 0xffffffffll) {
        const u32 quotient = static_cast<u32>(index) / static_cast<u32>(length);
        at = static_cast<u32>(index) - quotient * static_cast<u32>(length);
        index = quotient;
      } else {
        at = index % length;
        index /= length;
      }
      if (d == rank - 1) at *= width;
      for (int k = 0; k < Operands; ++k) offset[k] += at * strides[k][d];
    }
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

/// Stores a pack of 16 bytes at once: nvcc merges such a store with the single ones of another path, element by
/// element.
template <class P>
TESSERA_DEVICE void store_at_once(void* to, const P& pack) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(P) == 16) {
    const auto w = tile::bit_cast<tile::Array<u32, 4>>(pack);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
    return;
  }
#endif
  *static_cast<P*>(to) = pack;
}

/// Four neighbours of f32, f16 or bf16, as they lie in memory: converted when all operands are under way.
class RawFloats {
 public:
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
TESSERA_DEVICE void store_four(void* p, i64 i, const float (&x)[4]) {
  Pack<T, 4> out;
  tile::unroll<4>([&](auto j) { out.lane[j] = tile::convert_element<T>(x[j]); });
  *reinterpret_cast<Pack<T, 4>*>(static_cast<T*>(p) + i) = out;
}
TESSERA_DEVICE void store_four(void* p, Scalar type, i64 i, const float (&x)[4]) {
  if (type == Scalar::f32) store_four<float>(p, i, x);
  else if (type == Scalar::f16) store_four<f16>(p, i, x);
  else store_four<bf16>(p, i, x);
}

}  // namespace tessera::gpu_kernels
