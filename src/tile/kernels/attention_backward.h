// Gradients of attention from its log-sum-exps: the probabilities are computed again, block by block.
#pragma once

#include "attention.h"

TESSERA_TILE_BEGIN
namespace detail {

/// All gradients of the heads that share one head of keys and values: nothing is shared with other tasks, so the
/// order of every sum is fixed.
template <class T>
class AttentionBackward {
  using C = compute_t<T>;
  using V = NativeVec<C>;
  using Blocks = AttentionBlocks<C>;
  static constexpr i64 q_block = Blocks::backward_queries, k_block = q_block;

 public:
  struct Views {
    HeadsView<T> dq, dk, dv;
    HeadsView<const T> dy, q, k, v, y;
    const C* lse;
  };

  AttentionBackward(const AttentionProblem& p, const Views& views, void* scratch)
      : p_(p), views_(views), w_(Blocks::pitch(p.width)), vw_(Blocks::pitch(p.value_width)) {
    Arena<C> arena(scratch);
    C** const buffers[] = {&k_,       &v_,  &dk_,     &dv_,      &q_columns_, &dy_columns_, &q_rows_,
                           &dy_rows_, &dq_, &scores_, &dscores_, &packed_,    &lse_,        &delta_};
    for (int i = 0; i < buffer_count; ++i) *buffers[i] = arena.take(buffer_size(p, i));
  }
  static i64 scratch_bytes(const AttentionProblem& p) {
    i64 bytes = 0;
    for (int i = 0; i < buffer_count; ++i) bytes += Arena<C>::bytes(buffer_size(p, i));
    return bytes;
  }

  void run(i64 b, i64 kv_head) {
    const auto &k = views_.k, &v = views_.v;
    copy_rows(k.head(b, kv_head), k.row(), k.column(), p_.keys, p_.width, k_, w_, static_cast<C>(p_.scale));
    copy_rows(v.head(b, kv_head), v.row(), v.column(), p_.keys, p_.value_width, v_, vw_);
    const Sums dk(views_.dk, b, kv_head, 0, dk_, w_), dv(views_.dv, b, kv_head, 0, dv_, vw_);
    const i64 shared = p_.heads / p_.kv_heads, seen = p_.causal || p_.queries == 0 ? min(p_.keys, p_.queries) : p_.keys;
    for (i64 i = 0; i < shared; ++i) {
      for (i64 q0 = 0; q0 < p_.queries; q0 += q_block) queries(b, kv_head * shared + i, q0, i == 0, dk, dv);
    }
    dk.finish(seen, p_.keys, p_.width);
    dv.finish(seen, p_.keys, p_.value_width);
  }

 private:
  /// Rows of a result that kernels add to: its own memory if it holds sums as they are, else packed ones.
  struct Sums {
    T* to;
    i64 row_stride, column_stride;
    C *data, *packed;
    i64 pitch;

    Sums(const HeadsView<T>& x, i64 b, i64 h, i64 first, C* room, i64 room_pitch)
        : to(x.head(b, h) + first * x.row()),
          row_stride(x.row()),
          column_stride(x.column()),
          data(room),
          packed(room),
          pitch(room_pitch) {
      if constexpr (is_same_v<T, C>) {
        if (column_stride == 1) data = to, pitch = row_stride;
      }
    }
    C* row(i64 r) const { return data + r * pitch; }
    /// Rows from `computed` on are zero.
    void finish(i64 computed, i64 rows, i64 columns) const {
      for (i64 r = computed; r < rows; ++r) __builtin_memset(row(r), 0, columns * sizeof(C));
      if (data == packed)
        write_rows(packed, pitch, rows, columns, to, row_stride, column_stride, [](i64) { return C(1); });
    }
  };

  static constexpr int buffer_count = 14;
  static i64 buffer_size(const AttentionProblem& p, int i) {
    const i64 w = Blocks::pitch(p.width), vw = Blocks::pitch(p.value_width), widest = max(w, vw);
    const i64 sizes[buffer_count] = {p.keys * w,        p.keys * vw,
                                     p.keys * w,        p.keys * vw,
                                     w * q_block,       vw * q_block,
                                     w * q_block,       vw * q_block,
                                     widest * q_block,  cpu::block_rows * q_block,
                                     k_block * q_block, cpu::block_rows * max(widest, q_block),
                                     q_block,           q_block};
    return sizes[i];
  }

  /// What a block of queries needs: its columns and rows, log-sum-exps, and sums of dy * y.
  void prepare(i64 b, i64 h, i64 q0, i64 count) {
    const auto &q = views_.q, &dy = views_.dy, &y = views_.y;
    const T *const q_at = q.head(b, h) + q0 * q.row(), *const dy_at = dy.head(b, h) + q0 * dy.row();
    cpu::pack_block(q_at, q.row(), q.column(), count, q_block, p_.width, q_columns_);
    copy_rows(q_at, q.row(), q.column(), count, p_.width, q_rows_, w_, static_cast<C>(p_.scale));
    cpu::pack_block(dy_at, dy.row(), dy.column(), count, q_block, p_.value_width, dy_columns_);
    copy_rows(dy_at, dy.row(), dy.column(), count, p_.value_width, dy_rows_, vw_);
    copy_rows(y.head(b, h) + q0 * y.row(), y.row(), y.column(), count, p_.value_width, dq_, vw_);
    for (i64 i = 0; i < q_block; i += V::lanes) {
      V sums[V::lanes];
      for (int r = 0; r < V::lanes; ++r) {
        sums[r] = V(C(0));
        if (i + r >= count) continue;
        const C *left = dy_rows_ + (i + r) * vw_, *right = dq_ + (i + r) * vw_;
        for (i64 d = 0; d < vw_; d += V::lanes) sums[r] = fma(load<V>(left + d), load<V>(right + d), sums[r]);
      }
      cpu::detail::transpose(sums);
      V sum = sums[0];
      TESSERA_UNROLL
      for (int r = 1; r < V::lanes; ++r) sum += sums[r];
      store(delta_ + i, sum);
    }
    const C* lse = views_.lse + (b * p_.heads + h) * p_.queries + q0;
    for (i64 i = 0; i < q_block; ++i) {  // queries that see nothing, or do not exist, get probabilities of zero
      lse_[i] = i < count && lse[i] != -static_cast<C>(__builtin_inf()) ? lse[i] : static_cast<C>(__builtin_inf());
    }
  }

  /// Probabilities, in scores_, and gradients of scores of one panel of keys, for queries from `from` on.
  void scores(i64 b, i64 h, i64 q0, i64 count, i64 k, i64 rows, i64 from, C* ds) {
    C* const prob = scores_;
    cpu::multiply_rows(rows, q_block - from, p_.width, static_cast<const C*>(k_ + k * w_), w_,
                       static_cast<const C*>(q_columns_ + from), q_block, prob + from, q_block, false, packed_);
    mask_scores<C, T>(p_, b, h, q0, count, k, rows, prob, q_block, rows);
    cpu::multiply_rows(rows, q_block - from, p_.value_width, static_cast<const C*>(v_ + k * vw_), vw_,
                       static_cast<const C*>(dy_columns_ + from), q_block, ds + from, q_block, false, packed_);
    for (i64 i = from; i < q_block; i += V::lanes) {
      const V shift = load<V>(lse_ + i), delta = load<V>(delta_ + i);
      for (i64 at = i; at < rows * q_block; at += q_block) {
        const V e = exp_nonpositive(load<V>(prob + at) - shift);
        store(prob + at, e);
        store(ds + at, e * (load<V>(ds + at) - delta));
      }
    }
    // Panels of queries that begin before `from` end behind it.
    for (i64 i = max(i64(0), from - round_up(i64(cpu::block_rows), i64(V::lanes))); i < from; i += V::lanes) {
      for (i64 at = i; at < rows * q_block; at += q_block) store(ds + at, V(C(0)));
    }
  }

  /// What a block of queries and one of keys add to the gradients.
  void block(i64 b, i64 h, i64 count, const Visible& seen, bool first_keys, const Sums& dq, const Sums& dk,
             const Sums& dv) {
    const C *const q = q_rows_, *const dy = dy_rows_, *const ds = dscores_;
    cpu::Panels(seen.keys).each([&](i64 key, i64 rows) {
      const i64 k = seen.k0 + key, first = seen.first_query(key), steps = count - first;
      scores(b, h, seen.q0, count, k, rows, first / V::lanes * V::lanes, dscores_ + key * q_block);
      cpu::multiply_rows(rows, p_.value_width, steps, static_cast<const C*>(scores_ + first), q_block, dy + first * vw_,
                         vw_, dv.row(k), dv.pitch, !first_keys, packed_);
      cpu::multiply_rows(rows, p_.width, steps, ds + key * q_block + first, q_block, q + first * w_, w_, dk.row(k),
                         dk.pitch, !first_keys, packed_);
    });
    cpu::Panels(count).each([&](i64 row, i64 rows) {
      cpu::multiply_columns(rows, p_.width, seen.keys_of(row + rows), ds + row, q_block,
                            static_cast<const C*>(k_ + seen.k0 * w_), w_, dq.row(row), dq.pitch, seen.k0 > 0);
    });
  }

  void queries(i64 b, i64 h, i64 q0, bool first_head, const Sums& dk, const Sums& dv) {
    const i64 count = min(q_block, p_.queries - q0), visible = p_.causal ? min(p_.keys, q0 + count) : p_.keys;
    prepare(b, h, q0, count);
    const Sums dq(views_.dq, b, h, q0, dq_, w_);
    for (i64 k0 = 0; k0 < visible; k0 += k_block) {
      const bool first_keys = first_head && q0 == (p_.causal ? k0 : 0);  // blocks of both are equally long
      block(b, h, count, {q0, k0, min(k_block, visible - k0), p_.causal}, first_keys, dq, dk, dv);
    }
    dq.finish(visible == 0 ? 0 : count, count, p_.width);
  }

  const AttentionProblem& p_;
  const Views& views_;
  i64 w_, vw_;                  // pitches
  C *k_, *v_, *dk_, *dv_;       // [keys][pitch], keys times the scale
  C *q_columns_, *dy_columns_;  // [width][q_block]
  C *q_rows_, *dy_rows_;        // [q_block][pitch]
  C* dq_;                       // [q_block][pitch], y before
  C *scores_, *dscores_;        // [block_rows][q_block], [k_block][q_block]
  C *packed_, *lse_, *delta_;
};

}  // namespace detail

/// dq, dk and dv of attention() from its result y and lse. They may not overlap the inputs; a task is all that shares
/// one head of keys, so results do not depend on the threads.
template <class T, class Executor>
void attention_backward(Executor& executor, const AttentionProblem& p, const HeadsView<T>& dq, const HeadsView<T>& dk,
                        const HeadsView<T>& dv, const HeadsView<const T>& dy, const HeadsView<const T>& q,
                        const HeadsView<const T>& k, const HeadsView<const T>& v, const HeadsView<const T>& y,
                        const compute_t<T>* lse) {
  using Backward = detail::AttentionBackward<T>;
  const ExecutorRef threads(executor);
  const typename Backward::Views views{dq, dk, dv, dy, q, k, v, y, lse};
  threads.parallel(p.batch * p.kv_heads, [&](i64 task, int thread) {
    Backward backward(p, views, threads.scratch(thread, Backward::scratch_bytes(p)));
    backward.run(task / p.kv_heads, task % p.kv_heads);
  });
}

TESSERA_TILE_END
