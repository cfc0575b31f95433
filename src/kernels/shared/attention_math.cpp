// Attention through its scores in memory: GEMM, softmax, GEMM. Takes everything, and is what the flash kernel is
// measured against.
#include "kernels/shared/attention_math.h"

#include <limits>

#include "tile/attention_problem.h"

namespace tessera::TESSERA_KERNELS {
namespace {

// A batch over [batch, kv heads, queries' heads that share one]; `shared` operands have kv heads.
MatrixArg matrix(const Heads& h, bool transposed, long long copies, bool shared) {
  MatrixArg m{h.data,
              h.type,
              h.strides[2],
              h.strides[3],
              {h.strides[0], h.strides[1] * (shared ? 1 : copies), shared ? 0 : h.strides[1]}};
  if (transposed) std::swap(m.row, m.column);
  return m;
}

class Math {
 public:
  Math(const AttentionProblem& p, Workspace& workspace)
      : p_(p), workspace_(workspace), copies_(p.kv_heads ? p.heads / p.kv_heads : 1) {
    scores_ = score_buffer();
    additive_ = p.mask.data && p.mask.type != Scalar::boolean;
    if (!additive_) return;
    allowed_ = {workspace.take(scores()), Scalar::boolean, {}};
    std::copy(scores_.strides, scores_.strides + 4, allowed_.strides);
  }

  long long scores() const { return p_.batch * p_.heads * p_.queries * p_.keys; }

  Heads score_buffer() {
    long long plane = p_.queries * p_.keys;
    return {workspace_.take(scores() * static_cast<long long>(size_of(p_.compute()))),
            scalar_of(p_.compute()),
            {p_.heads * plane, plane, p_.keys, 1}};
  }
  const Heads& probabilities() const { return scores_; }

  // scores_ = softmax(scale q kᵀ + mask); lse, if defined, the log of its denominators.
  void compute_probabilities(const Operand* lse) {
    GemmArgs args = product(p_.queries, p_.keys, p_.width);
    args.a = matrix(p_.q, false, copies_, false);
    args.b = matrix(p_.k, true, copies_, true);
    args.c = matrix(scores_, false, copies_, false);
    args.alpha = p_.scale;
    if (additive_) args.addend = matrix(p_.mask, false, copies_, false);
    run(args);
    if (p_.alibi > 0) add_slopes();
    if (additive_) find_allowed();
    forbid(-std::numeric_limits<double>::infinity());
    if (lse && lse->defined()) log_sum_exp(*lse);
    SoftmaxArgs rows{};
    rows.type = scores_.type;
    rows.rows = p_.batch * p_.heads * p_.queries;
    rows.n = p_.keys;
    rows.x = rows.y = {scores_.data, p_.keys};
    workspace_.launch("softmax", softmax_table().softmax, rows);
    forbid(0);  // a row that attends nothing is NaN until here
  }

  // Zeroes those of the scores' buffers that dropout does, and scales the rest.
  void drop(const Heads& to, const Heads& from) { drop_scores(p_, workspace_.plan(), scores(), to, from); }

  // c = alpha a b over all heads; `shared` says which operand has kv heads.
  void multiply(const Heads& a, const Heads& b, bool transpose_b, bool shared_b, const Heads& c, long long n,
                long long k, double alpha) {
    GemmArgs args = product(p_.queries, n, k);
    args.a = matrix(a, false, copies_, false);
    args.b = matrix(b, transpose_b, copies_, shared_b);
    args.c = matrix(c, false, copies_, false);
    args.alpha = alpha;
    run(args);
  }

  // c [.., kv heads, keys, n] = alpha times the sum over the heads that share it of aᵀ b.
  void multiply_shared(const Heads& a, const Heads& b, const Heads& c, long long n, double alpha) {
    for (long long copy = 0; copy < copies_; ++copy) {
      GemmArgs args = product(p_.keys, n, p_.queries);
      args.batch_rank = 2;
      args.a = matrix(advanced(a, copy), true, copies_, false);
      args.b = matrix(advanced(b, copy), false, copies_, false);
      args.c = matrix(c, false, copies_, true);
      args.alpha = alpha;
      if (copy > 0) args.addend = args.c;
      run(args);
    }
  }

 private:
  GemmArgs product(long long m, long long n, long long k) const {
    GemmArgs args{};
    args.m = m;
    args.n = n;
    args.k = k;
    args.batch_rank = 3;
    args.batch[0] = p_.batch;
    args.batch[1] = p_.kv_heads;
    args.batch[2] = copies_;
    args.alpha = args.beta = 1;
    args.tf32 = tf32_allowed();
    return args;
  }
  void run(const GemmArgs& args) {
    bool any = args.m > 0 && args.n > 0;
    for (int d = 0; d < args.batch_rank; ++d) any = any && args.batch[d] > 0;
    if (any) workspace_.launch("gemm", gemm_table().run, args);
  }
  static Heads advanced(Heads h, long long heads) {
    h.data = static_cast<std::byte*>(h.data) +
             heads * h.strides[1] * static_cast<long long>(size_of(static_cast<DType>(h.type)));
    return h;
  }

  TensorArg tensor(const Heads& h) const {
    TensorArg t{h.data, h.type, {}};
    std::copy(h.strides, h.strides + 4, t.strides);
    return t;
  }
  MapArgs map(MapOp op, Scalar compute, int inputs) const {
    MapArgs args{};
    args.op = op;
    args.compute = compute;
    args.rank = 4;
    args.inputs = inputs;
    long long lengths[] = {p_.batch, p_.heads, p_.queries, p_.keys};
    std::copy(lengths, lengths + 4, args.lengths);
    return args;
  }

  // scores_ += slope * (key - query), from a table of what each distance adds for each head.
  void add_slopes() {
    if (scores() == 0) return;
    const long long distances = p_.queries + p_.keys - 1, zero = p_.queries - 1, row = distances;
    const auto size = static_cast<long long>(size_of(p_.compute()));
    void* const far = workspace_.take(distances * size);
    auto* const table = static_cast<std::byte*>(workspace_.take(p_.heads * row * size));
    count_up(workspace_.plan(), far, p_.compute(), distances, -static_cast<double>(zero));
    for (long long h = 0; h < p_.heads; ++h) {
      MapArgs args{};
      args.op = MapOp::mul;
      args.compute = scores_.type;
      args.rank = 1;
      args.inputs = 2;
      args.lengths[0] = distances;
      args.tensor[0] = {table + h * row * size, scores_.type, {1}};
      args.tensor[1] = {far, scores_.type, {1}};
      args.tensor[2] = constant(workspace_.plan(), tile::alibi_slope<double>(h, p_.heads, p_.alibi));
      launch_map(workspace_.plan(), args);
    }
    MapArgs args = map(MapOp::add, scores_.type, 2);
    args.tensor[0] = args.tensor[1] = tensor(scores_);
    args.tensor[2] = {table + zero * size, scores_.type, {0, row, -1, 1}};
    launch_map(workspace_.plan(), args);
  }

  // allowed_ = where an additive mask does not exclude.
  void find_allowed() {
    MapArgs args = map(MapOp::gt, Scalar::f64, 2);
    args.tensor[0] = tensor(allowed_);
    args.tensor[1] = tensor(p_.mask);
    args.tensor[2] = constant(workspace_.plan(), -std::numeric_limits<double>::infinity());
    launch_map(workspace_.plan(), args);
  }

  // scores_ = `otherwise` where masks or causality exclude.
  void forbid(double otherwise) {
    if (p_.mask.data) {
      MapArgs args = map(MapOp::where, scores_.type, 3);
      args.tensor[0] = args.tensor[2] = tensor(scores_);
      args.tensor[1] = tensor(additive_ ? allowed_ : p_.mask);
      args.tensor[3] = constant(workspace_.plan(), otherwise);
      launch_map(workspace_.plan(), args);
    }
    if (!p_.causal) return;
    TriangleArgs args{};
    args.rank = 4;
    long long lengths[] = {p_.batch, p_.heads, p_.queries, p_.keys};
    std::copy(lengths, lengths + 4, args.lengths);
    args.to = args.from = tensor(scores_);
    args.otherwise = otherwise;
    workspace_.launch("triangle", elementwise_table().triangle, args);
  }

  void log_sum_exp(const Operand& lse) {
    ReduceArgs args{};
    args.op = ReduceOp::logsumexp;
    args.compute = scores_.type;
    args.rank = 4;
    long long lengths[] = {p_.batch, p_.heads, p_.queries, p_.keys};
    std::copy(lengths, lengths + 4, args.lengths);
    args.reduced[3] = true;
    args.in = tensor(scores_);
    args.out = operand(lse, 3);
    workspace_.launch("reduce", reduce_table().reduce, args);
  }

  const AttentionProblem& p_;
  Workspace& workspace_;
  long long copies_;
  bool additive_;
  Heads scores_, allowed_;
};

}  // namespace

void attention_math(const Call& call, Workspace& workspace) {
  AttentionProblem p = attention_problem(call);
  Math math(p, workspace);
  math.compute_probabilities(p.lse);
  if (p.dropout > 0) math.drop(math.probabilities(), math.probabilities());
  math.multiply(math.probabilities(), p.v, false, true, p.y, p.value_width, p.keys, 1);
}

void attention_math_backward(const Call& call, Workspace& workspace) {
  AttentionProblem p = attention_backward_problem(call);
  Math math(p, workspace);
  Heads ds = math.score_buffer();
  math.compute_probabilities(nullptr);
  if (p.dropout > 0) math.drop(ds, math.probabilities());
  math.multiply_shared(p.dropout > 0 ? ds : math.probabilities(), p.dy, p.dv, p.value_width, 1);
  math.multiply(p.dy, p.v, true, true, ds, p.keys, p.value_width, 1);
  if (p.dropout > 0) math.drop(ds, ds);
  SoftmaxBackwardArgs rows{};
  rows.type = ds.type;
  rows.rows = p.batch * p.heads * p.queries;
  rows.n = p.keys;
  rows.dx = rows.dy = {ds.data, p.keys};
  rows.y = {math.probabilities().data, p.keys};
  workspace.launch("softmax_backward", softmax_table().softmax_backward, rows);
  math.multiply(ds, p.k, false, true, p.dq, p.width, p.keys, p.scale);
  math.multiply_shared(ds, p.q, p.dk, p.width, p.scale);
}

}  // namespace tessera::TESSERA_KERNELS
