// Rows of heads as NVIDIA's matrix cores move them: halves in 16-byte vectors.
#pragma once
#include <algorithm>

#include "kernels/shared/attention_problem.h"

namespace tessera::gpu_kernels {

/// Copies of the rows of halves that do not lie so: filled up with zeros, which change no sum.
class WholeRows {
 public:
  /// Puts the copies in the place of what they are of.
  WholeRows(AttentionProblem& p, Workspace& workspace) : workspace_(workspace) {
    const bool nvidia = attention_table().flash;  // AMD's take rows as they lie
    if (!nvidia || p.dtype == Float32 || lies_in_units(p) == Reason::Ok) return;
    const bool backward = p.dy.data;
    stage(p.q, {p.batch, p.heads, p.queries, p.width}, false);
    stage(p.k, {p.batch, p.kv_heads, p.keys, p.width}, false);
    stage(p.v, {p.batch, p.kv_heads, p.keys, p.value_width}, false);
    stage(p.y, {p.batch, p.heads, p.queries, p.value_width}, !backward);
    stage(p.dy, {p.batch, p.heads, p.queries, p.value_width}, false);
    stage(p.dq, {p.batch, p.heads, p.queries, p.width}, true);
    stage(p.dk, {p.batch, p.kv_heads, p.keys, p.width}, true);
    stage(p.dv, {p.batch, p.kv_heads, p.keys, p.value_width}, true);
    p.width = whole(p.width);
    p.value_width = whole(p.value_width);
  }

  /// Brings results to where they belong.
  void finish() {
    for (const Result& r : results_) copy(r.lengths, tensor(r.to), tensor(r.from));
  }

 private:
  struct Lengths {
    long long at[4];
  };
  struct Result {
    Lengths lengths;
    Heads to, from;
  };

  static long long whole(long long width) { return (width + kUnit - 1) / kUnit * kUnit; }
  static TensorArg tensor(const Heads& h, long long column = 0) {
    TensorArg t{static_cast<std::byte*>(h.data) + column * 2, h.type, {}};
    std::copy(h.strides, h.strides + 4, t.strides);
    return t;
  }

  void stage(Heads& h, Lengths lengths, bool is_result) {
    const auto [batch, heads, rows, width] = lengths.at;
    const long long pitch = whole(width);
    if (!h.data || (width == pitch && lies_in_units(h))) return;
    const Heads copied{
        workspace_.take(batch * heads * rows * pitch * 2), h.type, {heads * rows * pitch, rows * pitch, pitch, 1}};
    if (is_result) results_.push_back({lengths, h, copied});
    else {
      copy(lengths, tensor(copied), tensor(h));
      lengths.at[3] = pitch - width;
      copy(lengths, tensor(copied, width), constant(workspace_.plan(), 0));
    }
    h = copied;
  }
  void copy(const Lengths& lengths, const TensorArg& to, const TensorArg& from) {
    CopyArgs args{4, {}, to, from};
    std::copy(lengths.at, lengths.at + 4, args.lengths);
    if (lengths.at[3] > 0) launch_copy(workspace_.plan(), args);
  }

  Workspace& workspace_;
  SmallVector<Result, 3> results_;
};

}  // namespace tessera::gpu_kernels
