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

#if defined(__CUDACC_RTC__)  // parses this code, runs none of it, and has none of the host's builtins
void prefetch(const char* at);
void store_released(i64& to, i64 value);
i64 fetch_add(i64& to, i64 more);
#else
TESSERA_HD void prefetch(const char* at) { __builtin_prefetch(at); }
inline void store_released(i64& to, i64 value) { __atomic_store_n(&to, value, __ATOMIC_RELEASE); }
inline i64 fetch_add(i64& to, i64 more) { return __atomic_fetch_add(&to, more, __ATOMIC_ACQ_REL); }
#endif

/// Asks for `count` stretches of memory of so many bytes, `pitch` bytes apart.
TESSERA_HD void ask_for(const char* first, i64 pitch, i64 count, i64 bytes) {
  for (i64 i = 0; i < count; ++i, first += pitch) {
    for (i64 j = 0; j < bytes - 1; j += 64) prefetch(first + j);
    prefetch(first + bytes - 1);
  }
}

/// Rows of a matrix that an epilogue touches, as distances in bytes.
struct Touched {
  const char* data;
  i64 row, element;
};

/// What becomes of a finished block of the product.
template <class T>
struct Epilogue {
  const void* sink;
  void (*apply)(const void* sink, const T* block, i64 pitch, i64 m, i64 n, i64 rows, i64 columns);
  // Where the expression is no more than `store` or `accumulate` of the accumulator itself to rows of
  // contiguous elements of type T, the micro-kernels write there; null otherwise.
  T* direct = nullptr;
  i64 pitch = 0;
  bool add = false;
  static constexpr int most_touched = 4;
  int touched_count = 0;
  Touched touched[most_touched] = {};

  /// Asks for the memory that the epilogue of a block will touch, while the block is still being computed.
  TESSERA_HD void prefetch(i64 m, i64 n, i64 rows, i64 columns) const {
    for (int v = 0; v < touched_count; ++v) {
      const auto& [data, row, element] = touched[v];
      ask_for(data + m * row + n * element, row, rows, columns * element);
    }
  }
};

/// Any rows and columns of any views.
template <class T, class Sink>
__attribute__((noinline)) void apply_sink(const void* untyped, const T* block, i64 pitch, i64 m, i64 n, i64 rows,
                                          i64 columns) {
  using V = NativeVec<T>;
  for (i64 i = 0; i < rows; ++i, block += pitch) {
    const auto row = static_cast<const Sink*>(untyped)->row(m + i);
    for (i64 j = 0; j < columns; j += V::lanes) {
      row(load<V>(block + j), n + j, static_cast<int>(min<i64>(V::lanes, columns - j)));
    }
  }
}

/// The same where columns of all views are contiguous, and mostly as many as a register block has.
template <class T, class Sink>
__attribute__((noinline)) void apply_blocks(const void* untyped, const T* block, i64 pitch, i64 m, i64 n, i64 rows,
                                            i64 columns) {
  using V = NativeVec<T>;
  if (columns != block_columns<T>) return apply_sink<T, Sink>(untyped, block, pitch, m, n, rows, columns);
  const Sink sink = *static_cast<const Sink*>(untyped);  // a copy, which no store can reach
  for (i64 i = 0; i < rows; ++i, block += pitch) {
    const auto row = sink.template row<true>(m + i);
    unroll<block_vectors>([&](auto j) __attribute__((always_inline)) {
      row(load<V>(block + j * V::lanes), n + j * V::lanes, AllLanes{});
    });
  }
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
  Epilogue<T> e{&sink, apply_blocks<T, Sink>};
  sink.views([&](const auto& view) {
    if (!tile::detail::has_unit_columns(view)) e.apply = apply_sink<T, Sink>;
    if constexpr (remove_cvref_t<decltype(view)>::is_strided) {
      constexpr i64 size = sizeof *view.data;
      if (view.stride(1) != 1 || view.stride(0) == 0 || e.touched_count == e.most_touched) return;
      e.touched[e.touched_count++] = {reinterpret_cast<const char*>(view.data), view.stride(0) * size, size};
    }
  });
  DirectStore<T, Sink>::find(sink, e);
  return e;
}

/// One product: C(m, n) = sum over k of A(m, k) B(k, n), handed to the epilogue.
template <class T>
struct Product {
  Extent extent;
  Operand<T> a, b;
  Epilogue<T> epilogue;
  bool rows_move = true;  // whether any task may compute any row: not where each adds up its own columns
};

/// Panels of rows that wait to be computed: each goes to who asks first, once all earlier sums of its task are there.
class alignas(64) PanelCursor {
 public:
  void close() { next_ = i64{1} << 62; }
  void open() { store_released(next_, 0); }
  i64 take(i64 panels) { return fetch_add(next_, panels); }

 private:
  i64 next_;
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

/// The part rows x columns of a product over some steps of k, by one thread. It takes the columns by blocks: the packed
/// part of B that belongs to one stays in the second-level cache while panels of A stream past it.
template <class T>
class BlockedTask {
  using V = NativeVec<T>;
  static constexpr i64 nr = block_columns<T>, line = 64 / static_cast<i64>(sizeof(T));
  // Up to which packing the left side costs more than it saves; a taller block has more rows than registers for
  // pointers.
  static constexpr i64 few_columns = block_rows <= 8 ? 8 * nr : 0;

 public:
  BlockedTask(const Product<T>& product, Span rows, Span columns, Span steps, bool adds, const Config& config)
      : p_(product),
        rows_(rows),
        columns_(columns),
        depth_(steps),
        adds_(adds),
        m_parts_(ceil_div(rows.size(), i64{max(config.tile_m, block_rows)})),
        n_parts_(ceil_div(columns.size(), round_up(i64{config.tile_n}, nr))),
        k_parts_(max<i64>(1, ceil_div(steps.size(), i64{config.tile_k}))),
        mc_(part(rows.size(), m_parts_, 0, block_rows).size()),
        nc_(round_up(part(columns.size(), n_parts_, 0, nr).size(), nr)),
        kc_(max<i64>(1, ceil_div(steps.size(), k_parts_))),
        a_in_place_(product.a.data != nullptr && product.a.k_stride == 1 && columns.size() <= few_columns),
        keeps_sums_(k_parts_ > 1 && product.epilogue.direct == nullptr) {}

  i64 scratch_bytes() const {
    return Workspace<T>::bytes(packed_a_size()) + Workspace<T>::bytes(2 * packed_b_size()) +
           Workspace<T>::bytes(block_rows * nr) + Workspace<T>::bytes(sums_size()) +
           Workspace<T>::bytes(steps_size(p_.a)) + Workspace<T>::bytes(steps_size(p_.b));
  }

  /// With a cursor, others may take rows of the last block.
  void run(void* scratch, PanelCursor* cursor) {
    Workspace<T> memory(scratch);
    packed_a_ = memory.take(packed_a_size());
    packed_b_ = memory.take(2 * packed_b_size());
    block_ = memory.take(block_rows * nr);
    sums_ = memory.take(sums_size());
    steps_a_ = reinterpret_cast<i64*>(memory.take(steps_size(p_.a)));
    steps_b_ = reinterpret_cast<i64*>(memory.take(steps_size(p_.b)));
    if (p_.a.steps) p_.a.steps(p_.a.view, 0, p_.extent.k, steps_a_);
    if (p_.b.steps) p_.b.steps(p_.b.view, 0, p_.extent.k, steps_b_);
    const i64 count = m_parts_ * n_parts_ * k_parts_;
    if (packs_b()) {
      const Block first = block(0);
      const i64 all = all_shares(first), step = by_rows() ? unit : all;  // along rows of B, which are lines of memory
      for (i64 i = 0; i < all; i += step) pack_b(first, i, i + step);
    }
    for (i64 i = 0; i + 1 < count; ++i) multiply(block(i), block(i + 1), nullptr);
    const bool shares = cursor != nullptr && m_parts_ == 1 && !keeps_sums_ && p_.rows_move;
    if (shares) cursor->open();
    multiply(block(count - 1), {}, shares ? cursor : nullptr);
  }
  /// After run(): takes rows of a task with the same columns, so that both end together. Their B is packed here, too.
  void help(Span rows, PanelCursor& cursor) {
    Block x = block(m_parts_ * n_parts_ * k_parts_ - 1);
    x.m = rows;
    x.first_columns = true;  // as far as packing A goes
    multiply(x, {}, &cursor);
  }

 private:
  i64 packed_a_size() const {
    return a_in_place_ ? 0 : kept_panels() * (block_rows * depth_.size() + k_parts_ * pack_slack<T>);
  }
  /// Panels of A that share lines of memory are packed together, a few steps of k at a time.
  /// Of few panels others may want some. The same for all tasks of a product, which take each other's.
  i64 panels_together() const {
    if (p_.a.data == nullptr || p_.a.outer_stride != 1) return 1;
    return p_.extent.m > 96 * block_rows ? 16 : 8;
  }
  /// Places of packed panels of A: one for each where later columns need them, otherwise they are used again and again.
  i64 kept_panels() const {
    return n_parts_ == 1 ? panels_together() : max(panels_together(), ceil_div(mc_, i64{block_rows}));
  }
  // Slack behind every panel also keeps the same rows of all panels out of one set of the first level.
  i64 panel_size() const { return kc_ * nr + pack_slack<T>; }
  i64 packed_b_size() const { return p_.b.panels ? 0 : nc_ / nr * panel_size(); }
  i64 sums_size() const { return keeps_sums_ ? mc_ * nc_ : 0; }
  i64 steps_size(const Operand<T>& x) const {
    return x.steps ? p_.extent.k * static_cast<i64>(sizeof(i64) / sizeof(T)) : 0;
  }

  /// Rows and columns of the product over steps of k.
  struct Block {
    Span m = {0, 0}, n = {0, 0}, k = {0, 0};
    i64 k_part = 0;
    bool first_columns = false;
    T* packed_b = nullptr;  // of two places, in turns
  };
  /// The index-th in the order of work.
  Block block(i64 index) const {
    const i64 k = index % k_parts_, n = index / k_parts_ % n_parts_, m = index / (k_parts_ * n_parts_);
    return {
        part(rows_, m_parts_, m, block_rows),   part(columns_, n_parts_, n, nr), part(depth_, k_parts_, k), k, n == 0,
        packed_b_ + index % 2 * packed_b_size()};
  }
  T* panel(const Block& x, i64 column) const { return x.packed_b + (column - x.n.begin) / nr * panel_size(); }
  /// The same to be read.
  const T* right(const Block& x, i64 column) const {
    if (p_.b.panels == nullptr) return panel(x, column);
    const i64 width = panel_width<T>(p_.extent.n, column);
    return p_.b.panels + panel_offset(p_.extent.k, column) + x.k.begin * width;
  }
  bool packs_b() const { return p_.b.place == nullptr && p_.b.panels == nullptr; }

  /// B is packed in shares: steps of k of all panels where its rows are contiguous, otherwise of one panel after the
  /// other, each rounded up to whole units.
  static constexpr i64 unit = 16;
  bool by_rows() const { return p_.b.data != nullptr && p_.b.outer_stride == 1; }
  i64 all_shares(const Block& x) const {
    const i64 depth = round_up(x.k.size(), unit);
    return by_rows() ? depth : ceil_div(x.n.size(), nr) * depth;
  }
  void pack_panel(const Block& x, i64 j, i64 begin, i64 end) const {
    const i64 columns = min(nr, x.n.end - j), width = round_up(columns, i64{V::lanes}), k = x.k.begin + begin;
    end = min(end, x.k.size());
    p_.b.pack(p_.b.view, {j, columns, k, end - begin, steps_b_ + k}, static_cast<int>(width),
              panel(x, j) + begin * width);
  }
  void pack_b(const Block& x, i64 begin, i64 end) const {
    end = min(end, all_shares(x));
    if (by_rows()) {
      for (i64 j = x.n.begin; j < x.n.end && begin < end; j += nr) pack_panel(x, j, begin, end);
      return;
    }
    const i64 depth = round_up(x.k.size(), unit);
    for (i64 length; begin < end; begin += length) {
      const i64 k = begin % depth;
      length = min(end - begin, depth - k);
      pack_panel(x, x.n.begin + begin / depth * nr, k, k + length);
    }
  }
  /// Part of what pack_b(x, begin, end) will read, if that is lines of memory: the index-th panel's, or unit's.
  Ahead ahead(const Block& x, i64 index, i64 begin, i64 end) const {
    end = min(end, all_shares(x));
    const bool rows = by_rows();
    if (!rows) begin += index * unit, index = 0;
    if (p_.b.data == nullptr || begin >= end) return {};
    const i64 depth = round_up(x.k.size(), unit), k = rows ? begin : begin % depth;
    const i64 j = x.n.begin + (rows ? index : begin / depth) * nr, columns = min(nr, x.n.end - j);
    if (columns <= 0) return {};
    const T* first = p_.b.data + (x.k.begin + k) * p_.b.k_stride + j * p_.b.outer_stride;
    return rows ? Ahead::rows(first, p_.b.k_stride, min(end, x.k.size()) - k)
                : Ahead::rows(first, p_.b.outer_stride, columns);
  }

  /// The place of the index-th panel of A.
  T* panel_a(const Block& x, i64 index) const {
    const i64 kept = kept_panels(), before = block_rows * (x.k.begin - depth_.begin) + x.k_part * pack_slack<T>;
    return packed_a_ + kept * before + index % kept * (block_rows * x.k.size() + pack_slack<T>);
  }
  /// Packs the index-th of so many panels, and those that go with it: a stretch while the next is on its way.
  void pack_a(const Block& x, i64 index, i64 panels) const {
    const i64 together = panels_together(), last = min(panels, index + together);
    if (index % together != 0) return;
    const i64 stretch = together > 1 ? unit : x.k.size();
    const i64 first = part(x.m, panels, index).begin, rows = part(x.m, panels, last - 1).end - first;
    for (i64 begin = x.k.begin, depth; begin < x.k.end; begin += depth) {
      depth = min(stretch, x.k.end - begin);
      if (together > 1) {
        const i64 size = sizeof(T), pitch = p_.a.k_stride, next = begin + depth;
        ask_for(reinterpret_cast<const char*>(p_.a.data + next * pitch + first), pitch * size,
                min(stretch, x.k.end - next), rows * size);
      }
      for (i64 i = index; i < last; ++i) {
        const Span m = part(x.m, panels, i);
        p_.a.pack(p_.a.view, {m.begin, m.size(), begin, depth, steps_a_ + begin}, static_cast<int>(m.size()),
                  panel_a(x, i) + (begin - x.k.begin) * m.size());
      }
    }
  }
  /// The index-th row behind m, which the next panel will have, if it is lines of memory.
  Ahead row_ahead(const Block& x, Span m, i64 index) const {
    if (p_.a.data == nullptr || p_.a.k_stride != 1 || index >= block_rows || m.end + index >= x.m.end) return {};
    const T* first = p_.a.data + (m.end + index) * p_.a.outer_stride + x.k.begin;
    return Ahead::rows(first, line, ceil_div(x.k.size(), line));
  }

  /// Computes x, and packs B for `next` on the way: a share after every panel of rows, when the micro-kernels of that
  /// panel have asked for its lines. While A is packed to be kept they ask for its next rows instead.
  void multiply(const Block& x, const Block& next, PanelCursor* cursor) {
    const i64 depth = x.k.size(), panels = ceil_div(x.m.size(), i64{block_rows});
    const i64 share = max(by_rows() ? unit : 4 * unit, round_up(ceil_div(all_shares(next), panels), unit));
    const bool packs_a = !a_in_place_ && x.first_columns && depth > 0;
    // Kept panels lie in the third level: while one is in use, kernels ask for the next, a share each.
    const bool keeps_a = !a_in_place_ && n_parts_ > 1;
    const i64 stride = ceil_div(round_steps * block_rows * static_cast<i64>(sizeof(T)), ceil_div(x.n.size(), nr));
    const T* place[block_vectors];
    bool placed = false, ready = p_.b.place == nullptr;
    for (i64 i = 0, taken = 0;; ++i) {
      if (cursor != nullptr && i == taken) {
        i = cursor->take(panels_together());
        taken = i + panels_together();
      }
      if (i >= panels) return;
      if (!ready) {  // not before it is known that a row is left
        placed = x.n.size() == nr && depth > 0 && p_.b.place(p_.b.view, x.n.begin, block_vectors, place);
        if (!placed) pack_b(x, 0, all_shares(x));
        ready = true;
      }
      const Span m = part(x.m, panels, i);  // of nearly equal height: a short last one would waste the registers
      const int rows = static_cast<int>(m.size());
      T* const a = panel_a(x, i);
      if (packs_a) pack_a(x, i, panels);
      i64 first = x.n.begin;
      if (p_.b.panels != nullptr && rows <= 3 && k_parts_ == 1 && !a_in_place_) first = multiply_panels(x, m, a);
      for (i64 j = first; j < x.n.end; j += nr) {
        const i64 index = (j - x.n.begin) / nr;
        Ahead soon = keeps_a && packs_a ? Ahead{} : ahead(next, index, i * share, (i + 1) * share);
        if (soon.at == nullptr && (packs_a || a_in_place_)) soon = row_ahead(x, m, index);
        if (keeps_a) {
          soon.stretch = reinterpret_cast<const char*>(a + rows * depth) + index * (depth / round_steps) * stride;
          soon.stride = stride;
        }
        finish(x, m, j, [&](T* c, i64 pitch, int vectors, int last, bool add) {
          if (placed) return p_.b.placed_kernel(rows)(depth, a, place, steps_b_ + x.k.begin, c, pitch, add);
          const T* const b = right(x, j);
          const i64 width = vectors * V::lanes;
          if constexpr (few_columns > 0) {
            if (a_in_place_) {
              const i64 distance = p_.a.outer_stride;
              const auto run = vectors == 1 ? pick_rows<V, 1>(rows) : pick_rows<V, 2>(rows);
              return run(depth, p_.a.data + m.begin * distance + x.k.begin, distance, b, width, c, pitch, last, add,
                         soon);
            }
          }
          const auto run = vectors == 1 ? pick_outer<V, 1>(rows) : pick_outer<V, 2>(rows);
          run(depth, a, b, width, c, pitch, last, add, soon);
        });
      }
      if (packs_b()) pack_b(next, i * share, (i + 1) * share);
    }
  }

  /// Up to three rows of all panels of x that go together. Returns the first column that is left.
  i64 multiply_panels(const Block& x, Span m, const T* a) const {
    const int rows = static_cast<int>(m.size());
    const i64 columns = panels_at_once(rows) * nr, distance = panel_offset(p_.extent.k, nr);
    const auto run = pick_panels<V>(rows);
    const Epilogue<T>& e = p_.epilogue;
    i64 j = x.n.begin;
    for (; j + columns <= x.n.end; j += columns) {
      const T* const b = right(x, j);
      if (e.direct != nullptr) {
        run(x.k.size(), a, b, distance, e.direct + m.begin * e.pitch + j, e.pitch, e.add || adds_);
        continue;
      }
      e.prefetch(m.begin, j, rows, columns);
      run(x.k.size(), a, b, distance, block_, columns, false);
      for (i64 i = 0; i < columns; i += nr) e.apply(e.sink, block_ + i, columns, m.begin, j + i, rows, nr);
    }
    return j;
  }

  /// Gives the micro-kernel of rows m and the panel at column n its place to write, and passes what is complete to the
  /// epilogue.
  template <class Kernel>
  TESSERA_HD void finish(const Block& x, Span m, i64 n, const Kernel& kernel) {
    const Epilogue<T>& e = p_.epilogue;
    const i64 columns = min(nr, x.n.end - n);
    const int vectors = static_cast<int>(ceil_div(columns, i64{V::lanes}));
    if (e.direct != nullptr) {
      const int last = static_cast<int>(columns) - (vectors - 1) * V::lanes;
      kernel(e.direct + m.begin * e.pitch + n, e.pitch, vectors, last, e.add || adds_ || x.k_part > 0);
      return;
    }
    const bool complete = x.k_part == k_parts_ - 1;
    T* block = block_;
    i64 pitch = nr;
    if (keeps_sums_) {
      pitch = nc_;
      block = sums_ + (m.begin - x.m.begin) * pitch + (n - x.n.begin);
    }
    if (complete) e.prefetch(m.begin, n, m.size(), columns);
    kernel(block, pitch, vectors, V::lanes, x.k_part > 0);
    if (complete) e.apply(e.sink, block, pitch, m.begin, n, m.size(), columns);
  }

  const Product<T>& p_;
  Span rows_, columns_, depth_;
  bool adds_;  // to what is there from other steps
  i64 m_parts_, n_parts_, k_parts_, mc_, nc_, kc_;
  bool a_in_place_, keeps_sums_;
  T *packed_a_ = nullptr, *packed_b_ = nullptr, *block_ = nullptr, *sums_ = nullptr;
  i64 *steps_a_ = nullptr, *steps_b_ = nullptr;
};

}  // namespace cpu
TESSERA_TILE_END
