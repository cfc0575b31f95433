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
          multiply(block({rows_.begin + m.begin, rows_.begin + m.end}, {n, min(n + nc_, columns_.end)}, k, part_k));
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
  i64 packed_b_size() const { return kc_ * (m_parts_ > 1 ? nc_ : 2 * nr) + 2 * pack_slack<T>; }
  i64 sums_size() const { return keeps_sums_ ? rows_.size() * nc_ : 0; }
  i64 steps_size(const Operand<T>& x) const {
    return x.steps ? kept_k() * static_cast<i64>(sizeof(i64) / sizeof(T)) : 0;
  }
  void find_steps(Span k) {
    const i64 at = k_inside_ ? k.begin : 0;
    if (p_.a.steps) p_.a.steps(p_.a.view, k.begin, k.size(), steps_a_ + at);
    if (p_.b.steps) p_.b.steps(p_.b.view, k.begin, k.size(), steps_b_ + at);
  }

  /// Rows and columns of the product over steps of k, by panels of rows.
  struct Block {
    Span m, n, k;
    i64 part_k, panels;
    bool packs_b, in_shares;
    i64 share;  // steps of k
    const i64 *steps_a, *steps_b;
  };
  Block block(Span m, Span n, Span k, i64 part_k) const {
    Block x{m, n, k, part_k, ceil_div(m.size(), i64{block_rows}), m.begin == rows_.begin, false, 0, steps_a_, steps_b_};
    // B is packed where it is first used, a share of a panel after each panel of rows beside the one before it: the
    // micro-kernel has asked for that share by then, and for few lines at once, since they often meet in one set of a
    // cache.
    x.in_shares = x.packs_b && p_.b.place == nullptr;
    x.share = max(i64{64}, round_up(ceil_div(k.size(), x.panels), i64{16}));
    if (k_inside_) x.steps_a += k.begin, x.steps_b += k.begin;
    return x;
  }
  /// Calls f(row, rows, index) for panels of nearly equal height: a short last one would waste the registers.
  template <class F>
  TESSERA_HD static void each_panel(const Block& x, const F& f) {
    const i64 height = x.m.size() / x.panels, taller = x.m.size() % x.panels;
    for (i64 i = 0, row = 0; i < x.panels; ++i) {
      const i64 rows = height + (i < taller ? 1 : 0);
      f(row, rows, i);
      row += rows;
    }
  }
  /// Where the panel of B at column j is packed: among all of the block, or beside the one before it.
  T* panel(const Block& x, i64 j) const {
    const i64 at = j - x.n.begin;
    return packed_b_ + (m_parts_ > 1 ? at * x.k.size() : at / nr % 2 * (kc_ * nr + pack_slack<T>));
  }
  void pack_b(const Block& x, i64 j, i64 begin, i64 end) const {
    end = min(end, x.k.size());
    if (j >= x.n.end || begin >= end) return;
    const i64 columns = min(nr, x.n.end - j), width = round_up(columns, i64{V::lanes});
    p_.b.pack(p_.b.view, {j, columns, x.k.begin + begin, end - begin, x.steps_b + begin}, static_cast<int>(width),
              panel(x, j) + begin * width);
  }
  /// What is wanted behind panel i of rows and the panel of B at column j: the share of B that is packed after the next
  /// one, or a share of the next packed panel.
  Ahead ahead(const Block& x, i64 j, i64 i) const {
    if (x.in_shares && ++i == x.panels) j += nr, i = 0;
    j += nr;
    if (j >= x.n.end && !x.in_shares) j = x.n.begin;
    const i64 begin = i * x.share, count = min(x.share, x.k.size() - begin);
    if (j >= x.n.end || count <= 0) return {};
    if (!x.in_shares) return Ahead::rows(panel(x, j) + begin * nr, nr, count);
    if (p_.b.data == nullptr || p_.b.outer_stride != 1) return {};
    return Ahead::rows(p_.b.data + (x.k.begin + begin) * p_.b.k_stride + j, p_.b.k_stride, count);
  }

  void multiply(const Block& x) {
    const i64 depth = x.k.size();
    // In the order of packing, because packing spills over.
    T* const packed_a = packed_a_ + (keeps_a_ ? rows_.size() * x.k.begin + (x.m.begin - rows_.begin) * depth : 0);
    if (!a_in_place_ && depth > 0 && (!keeps_a_ || x.n.begin == columns_.begin)) {
      each_panel(x, [&](i64 row, i64 rows, i64) {
        p_.a.pack(p_.a.view, {x.m.begin + row, rows, x.k.begin, depth, x.steps_a}, static_cast<int>(rows),
                  packed_a + row * depth);
      });
    }
    for (i64 j = x.n.begin; j < x.n.end; j += nr) {
      const i64 columns = min(nr, x.n.end - j);
      const int vectors = static_cast<int>(ceil_div(columns, i64{V::lanes}));
      const i64 width = vectors * V::lanes;
      const int last = static_cast<int>(columns - (vectors - 1) * V::lanes);
      const auto each_block = [&](const auto& call) __attribute__((always_inline)) {
        each_panel(x, [&](i64 row, i64 rows, i64 i) {
          const Ahead next = ahead(x, j, i);
          finish({x.m.begin + row, x.m.begin + row + rows}, j, columns, x.part_k, last,
                 [&](T* c, i64 pitch, int lanes, bool add) {
                   call(row, static_cast<int>(rows), c, pitch, lanes, add, next);
                 });
          if (x.in_shares) pack_b(x, j + nr, i * x.share, (i + 1) * x.share);
        });
      };
      const T* place[block_vectors];
      if (p_.b.place && columns == nr && depth > 0 && p_.b.place(p_.b.view, j, vectors, place)) {
        each_block([&](i64 row, int rows, T* c, i64 pitch, int, bool add, const Ahead&) {
          p_.b.placed_kernel(rows)(depth, packed_a + row * depth, place, x.steps_b, c, pitch, add);
        });
        continue;
      }
      if (x.packs_b && (!x.in_shares || j == x.n.begin)) pack_b(x, j, 0, depth);
      const T* const b = panel(x, j);
      if constexpr (few_columns > 0) {
        if (a_in_place_) {
          const T* a = p_.a.data + x.m.begin * p_.a.outer_stride + x.k.begin;
          each_block([&](i64 row, int rows, T* c, i64 pitch, int lanes, bool add, const Ahead& next) {
            const auto run = pick_rows<V>(rows, vectors, Rows{});
            run(depth, a + row * p_.a.outer_stride, p_.a.outer_stride, b, width, c, pitch, lanes, add, next);
          });
          continue;
        }
      }
      each_block([&](i64 row, int rows, T* c, i64 pitch, int lanes, bool add, const Ahead& next) {
        const auto run = vectors == 1 ? pick_outer<V, 1>(rows, Rows{}) : pick_outer<V, 2>(rows, Rows{});
        run(depth, packed_a + row * depth, b, width, c, pitch, lanes, add, next);
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
