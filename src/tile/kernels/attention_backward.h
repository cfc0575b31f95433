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
  static constexpr i64 q_block = Blocks::backward_queries, k_block = Blocks::backward_keys;

 public:
  struct Views {
    HeadsView<T> dq, dk, dv;
    HeadsView<const T> dy, q, k, v, y;
    const C* lse;
  };

  AttentionBackward(const AttentionProblem& p, const Views& views, void* scratch) : p_(p), views_(views) {
    Arena<C> arena(scratch);
    C** const buffers[] = {&k_by_key_,  &k_by_width_, &v_by_key_, &dk_,     &dv_,
                           &q_columns_, &dy_columns_, &columns_,  &q_rows_, &dy_rows_,
                           &p_block_,   &ds_block_,   &packed_,   &lse_,    &delta_};
    for (int i = 0; i < buffer_count; ++i) *buffers[i] = arena.take(buffer_size(p, i));
  }
  static i64 scratch_bytes(const AttentionProblem& p) {
    i64 bytes = 0;
    for (int i = 0; i < buffer_count; ++i) bytes += Arena<C>::bytes(buffer_size(p, i));
    return bytes;
  }

  void run(i64 b, i64 kv_head) {
    pack(b, kv_head);
    const auto &dk = views_.dk, &dv = views_.dv;
    cpu::ask_for_rows(dk.head(b, kv_head), dk.row(), dk.column(), p_.keys, p_.width);
    cpu::ask_for_rows(dv.head(b, kv_head), dv.row(), dv.column(), p_.keys, p_.value_width);
    __builtin_memset(dk_, 0, p_.keys * pitch(p_.width) * sizeof(C));
    __builtin_memset(dv_, 0, p_.keys * pitch(p_.value_width) * sizeof(C));
    const i64 shared = p_.heads / p_.kv_heads;
    for (i64 h = kv_head * shared; h < (kv_head + 1) * shared; ++h) {
      for (i64 q0 = 0; q0 < p_.queries; q0 += q_block) queries(b, h, q0, min(q_block, p_.queries - q0));
    }
    write_rows(dk_, p_.width, static_cast<C>(p_.scale), views_.dk, b, kv_head);
    write_rows(dv_, p_.value_width, C(1), views_.dv, b, kv_head);
  }

 private:
  static constexpr int buffer_count = 15;
  static constexpr i64 pitch(i64 width) { return round_up(width, i64(V::lanes)); }
  static i64 buffer_size(const AttentionProblem& p, int i) {
    const i64 w = p.width, vw = p.value_width, widest = max(w, vw);
    const i64 sizes[buffer_count] = {p.keys * w,
                                     p.keys * w,
                                     p.keys * vw,
                                     p.keys * pitch(w),
                                     p.keys * pitch(vw),
                                     w * q_block,
                                     vw * q_block,
                                     widest * q_block,
                                     q_block * pitch(w),
                                     q_block * pitch(vw),
                                     k_block * q_block,
                                     k_block * q_block,
                                     cpu::block_rows * q_block,
                                     q_block,
                                     q_block};
    return sizes[i];
  }

  void pack(i64 b, i64 kv_head) {
    const auto &k = views_.k, &v = views_.v;
    for (i64 k0 = 0; k0 < p_.keys; k0 += k_block) {
      const i64 n = min(k_block, p_.keys - k0);
      const T* key = k.head(b, kv_head) + k0 * k.row();
      const T* value = v.head(b, kv_head) + k0 * v.row();
      cpu::pack_panels(key, k.row(), k.column(), n, p_.width, k_by_key_ + k0 * p_.width);
      cpu::pack_panels(key, k.column(), k.row(), p_.width, n, k_by_width_ + k0 * p_.width);
      cpu::pack_panels(value, v.row(), v.column(), n, p_.value_width, v_by_key_ + k0 * p_.value_width);
    }
  }

  void pack_columns(const HeadsView<const T>& x, i64 b, i64 h, i64 q0, i64 count, i64 width, C* to) {
    cpu::pack_block(x.head(b, h) + q0 * x.row(), x.row(), x.column(), count, q_block, width, to);
  }

  /// What a block of queries needs: its columns and rows, log-sum-exps, and sums of dy * y.
  void prepare(i64 b, i64 h, i64 q0, i64 count) {
    const i64 w = p_.width, vw = p_.value_width;
    const auto &q = views_.q, &dy = views_.dy;
    pack_columns(q, b, h, q0, count, w, q_columns_);
    const V scale(static_cast<C>(p_.scale));
    for (i64 i = 0; i < w * q_block; i += V::lanes) store(q_columns_ + i, load<V>(q_columns_ + i) * scale);
    pack_columns(dy, b, h, q0, count, vw, dy_columns_);
    pack_columns(views_.y, b, h, q0, count, vw, columns_);
    for (i64 i = 0; i < q_block; i += V::lanes) {
      V sum(C(0));
      for (i64 d = 0; d < vw; ++d) {
        sum = fma(load<V>(dy_columns_ + d * q_block + i), load<V>(columns_ + d * q_block + i), sum);
      }
      store(delta_ + i, sum);
    }
    const C* lse = views_.lse + (b * p_.heads + h) * p_.queries + q0;
    for (i64 i = 0; i < q_block; ++i) {  // queries that see nothing, or do not exist, get probabilities of zero
      lse_[i] = i < count && lse[i] != -static_cast<C>(__builtin_inf()) ? lse[i] : static_cast<C>(__builtin_inf());
    }
    copy_rows(q.head(b, h) + q0 * q.row(), q.row(), q.column(), count, w, q_rows_, pitch(w));
    copy_rows(dy.head(b, h) + q0 * dy.row(), dy.row(), dy.column(), count, vw, dy_rows_, pitch(vw));
  }

  /// Probabilities and gradients of scores of one panel of keys.
  void scores(i64 b, i64 h, i64 q0, i64 count, i64 k, i64 rows, i64 from, C* prob, C* ds) {
    const i64 w = p_.width, vw = p_.value_width;
    const C *const q = q_columns_, *const dy = dy_columns_;
    cpu::multiply_panel(rows, from, q_block, w, static_cast<const C*>(k_by_key_ + k * w), q, q_block, prob, q_block,
                        false);
    mask_scores<C, T>(p_, b, h, q0, count, k, rows, prob, q_block);
    cpu::multiply_panel(rows, from, q_block, vw, static_cast<const C*>(v_by_key_ + k * vw), dy, q_block, ds, q_block,
                        false);
    for (i64 i = from; i < q_block; i += V::lanes) {
      const V shift = load<V>(lse_ + i), delta = load<V>(delta_ + i);
      for (i64 at = i; at < rows * q_block; at += q_block) {
        const V e = exp_nonpositive(load<V>(prob + at) - shift);
        store(prob + at, e);
        store(ds + at, e * (load<V>(ds + at) - delta));
      }
    }
  }

  /// What a block of queries and one of n keys, of which `used` are seen, add to the gradients.
  void block(i64 b, i64 h, i64 q0, i64 count, i64 k0, i64 n, i64 used) {
    const i64 w = p_.width, vw = p_.value_width;
    const C *const q = q_rows_, *const dy = dy_rows_, *const ds = ds_block_;
    const Visible<C> seen{q0, k0, used, p_.causal};
    cpu::Panels(n).each([&](i64 key, i64 rows) {
      if (key >= used) return;
      C *const prob = p_block_ + key * q_block, *const dscores = ds_block_ + key * q_block;
      scores(b, h, q0, count, k0 + key, rows, min(q_block, seen.first_query(key)), prob, dscores);
      const i64 first = p_.causal ? max(i64(0), k0 + key - q0) : 0, steps = count - first;
      if (steps <= 0) return;
      cpu::multiply_rows(rows, pitch(vw), steps, static_cast<const C*>(prob + first), q_block, dy + first * pitch(vw),
                         pitch(vw), dv_ + (k0 + key) * pitch(vw), pitch(vw), true, packed_);
      cpu::multiply_rows(rows, pitch(w), steps, static_cast<const C*>(dscores + first), q_block, q + first * pitch(w),
                         pitch(w), dk_ + (k0 + key) * pitch(w), pitch(w), true, packed_);
    });
    cpu::Panels(w).each([&](i64 row, i64 rows) {
      for (i64 j = 0; j < q_block; j += seen.nr) {
        cpu::multiply_panel(rows, j, j + seen.nr, seen.keys_of(j),
                            static_cast<const C*>(k_by_width_ + k0 * w + row * n), ds, q_block,
                            columns_ + row * q_block, q_block, k0 > 0);
      }
    });
  }

  void queries(i64 b, i64 h, i64 q0, i64 count) {
    prepare(b, h, q0, count);
    const i64 w = p_.width, visible = p_.causal ? min(p_.keys, q0 + count) : p_.keys;
    const auto& dq = views_.dq;
    T* const result = dq.head(b, h) + q0 * dq.row();
    cpu::ask_for_rows(result, dq.row(), dq.column(), count, w);
    for (i64 k0 = 0; k0 < visible; k0 += k_block) {
      const i64 n = min(k_block, p_.keys - k0);
      block(b, h, q0, count, k0, n, min(n, visible - k0));
    }
    if (visible == 0) __builtin_memset(columns_, 0, w * q_block * sizeof(C));
    const V scale(static_cast<C>(p_.scale));
    for (i64 i = 0; i < w * q_block; i += V::lanes) store(columns_ + i, load<V>(columns_ + i) * scale);
    cpu::store_transposed(columns_, q_block, w, count, result, dq.row(), dq.column());
  }

  void write_rows(const C* from, i64 width, C scale, const HeadsView<T>& to, i64 b, i64 h) {
    T* row = to.head(b, h);
    for (i64 r = 0; r < p_.keys; ++r, row += to.row(), from += pitch(width)) {
      if (to.column() == 1) {
        map_row<C>(
            width, row, [=](auto v) { return v * decltype(v)(scale); }, from);
      } else {
        for (i64 i = 0; i < width; ++i) row[i * to.column()] = convert_element<T>(from[i] * scale);
      }
    }
  }

  const AttentionProblem& p_;
  const Views& views_;
  C *k_by_key_, *k_by_width_, *v_by_key_;  // panels of all keys
  C *dk_, *dv_;                            // sums [keys][pitch]
  C *q_columns_, *dy_columns_, *columns_;  // [width][q_block]; the last is y, then dq
  C *q_rows_, *dy_rows_;                   // [q_block][pitch]
  C *p_block_, *ds_block_, *packed_;       // [k_block][q_block]; the last is one panel of them
  C *lse_, *delta_;
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
