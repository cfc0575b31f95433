// The CPU pipeline: loops round the micro-kernel after Goto and van de Geijn, "Anatomy of high-performance
// matrix multiplication" (2008). A and B arrive as Operands and the epilogue behind a pointer, so that this
// code exists once per element type.
#pragma once

#include "../../executor.h"
#include "../../expr.h"
#include "blocking.h"
#include "pack.h"

TESSERA_TILE_BEGIN
namespace cpu {

/// What becomes of a finished block of the product.
template <class T>
struct Epilogue {
  const void* sink;
  void (*apply)(const void* sink, const T* block, i64 pitch, i64 m, i64 n, i64 rows, i64 columns);
  void (*prefetch)(const void* sink, i64 m, i64 n, i64 rows, i64 columns);
  // Where the expression is no more than `store` or `accumulate` of the accumulator itself to rows of
  // contiguous elements of type T, the micro-kernels write there; null otherwise.
  T* direct;
  i64 pitch;
  bool add;
};

template <bool Unit, class T, class Sink>
TESSERA_HD void apply_rows(const Sink& sink, const T* block, i64 pitch, i64 m, i64 n, i64 rows, i64 columns) {
  using V = NativeVec<T>;
  if (columns == block_columns<T>) {
    for (i64 i = 0; i < rows; ++i, block += pitch) {
      const auto row = sink.template row<Unit>(m + i);
      unroll<block_vectors>([&](auto j) __attribute__((always_inline)) {
        row(load<V>(block + j * V::lanes), n + j * V::lanes, AllLanes{});
      });
    }
    return;
  }
  for (i64 i = 0; i < rows; ++i, block += pitch) {
    const auto row = sink.template row<Unit>(m + i);
    for (i64 j = 0; j < columns; j += V::lanes) {
      row(load<V>(block + j), n + j, static_cast<int>(min<i64>(V::lanes, columns - j)));
    }
  }
}

template <class T, class Sink>
__attribute__((noinline)) void apply_sink(const void* untyped, const T* block, i64 pitch, i64 m, i64 n, i64 rows,
                                          i64 columns) {
  const Sink& sink = *static_cast<const Sink*>(untyped);
  bool unit = true;
  sink.views([&](const auto& view) { unit = unit && tile::detail::has_unit_columns(view); });
  if (unit) return apply_rows<true>(sink, block, pitch, m, n, rows, columns);
  apply_rows<false>(sink, block, pitch, m, n, rows, columns);
}

/// Asks for the memory that the epilogue of a block will touch, while the block is still being computed.
template <class T, class Sink>
__attribute__((noinline)) void prefetch_sink(const void* untyped, i64 m, i64 n, i64 rows, i64 columns) {
  static_cast<const Sink*>(untyped)->views([&](const auto& view) {
    if constexpr (remove_cvref_t<decltype(view)>::is_strided) {
      if (view.stride(1) != 1) return;
      const auto* p = view.data + m * view.stride(0) + n;
      constexpr i64 line = 64 / sizeof *p;
      for (i64 i = 0; i < rows; ++i, p += view.stride(0)) {
        for (i64 j = 0; j < columns; j += line) __builtin_prefetch(p + j);
      }
    }
  });
}

template <class T, class Sink>
struct DirectStore {
  static void find(const Sink&, Epilogue<T>&) {}
};
template <class T, class D, bool Add>
struct DirectStore<T, Store<View<T, D>, Acc, Add>> {
  static void find(const Store<View<T, D>, Acc, Add>& sink, Epilogue<T>& epilogue) {
    if constexpr (View<T, D>::is_strided) {
      if (sink.view.stride(1) != 1) return;
      epilogue.direct = sink.view.data;
      epilogue.pitch = sink.view.stride(0);
      epilogue.add = Add;
    }
  }
};

template <class T, class Sink>
Epilogue<T> epilogue_of(const Sink& sink) {
  Epilogue<T> e{&sink, apply_sink<T, Sink>, prefetch_sink<T, Sink>, nullptr, 0, false};
  DirectStore<T, Sink>::find(sink, e);
  return e;
}

/// One product: C(m, n) = sum over k of A(m, k) B(k, n), handed to the epilogue.
template <class T>
struct Product {
  Extent extent;
  Operand<T> a, b;
  Epilogue<T> epilogue;
};

/// Memory of one task, carved from its thread's scratch.
template <class T>
class Workspace {
 public:
  TESSERA_HD explicit Workspace(void* memory) : next_(static_cast<char*>(memory)) {}
  TESSERA_HD T* take(i64 elements) {
    T* p = reinterpret_cast<T*>(next_);
    next_ += bytes(elements);
    return p;
  }
  static TESSERA_HD i64 bytes(i64 elements) { return round_up<i64>(elements * static_cast<i64>(sizeof(T)), 64) + 64; }

 private:
  char* next_;
};

/// The part rows x columns of a product, by one thread.
template <class T>
class BlockedTask {
  using V = NativeVec<T>;
  static constexpr i64 nr = block_columns<T>;

 public:
  BlockedTask(const Product<T>& product, Span rows, Span columns, const CacheBlocks& blocks)
      : p_(product),
        rows_(rows),
        columns_(columns),
        k_parts_(max<i64>(1, ceil_div(product.extent.k, blocks.kc))),
        kc_(ceil_div(product.extent.k, k_parts_)),
        m_parts_(ceil_div(rows.size(), blocks.mc)),
        mc_(ceil_div(rows.size(), m_parts_)),
        nc_(min(round_up(columns.size(), nr), round_up(blocks.nc, nr))),
        keeps_sums_(k_parts_ > 1 && product.epilogue.direct == nullptr) {}

  i64 scratch_bytes() const {
    return Workspace<T>::bytes(packed_a_size()) + Workspace<T>::bytes(packed_b_size()) +
           Workspace<T>::bytes(block_rows * nr) + (keeps_sums_ ? Workspace<T>::bytes(rows_.size() * nc_) : 0);
  }

  void run(void* scratch) {
    Workspace<T> memory(scratch);
    packed_a_ = memory.take(packed_a_size());
    packed_b_ = memory.take(packed_b_size());
    block_ = memory.take(block_rows * nr);
    sums_ = keeps_sums_ ? memory.take(rows_.size() * nc_) : nullptr;
    for (i64 n = columns_.begin; n < columns_.end; n += nc_) {
      for (i64 part_k = 0; part_k < k_parts_; ++part_k) {
        for (i64 part_m = 0; part_m < m_parts_; ++part_m) {
          const Span m = part(rows_.size(), m_parts_, part_m);
          multiply({rows_.begin + m.begin, rows_.begin + m.end}, {n, min(n + nc_, columns_.end)}, part_k);
        }
      }
    }
  }

 private:
  i64 packed_a_size() const { return mc_ * kc_ + pack_slack<T>; }
  i64 packed_b_size() const { return kc_ * (m_parts_ > 1 ? nc_ : nr) + pack_slack<T>; }

  void multiply(Span m, Span n, i64 part_k) {
    const Span k = part(p_.extent.k, k_parts_, part_k);
    // Panels of nearly equal height: a short last one would waste the registers.
    const i64 panels = ceil_div(m.size(), i64{block_rows}), height = m.size() / panels, taller = m.size() % panels;
    const auto each_panel = [&](auto f) __attribute__((always_inline)) {
      for (i64 i = 0, row = 0; i < panels; ++i) {
        const i64 rows = height + (i < taller ? 1 : 0);
        f(row, rows);
        row += rows;
      }
    };
    if (k.size() > 0) {
      each_panel([&](i64 row, i64 rows) {
        p_.a.pack(p_.a.view, {m.begin + row, rows, k.begin, k.size()}, static_cast<int>(rows),
                  packed_a_ + row * k.size());
      });
    }
    const bool first_rows = m.begin == rows_.begin;
    for (i64 j = n.begin; j < n.end; j += nr) {
      const i64 columns = min(nr, n.end - j);
      const int vectors = static_cast<int>(ceil_div(columns, i64{V::lanes}));
      const i64 width = vectors * V::lanes;
      T* b = packed_b_ + (m_parts_ > 1 ? (j - n.begin) * k.size() : 0);
      // Packed just before its first use, the panel is still in the first-level cache then.
      if (first_rows && k.size() > 0) {
        p_.b.pack(p_.b.view, {j, columns, k.begin, k.size()}, static_cast<int>(width), b);
      }
      const int last = static_cast<int>(columns - (vectors - 1) * V::lanes);
      each_panel([&](i64 row, i64 rows) {
        const T* a = packed_a_ + row * k.size();
        const OuterKernel<T> run = kernel(static_cast<int>(rows), vectors);
        finish(
            {m.begin + row, m.begin + row + rows}, j, columns, part_k,
            [&](T* c, i64 pitch, int lanes, bool add) { run(k.size(), a, b, width, c, pitch, lanes, add); }, last);
      });
    }
  }

  /// Gives the micro-kernel its place to write, and passes what is complete to the epilogue.
  template <class Kernel>
  TESSERA_HD void finish(Span m, i64 n, i64 columns, i64 part_k, const Kernel& kernel, int last) {
    const Epilogue<T>& e = p_.epilogue;
    if (e.direct != nullptr) {
      kernel(e.direct + m.begin * e.pitch + n, e.pitch, last, e.add || part_k > 0);
      return;
    }
    T* block = block_;
    i64 pitch = nr;
    if (keeps_sums_) {
      pitch = nc_;
      block = sums_ + (m.begin - rows_.begin) * pitch + (n - columns_.begin) % nc_;
    }
    if (part_k == k_parts_ - 1) e.prefetch(e.sink, m.begin, n, m.size(), columns);
    kernel(block, pitch, V::lanes, part_k > 0);
    if (part_k == k_parts_ - 1) e.apply(e.sink, block, pitch, m.begin, n, m.size(), columns);
  }

  static OuterKernel<T> kernel(int rows, int vectors) {
    using Rows = make_seq<block_rows>;
    return vectors == 1 ? pick_outer<V, 1>(rows, Rows{}) : pick_outer<V, 2>(rows, Rows{});
  }

  const Product<T>& p_;
  Span rows_, columns_;
  i64 k_parts_, kc_, m_parts_, mc_, nc_;
  bool keeps_sums_;
  T *packed_a_ = nullptr, *packed_b_ = nullptr, *block_ = nullptr, *sums_ = nullptr;
};

}  // namespace cpu
TESSERA_TILE_END
