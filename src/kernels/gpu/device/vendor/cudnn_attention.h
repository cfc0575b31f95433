// Attention as graphs of cuDNN. Without a call of the run-time library, so that tests plan without a card.
#pragma once
#include <array>
#include <cmath>
#include <limits>

#include "cudnn_operand.h"

namespace tessera::gpu_kernels::cudnn {

/// What a pack names; the numbers lie in the host's memory.
enum AttentionId : int64_t {
  id_q = 1,
  id_k,
  id_v,
  id_out,
  id_lse,
  id_scale,
  id_minus_infinity,
  id_one,
  id_grad_out,
  id_grad_q,
  id_grad_k,
  id_grad_v,
  id_row_sums,
  id_query_sums,
  id_first_inner
};

/// The numbers of a call; they have to live until the plan was queued.
struct AttentionNumbers {
  float scale, minus_infinity = -std::numeric_limits<float>::infinity(), one = 1;
};

/// Operations of attention on tensors of [batch, heads, rows, columns]. What it returns between operations is never in
/// memory: sums and scores are f32, operands of products of the type of the heads.
class AttentionGraph {
 public:
  explicit AttentionGraph(const AttentionShape& shape) : s_(shape) {}

  Ref heads(int64_t id, const HeadsArg& a, int64_t heads, int64_t rows, int64_t width, bool transposed = false) {
    Lengths lengths{s_.batch, heads, rows, width}, strides{a.strides[0], a.strides[1], a.strides[2], a.strides[3]};
    countable_ = countable_ && is_countable(lengths, a.strides);
    if (transposed) {
      std::swap(lengths[2], lengths[3]);
      std::swap(strides[2], strides[3]);
    }
    return graph_.keep(tensor(id, data_type(s_.type), lengths, strides, 16));
  }
  Ref row_of_numbers(int64_t id) { return graph_.keep(dense(id, DataType::f32, {s_.batch, s_.heads, s_.queries, 1})); }
  Ref number(int64_t id) {
    Object t = dense(id, DataType::f32, {1, 1, 1, 1});
    return graph_.keep(t.set(Attribute::tensor_by_value, true));
  }

  Ref scores(DataType type = DataType::f32) { return inner(type, {s_.batch, s_.heads, s_.queries, s_.keys}); }
  Ref row() { return inner(DataType::f32, {s_.batch, s_.heads, s_.queries, 1}); }
  Ref columns(int64_t heads, int64_t rows, int64_t width, DataType type) {
    return inner(type, {s_.batch, heads, rows, width});
  }
  /// Keys that came as [width, keys], as the rows that they are in memory.
  Ref rows_of_keys(Ref transposed, const HeadsArg& k) {
    const Lengths lengths{s_.batch, s_.kv_heads, s_.keys, s_.width};
    Object t = tensor(next_++, DataType::f32, lengths, Lengths{k.strides[0], k.strides[1], k.strides[2], 1}, 16);
    return reshape(transposed, graph_.keep(t.set(Attribute::tensor_virtual, true)));
  }
  DataType type() const { return data_type(s_.type); }

  Ref apply(PointwiseMode mode, Ref x, Ref b, Ref y, DataType compute = DataType::f32, Ref condition = {}) {
    Object function(Kind::pointwise);
    function.set(Attribute::pointwise_mode, mode).set(Attribute::pointwise_type, compute);
    return apply(function, x, b, y, condition);
  }
  Ref product(Ref a, Ref b, Ref y) {
    Object product(Kind::matmul), operation(Kind::operation_matmul);
    product.set(Attribute::matmul_type, DataType::f32);
    constexpr Attribute first = Attribute::operation_matmul_a;
    operation.set(first, a).set(first + 1, b).set(first + 2, y).set(first + 3, graph_.keep(product));
    graph_.add(operation);
    return y;
  }
  Ref reduce(ReductionMode mode, Ref x, Ref y) {
    Object reduction(Kind::reduction), operation(Kind::operation_reduction);
    reduction.set(Attribute::reduction_mode, mode).set(Attribute::reduction_type, DataType::f32);
    constexpr Attribute first = Attribute::operation_reduction_x;
    operation.set(first, x).set(first + 1, y).set(first + 2, graph_.keep(reduction));
    graph_.add(operation);
    return y;
  }
  Ref reshape(Ref x, Ref y) {
    Object operation(Kind::operation_reshape);
    operation.set(Attribute::operation_reshape_x, x).set(Attribute::operation_reshape_x + 1, y);
    graph_.add(operation);
    return y;
  }
  /// Scores as [keys, queries], for products with the queries' rows.
  Ref flipped(Ref x) {
    const Lengths lengths{s_.batch, s_.heads, s_.keys, s_.queries};
    const Lengths strides{s_.heads * s_.queries * s_.keys, s_.queries * s_.keys, 1, s_.keys};
    Object t = tensor(next_++, type(), lengths, strides, 16);
    return reshape(x, graph_.keep(t.set(Attribute::tensor_virtual, true)));
  }
  /// Scores without those of keys behind the query.
  Ref seen(Ref x) {
    if (!s_.causal) return x;
    const Ref query = index(x, 2), key = index(x, 3);
    const Ref sees = apply(PointwiseMode::greater_or_equal, query, key, scores(DataType::boolean), DataType::boolean);
    return apply(PointwiseMode::select, x, number(id_minus_infinity), scores(), DataType::f32, sees);
  }

  /// Sums of dq that are in memory.
  Ref query_sums() {
    return graph_.keep(dense(id_query_sums, DataType::f32, {s_.batch, s_.heads, s_.queries, s_.width}));
  }

  std::optional<Plan> plan(const Target& target, int64_t most_workspace, bool in_any_order = false) {
    if (!countable_) return {};
    constexpr Rules rules = {Note::nondeterministic, Note::reduces_in_lower_precision, Note::down_converts},
                    any_order = {Note::reduces_in_lower_precision, Note::down_converts};
    return find_plan(target, std::move(graph_), in_any_order ? any_order : rules, most_workspace);
  }

 private:
  using Lengths = std::array<int64_t, 4>;

  static Object dense(int64_t id, DataType type, const Lengths& n) {
    return tensor(id, type, n, Lengths{n[1] * n[2] * n[3], n[2] * n[3], n[3], 1}, 16);
  }
  Ref inner(DataType type, const Lengths& lengths) {
    Object t = dense(next_++, type, lengths);
    return graph_.keep(t.set(Attribute::tensor_virtual, true));
  }
  Ref index(Ref x, int64_t axis) {
    Object function(Kind::pointwise);
    function.set(Attribute::pointwise_mode, PointwiseMode::index_along_axis);
    function.set(Attribute::pointwise_type, DataType::f32).set(Attribute::pointwise_axis, axis);
    return apply(function, x, {}, scores(DataType::i32), {});
  }
  Ref apply(Object& function, Ref x, Ref b, Ref y, Ref condition) {
    Object operation(Kind::operation_pointwise);
    constexpr Attribute first = Attribute::operation_pointwise;
    operation.set(first, graph_.keep(function)).set(first + 1, x).set(first + 3, y);
    if (b.it) operation.set(first + 2, b);
    if (condition.it) operation.set(Attribute::operation_pointwise_t, condition);
    graph_.add(operation);
    return y;
  }

  const AttentionShape s_;
  Graph graph_;
  int64_t next_ = id_first_inner;
  bool countable_ = true;
};

/// Null where the library has no plan that fits. Throws Refusal. Neither takes a mask.
inline std::optional<Plan> plan_attention(const Target& target, const AttentionArgs& args, int64_t most_workspace) {
  using enum PointwiseMode;
  const AttentionShape& s = args.shape;
  AttentionGraph g(s);
  const Ref q = g.heads(id_q, args.q, s.heads, s.queries, s.width);
  const Ref k = g.heads(id_k, args.k, s.kv_heads, s.keys, s.width, true);
  const Ref v = g.heads(id_v, args.v, s.kv_heads, s.keys, s.value_width);
  const Ref y = g.heads(id_out, args.y, s.heads, s.queries, s.value_width);
  const Ref scores = g.seen(g.apply(multiply, g.product(q, k, g.scores()), g.number(id_scale), g.scores()));
  const Ref largest = g.reduce(ReductionMode::largest, scores, g.row());
  const Ref weights = g.apply(exponential, g.apply(subtract, scores, largest, g.scores()), {}, g.scores());
  const Ref sum = g.reduce(ReductionMode::sum, weights, g.row());
  // Engines know attention by its log-sum-exp, whether it is kept or not.
  g.apply(add, largest, g.apply(logarithm, sum, {}, g.row()), args.lse ? g.row_of_numbers(id_lse) : g.row());
  g.product(g.apply(divide, weights, sum, g.scores(g.type())), v, y);
  return g.plan(target, most_workspace);
}

/// The gradient of the queries is one product, whose other operand is kept in the workspace, or else parts that are
/// added up in any order.
inline std::optional<Plan> plan_attention_backward(const Target& target, const AttentionBackwardArgs& args,
                                                   int64_t most_workspace) {
  using enum PointwiseMode;
  if (args.in_any_order && library().version() < 90600) return {};  // those before do not begin with zeros
  const AttentionShape& s = args.shape;
  AttentionGraph g(s);
  const Ref q = g.heads(id_q, args.q, s.heads, s.queries, s.width);
  const Ref k = g.heads(id_k, args.k, s.kv_heads, s.keys, s.width, true);
  const Ref v = g.heads(id_v, args.v, s.kv_heads, s.keys, s.value_width, true);
  const Ref y = g.heads(id_out, args.y, s.heads, s.queries, s.value_width);
  const Ref dy = g.heads(id_grad_out, args.dy, s.heads, s.queries, s.value_width);
  const Ref dq = g.heads(id_grad_q, args.dq, s.heads, s.queries, s.width);
  const Ref dk = g.heads(id_grad_k, args.dk, s.kv_heads, s.keys, s.width);
  const Ref dv = g.heads(id_grad_v, args.dv, s.kv_heads, s.keys, s.value_width);
  const Ref lse = g.row_of_numbers(id_lse), scale = g.number(id_scale);
  // A gradient of keys or values that several heads of queries share is the sum of theirs.
  const auto gradient = [&](Ref by_queries, Ref rows, Ref result, int64_t width) {
    if (s.heads == s.kv_heads) return g.product(by_queries, rows, result);
    const Ref of_all = g.product(by_queries, rows, g.columns(s.heads, s.keys, width, g.type()));
    return g.reduce(ReductionMode::sum, of_all, result);
  };

  const Ref products = g.apply(multiply, dy, y, g.columns(s.heads, s.queries, s.value_width, DataType::f32));
  const Ref sums = g.apply(multiply, g.reduce(ReductionMode::sum, products, g.row()), g.number(id_one),
                           g.row_of_numbers(id_row_sums));
  const Ref scores = g.apply(multiply, g.product(q, k, g.scores()), scale, g.scores());
  const Ref weights = g.apply(exponential, g.seen(g.apply(subtract, scores, lse, g.scores())), {}, g.scores());
  gradient(g.flipped(weights), dy, dv, s.value_width);
  const Ref change = g.apply(subtract, g.product(dy, v, g.scores()), sums, g.scores());
  const Ref dscores = g.apply(multiply, g.apply(multiply, change, weights, g.scores()), scale, g.scores());
  gradient(g.flipped(dscores), q, dk, s.width);
  const Ref of_queries = g.product(dscores, g.rows_of_keys(k, args.k), args.in_any_order ? g.query_sums() : dq);
  if (args.in_any_order) g.apply(identity, of_queries, {}, dq);
  return g.plan(target, most_workspace, args.in_any_order);
}

}  // namespace tessera::gpu_kernels::cudnn
