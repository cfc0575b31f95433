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
        __builtin_prefetch(p + columns - 1);
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
  using Rows = make_seq<block_rows>;
  static constexpr i64 nr = block_columns<T>;
  // Up to which packing the left side costs more than it saves; a taller block has more rows than registers for
  // pointers.
  static constexpr i64 few_columns = block_rows <= 8 ? 8 * nr : 0;

 public:
  BlockedTask(const Product<T>& product, Span rows, Span columns, const Config& config)
      : p_(product),
        rows_(rows),
        columns_(columns),
        k_parts_(max<i64>(1, ceil_div(product.extent.k, i64{config.tile_k}))),
        kc_(max<i64>(1, ceil_div(product.extent.k, k_parts_))),
        m_parts_(ceil_div(rows.size(), i64{max(config.tile_m, block_rows)})),
        mc_(part(rows.size(), m_parts_, 0, block_rows).size()),
        a_in_place_(product.a.data != nullptr && product.a.k_stride == 1 && columns.size() <= few_columns),
        // With all of A at hand and nothing to pack, k runs innermost: the sums of a panel never leave the first level.
        k_inside_(product.b.place != nullptr && k_parts_ > 1 && m_parts_ == 1 &&
                  mc_ * product.extent.k <= whole_elements<T>),
        nc_(k_inside_ ? nr : min(round_up(columns.size(), nr), round_up(i64{config.tile_n}, nr))),
        // Otherwise it is packed once for all columns as long as the third-level cache holds it.
        keeps_a_(k_inside_ || (nc_ < columns.size() && rows.size() * product.extent.k <= kept_elements<T>)),
        keeps_sums_(k_parts_ > 1 && product.epilogue.direct == nullptr) {}

  i64 scratch_bytes() const {
    return Workspace<T>::bytes(packed_a_size()) + Workspace<T>::bytes(packed_b_size()) +
           Workspace<T>::bytes(block_rows * nr) + Workspace<T>::bytes(sums_size()) +
           Workspace<T>::bytes(steps_size(p_.a)) + Workspace<T>::bytes(steps_size(p_.b));
  }

  void run(void* scratch) {
    Workspace<T> memory(scratch);
    packed_a_ = memory.take(packed_a_size());
    packed_b_ = memory.take(packed_b_size());
    block_ = memory.take(block_rows * nr);
    sums_ = memory.take(sums_size());
    steps_a_ = reinterpret_cast<i64*>(memory.take(steps_size(p_.a)));
    steps_b_ = reinterpret_cast<i64*>(memory.take(steps_size(p_.b)));
    for (i64 n = columns_.begin; n < columns_.end; n += nc_) {
      for (i64 part_k = 0; part_k < k_parts_; ++part_k) {
        const Span k = part(p_.extent.k, k_parts_, part_k);
        if (!k_inside_ || n == columns_.begin) find_steps(k);
        for (i64 part_m = 0; part_m < m_parts_; ++part_m) {
          const Span m = part(rows_.size(), m_parts_, part_m, block_rows);
          multiply({rows_.begin + m.begin, rows_.begin + m.end}, {n, min(n + nc_, columns_.end)}, k, part_k);
        }
      }
    }
  }

 private:
  /// Steps of k of which the tables of steps are kept.
  i64 kept_k() const { return k_inside_ ? p_.extent.k : kc_; }
  i64 packed_a_size() const {
    return a_in_place_ ? 0 : (keeps_a_ ? rows_.size() * p_.extent.k : mc_ * kc_) + pack_slack<T>;
  }
  i64 packed_b_size() const { return kc_ * (m_parts_ > 1 ? nc_ : nr) + pack_slack<T>; }
  i64 sums_size() const { return keeps_sums_ ? rows_.size() * nc_ : 0; }
  i64 steps_size(const Operand<T>& x) const {
    return x.steps ? kept_k() * static_cast<i64>(sizeof(i64) / sizeof(T)) : 0;
  }
  void find_steps(Span k) {
    const i64 at = k_inside_ ? k.begin : 0;
    if (p_.a.steps) p_.a.steps(p_.a.view, k.begin, k.size(), steps_a_ + at);
    if (p_.b.steps) p_.b.steps(p_.b.view, k.begin, k.size(), steps_b_ + at);
  }

  void multiply(Span m, Span n, Span k, i64 part_k) {
    // Panels of nearly equal height: a short last one would waste the registers.
    const i64 panels = ceil_div(m.size(), i64{block_rows}), height = m.size() / panels, taller = m.size() % panels;
    const auto each_panel = [&](auto f) __attribute__((always_inline)) {
      for (i64 i = 0, row = 0; i < panels; ++i) {
        const i64 rows = height + (i < taller ? 1 : 0);
        f(row, rows);
        row += rows;
      }
    };
    // In the order of packing, because packing spills over.
    T* const packed_a = packed_a_ + (keeps_a_ ? rows_.size() * k.begin + (m.begin - rows_.begin) * k.size() : 0);
    const i64 *const steps_a = steps_a_ + (k_inside_ ? k.begin : 0), *const steps_b =
                                                                         steps_b_ + (k_inside_ ? k.begin : 0);
    if (!a_in_place_ && k.size() > 0 && (!keeps_a_ || n.begin == columns_.begin)) {
      each_panel([&](i64 row, i64 rows) {
        p_.a.pack(p_.a.view, {m.begin + row, rows, k.begin, k.size(), steps_a}, static_cast<int>(rows),
                  packed_a + row * k.size());
      });
    }
    const bool first_rows = m.begin == rows_.begin;
    for (i64 j = n.begin; j < n.end; j += nr) {
      const i64 columns = min(nr, n.end - j);
      const int vectors = static_cast<int>(ceil_div(columns, i64{V::lanes}));
      const i64 width = vectors * V::lanes;
      const int last = static_cast<int>(columns - (vectors - 1) * V::lanes);
      const auto each_block = [&](const auto& call) __attribute__((always_inline)) {
        each_panel([&](i64 row, i64 rows) {
          finish(
              {m.begin + row, m.begin + row + rows}, j, columns, part_k, last,
              [&](T* c, i64 pitch, int lanes, bool add) { call(row, static_cast<int>(rows), c, pitch, lanes, add); });
        });
      };
      const T* place[block_vectors];
      if (p_.b.place && columns == nr && k.size() > 0 && p_.b.place(p_.b.view, j, vectors, place)) {
        each_block([&](i64 row, int rows, T* c, i64 pitch, int, bool add) {
          p_.b.placed_kernel(rows)(k.size(), packed_a + row * k.size(), place, steps_b, c, pitch, add);
        });
        continue;
      }
      T* b = packed_b_ + (m_parts_ > 1 ? (j - n.begin) * k.size() : 0);
      // Packed just before its first use, the panel is still in the first-level cache then.
      if (first_rows && k.size() > 0) {
        p_.b.pack(p_.b.view, {j, columns, k.begin, k.size(), steps_b}, static_cast<int>(width), b);
      }
      if constexpr (few_columns > 0) {
        if (a_in_place_) {
          const T* a = p_.a.data + m.begin * p_.a.outer_stride + k.begin;
          each_block([&](i64 row, int rows, T* c, i64 pitch, int lanes, bool add) {
            const auto run = pick_rows<V>(rows, vectors, Rows{});
            run(k.size(), a + row * p_.a.outer_stride, p_.a.outer_stride, b, width, c, pitch, lanes, add);
          });
          continue;
        }
      }
      each_block([&](i64 row, int rows, T* c, i64 pitch, int lanes, bool add) {
        const auto run = vectors == 1 ? pick_outer<V, 1>(rows, Rows{}) : pick_outer<V, 2>(rows, Rows{});
        run(k.size(), packed_a + row * k.size(), b, width, c, pitch, lanes, add);
      });
    }
  }

  /// Gives the micro-kernel its place to write, and passes what is complete to the epilogue.
  template <class Kernel>
  TESSERA_HD void finish(Span m, i64 n, i64 columns, i64 part_k, int last, const Kernel& kernel) {
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

  const Product<T>& p_;
  Span rows_, columns_;
  i64 k_parts_, kc_, m_parts_, mc_;
  bool a_in_place_, k_inside_;
  i64 nc_;
  bool keeps_a_, keeps_sums_;
  T *packed_a_ = nullptr, *packed_b_ = nullptr, *block_ = nullptr, *sums_ = nullptr;
  i64 *steps_a_ = nullptr, *steps_b_ = nullptr;
};

}  // namespace cpu
TESSERA_TILE_END
