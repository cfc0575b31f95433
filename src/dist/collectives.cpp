// Collectives of tensors, which are operators: what is checked, what goes to the engine, and what backward calls.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "core/capture_state.h"
#include "dist/collective_ops.h"
#include "dist/way.h"
#include "ops/op_table.h"
#include "ops/registry.h"
#include "tessera/autograd.h"
#include "tessera/observer.h"
#include "tessera/ops.h"

namespace tessera {

bool AttrTraits<dist::ReduceOp>::assign(dist::ReduceOp& member, const AttrValue& value) {
  const auto* const text = std::get_if<std::string>(&value);
  if (!text) return false;
  for (const dist::ReduceOp op : {dist::Sum, dist::Mean, dist::Product, dist::Max, dist::Min})
    if (dist::name(op) == *text) return member = op, true;
  throw Error(fmt::format("'{}' is none of sum, mean, product, max, min", *text));
}

namespace dist {
namespace {

using Kind = Call::Kind;

constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "reduce",  "all_gather", "gather", "scatter",
                                       "broadcast",  "all_to_all",     "barrier", "send",       "recv"};

// ---- attributes

struct GroupObject final : AttrObject {
  explicit GroupObject(const Group& group) : group(group) {}
  std::string text() const override { return fmt::format("a group of {} ranks", group.size()); }
  bool equals(const AttrObject& other) const override {
    const auto* same = dynamic_cast<const GroupObject*>(&other);
    return same && &same->group.state() == &group.state();
  }
  const Group group;
};

CollectiveAttrs attrs_for(const Group& group, ReduceOp op = Sum, int root = 0) {
  return {Ref<AttrObject>(make_ref<GroupObject>(group)), op, root};
}
const Group& group_of(std::string_view what, const CollectiveAttrs& attrs) {
  const auto* const object = dynamic_cast<const GroupObject*>(attrs.group.get());
  if (!object) throw Error(fmt::format("{}: it has no group, which text cannot hold", what));
  return object->group;
}
const Group& group_of(const Saved& s) { return group_of("backward", s.attrs.as<CollectiveAttrs>()); }

// ---- shapes

bool combines(Kind kind) { return kind <= Kind::Reduce; }
bool has_root(Kind kind) {
  return kind == Kind::Reduce || kind == Kind::Gather || kind == Kind::Scatter || kind == Kind::Broadcast;
}
bool divides(Kind kind) { return kind == Kind::ReduceScatter || kind == Kind::Scatter || kind == Kind::AllToAll; }
bool puts_together(Kind kind) { return kind == Kind::AllGather || kind == Kind::Gather; }

void check_rank(std::string_view what, int64_t rank, const Group& group) {
  if (rank < 0 || rank >= group.size())
    throw Error(fmt::format("{}: there is no rank {} among {}", what, rank, group.size()));
}

Shape with_rows(Shape shape, Dim rows) {
  shape[0] = rows;
  return shape;
}

// Of what a rank gets for its x. Whether symbolic rows can be divided is known where they are numbers.
Shape shape_of_result(Kind kind, const Shape& shape, const Group& group, int64_t root) {
  const std::string_view what = name_of(kind);
  if (puts_together(kind) && shape.empty())
    throw Error(fmt::format("{}: there is no dim along which to put tensors together", what));
  if (divides(kind) && (shape.empty() || (!shape[0].is_symbolic() && shape[0].value() % group.size() != 0)))
    throw Error(fmt::format("{}: {} has not a multiple of {} rows", what, to_string(shape), group.size()));
  if (kind == Kind::AllGather) return with_rows(shape, shape[0] * group.size());
  if (kind == Kind::Gather) return with_rows(shape, group.rank() == root ? shape[0] * group.size() : Dim(0));
  if (kind == Kind::ReduceScatter || kind == Kind::Scatter) return with_rows(shape, shape[0] / group.size());
  return shape;
}

template <Kind kind>
Metas infer(std::span<const TensorMeta> in, const Attrs& attrs) {
  const auto& a = attrs.as<CollectiveAttrs>();
  const std::string_view what = name_of(kind);
  require_inputs(what, in);
  const Group& group = group_of(what, a);
  if (has_root(kind)) check_rank(what, a.root, group);
  if (combines(kind)) check_combines(what, in[0].dtype, a.op);
  return {{shape_of_result(kind, in[0].shape, group, a.root), in[0].dtype, in[0].device}};
}

// ---- what goes to the engine

using Moves = void (Engine::*)(const Call&, const char*, char*);
constexpr Moves moves_of(Kind kind) {
  switch (kind) {
    case Kind::ReduceScatter:
      return &Engine::reduce_scatter;
    case Kind::AllGather:
      return &Engine::all_gather;
    case Kind::Gather:
      return &Engine::gather;
    case Kind::Scatter:
      return &Engine::scatter;
    default:
      return &Engine::all_to_all;
  }
}

// From one tensor to another.
template <Kind kind>
Tensors move_elements(std::span<const Tensor> in, const Attrs& attrs) {
  const NoGrad no_grad;
  const auto& a = attrs.as<CollectiveAttrs>();
  const Group& group = group_of(name_of(kind), a);
  const Tensor& x = in[0];
  const Way way = way_of(x.device(), group);
  if (!way.engine) return {x.clone()};
  const Call call = call_of(kind, x, divides(kind) ? x.numel() / group.size() : x.numel(), static_cast<int>(a.root),
                            combines(kind) ? a.op : Sum);
  const Tensor from = way.placed(x), out = way.room(shape_of_result(kind, x.shape(), group, a.root), x.dtype());
  if (kind == Kind::ReduceScatter && way.in_order())
    return {reshape(combined_share(from, way, group, a.op), out.shape())};
  (way.engine->*moves_of(kind))(call, bytes_of(from), bytes_of(out));
  return {way.back(out)};
}

// In a copy of x.
template <Kind kind>
Tensors change_copy(std::span<const Tensor> in, const Attrs& attrs) {
  const NoGrad no_grad;
  const auto& a = attrs.as<CollectiveAttrs>();
  const Group& group = group_of(name_of(kind), a);
  const Tensor& x = in[0];
  const Way way = way_of(x.device(), group);
  if (combines(kind) && way.in_order()) {
    const Tensor sum = combined_whole(way.placed(x), way, group, a.op);
    return {kind == Kind::AllReduce || group.rank() == a.root ? sum : x.clone()};
  }
  const Tensor out = way.own_copy(x);
  if (!way.engine) return {way.back(out)};
  const Call call = call_of(kind, x, x.numel(), static_cast<int>(a.root), combines(kind) ? a.op : Sum);
  const Segment all{bytes_of(out), out.numel()};
  if (kind == Kind::AllReduce) way.engine->all_reduce(call, {&all, 1});
  else if (kind == Kind::Reduce) way.engine->reduce(call, all.data);
  else way.engine->broadcast(call, all.data);
  return {way.back(out)};
}

// ---- a list, in place

Metas infer_list(std::span<const TensorMeta> in, const Attrs& attrs) {
  const auto& a = attrs.as<CollectiveAttrs>();
  require_inputs("all_reduce_", in);
  group_of("all_reduce_", a);
  Metas out;
  for (const TensorMeta& t : in) {
    if (t.dtype != in[0].dtype)
      throw Error(fmt::format("all_reduce_: a list of {} and {}", name(in[0].dtype), name(t.dtype)));
    out.push_back({t.shape, t.dtype, t.device});
  }
  if (!in.empty()) check_combines("all_reduce_", in[0].dtype, a.op);
  return out;
}

Tensors reduce_list(std::span<const Tensor> tensors, const Attrs& attrs) {
  const NoGrad no_grad;
  const auto& a = attrs.as<CollectiveAttrs>();
  const Group& group = group_of("all_reduce_", a);
  Call call{.kind = Kind::AllReduce, .dtype = tensors[0].dtype(), .op = a.op, .dims = -1};
  const Way way = way_of(tensors[0].device(), group);
  std::vector<Segment> segments;
  Tensors sent;
  for (const Tensor& t : tensors) {
    sent.push_back(way.begin_placing(t));  // t itself where it lies so already
    segments.push_back({bytes_of(sent.back()), t.numel()});
    call.count += t.numel();
  }
  if (way.through_host()) way.settle();
  if (way.in_order()) {
    Tensors flat;
    for (const Tensor& t : sent) flat.push_back(reshape(t, {t.numel()}));
    const Tensor all = combined_whole(concat(flat, 0), way, group, a.op);
    for (int64_t at = 0; Tensor & t : sent) {
      t = reshape(slice(all, 0, at, at + t.numel()), t.shape());
      at += t.numel();
    }
  } else if (way.engine) {
    way.engine->all_reduce(call, segments);
  }
  for (size_t i = 0; i < tensors.size(); ++i)
    if (sent[i].place() != tensors[i].place()) Tensor(tensors[i]).copy_(sent[i]);
  if (way.through_host()) way.settle();
  return Tensors(tensors.begin(), tensors.end());
}

// ---- gradients: the reverse collective, by all ranks

Tensor mean_share(const Tensor& grad, const Saved& s) {
  return s.attrs.as<CollectiveAttrs>().op == Mean ? grad / static_cast<double>(group_of(s).size()) : grad;
}
int root_of(const Saved& s) { return static_cast<int>(s.attrs.as<CollectiveAttrs>().root); }

void check_differentiable(std::string_view what, ReduceOp op) {
  if (op != Sum && op != Mean) throw Error(fmt::format("{}: {} has no gradient", what, name(op)));
}
void check_differentiable(std::string_view what, const Tensor& x, ReduceOp op) {
  if (x.defined() && grad_enabled() && x.requires_grad()) check_differentiable(what, op);
}

// Zeros that take part in what `x` takes part in: where backward is differentiated, all ranks call the same again.
Tensor zeros_with(const Tensor& x, const Shape& shape) {
  const Tensor all = zeros(shape, x.dtype(), x.device());
  if (!grad_enabled() || !x.requires_grad()) return all;
  const Tensor none = slice(reshape(x, {x.shape().numel()}), 0, 0, 0);
  return reshape(concat({none, reshape(all, {shape.numel()})}, 0), shape);
}

Tensors all_reduce_vjp(const Saved& s, const Tensors& grads) {
  check_differentiable("all_reduce", s.attrs.as<CollectiveAttrs>().op);
  return {mean_share(all_reduce(grads[0], group_of(s)), s)};
}
Tensors reduce_scatter_vjp(const Saved& s, const Tensors& grads) {
  check_differentiable("reduce_scatter", s.attrs.as<CollectiveAttrs>().op);
  return {mean_share(all_gather(grads[0], group_of(s)), s)};
}
Tensors reduce_vjp(const Saved& s, const Tensors& grads) {
  check_differentiable("reduce", s.attrs.as<CollectiveAttrs>().op);
  return {mean_share(broadcast(grads[0], root_of(s), group_of(s)), s)};
}
Tensors all_gather_vjp(const Saved& s, const Tensors& grads) { return {reduce_scatter(grads[0], group_of(s))}; }
Tensors gather_vjp(const Saved& s, const Tensors& grads) {
  const Group& group = group_of(s);
  const Shape& mine = s.metas[0].shape;
  const bool is_root = group.rank() == root_of(s);
  const Tensor all = is_root ? grads[0] : zeros_with(grads[0], with_rows(mine, mine[0] * group.size()));
  return {scatter(all, root_of(s), group)};
}
Tensors scatter_vjp(const Saved& s, const Tensors& grads) {
  const Group& group = group_of(s);
  const Tensor all = gather(grads[0], root_of(s), group);
  return {group.rank() == root_of(s) ? all : zeros_with(all, s.metas[0].shape)};
}
Tensors broadcast_vjp(const Saved& s, const Tensors& grads) {
  const Group& group = group_of(s);
  const Tensor sum = reduce(grads[0], root_of(s), group);
  return {group.rank() == root_of(s) ? sum : zeros_with(sum, sum.shape())};
}
Tensors all_to_all_vjp(const Saved& s, const Tensors& grads) { return {all_to_all(grads[0], group_of(s))}; }

// ---- the table

constexpr Op collective(std::string_view name, Metas (*infer)(std::span<const TensorMeta>, const Attrs&),
                        Tensors (*compute)(std::span<const Tensor>, const Attrs&),
                        Tensors (*vjp)(const Saved&, const Tensors&), uint32_t metas = 0) {
  return {.name = name,
          .inputs = "x",
          .outputs = "y",
          .attrs = attrs_of<CollectiveAttrs>,
          .infer = infer,
          .vjp = vjp,
          .saves = {.metas = metas},
          .pitched = Pitched::None,
          .compute = compute};
}

const Op all_reduce_op = collective("all_reduce", infer<Kind::AllReduce>, change_copy<Kind::AllReduce>, all_reduce_vjp);
const Op reduce_op = collective("reduce", infer<Kind::Reduce>, change_copy<Kind::Reduce>, reduce_vjp);
const Op reduce_scatter_op =
    collective("reduce_scatter", infer<Kind::ReduceScatter>, move_elements<Kind::ReduceScatter>, reduce_scatter_vjp);
const Op all_gather_op =
    collective("all_gather", infer<Kind::AllGather>, move_elements<Kind::AllGather>, all_gather_vjp);
const Op gather_ranks_op = collective("gather_ranks", infer<Kind::Gather>, move_elements<Kind::Gather>, gather_vjp, 1);
const Op scatter_ranks_op =
    collective("scatter_ranks", infer<Kind::Scatter>, move_elements<Kind::Scatter>, scatter_vjp, 1);
const Op broadcast_op = collective("broadcast", infer<Kind::Broadcast>, change_copy<Kind::Broadcast>, broadcast_vjp);
const Op all_to_all_op = collective("all_to_all", infer<Kind::AllToAll>, move_elements<Kind::AllToAll>, all_to_all_vjp);
const Op all_reduce_list_op = {.name = "all_reduce_",
                               .inputs = "tensors...",
                               .outputs = "sums...",
                               .attrs = attrs_of<CollectiveAttrs>,
                               .infer = infer_list,
                               .in_place = true,
                               .pitched = Pitched::None,
                               .compute = reduce_list};

Tensor call(const Op& op, const Tensor& x, const CollectiveAttrs& attrs) {
  const NamedScope scope(op.name);  // for profiles
  return dispatch_one(op, {x}, attrs);
}

// What is no operator would run once, where the function is captured.
void check_not_captured(std::string_view what) {
  if (is_capturing()) throw Error(fmt::format("{}: a captured function cannot hold it", what));
}

}  // namespace

std::span<const Op* const> collective_ops() {
  static constexpr const Op* ops[] = {&all_reduce_op, &reduce_op,       &reduce_scatter_op,
                                      &all_gather_op, &gather_ranks_op, &scatter_ranks_op,
                                      &broadcast_op,  &all_to_all_op,   &all_reduce_list_op};
  static const bool added = (tessera::add_ops("Collectives of ranks", ops), true);
  return added ? std::span<const Op* const>(ops) : std::span<const Op* const>();
}

std::string_view name_of(Call::Kind kind) {
  return kNames[std::min<size_t>(static_cast<size_t>(kind), std::size(kNames) - 1)];
}

std::string_view name(ReduceOp op) {
  constexpr std::string_view names[] = {"sum", "mean", "product", "max", "min"};
  return names[static_cast<int>(op)];
}

std::string to_string(const Call& call) {
  const std::string what(name_of(call.kind));
  if (call.kind == Kind::Barrier) return what;
  const std::string op = combines(call.kind) ? fmt::format(" {}", name(call.op)) : "";
  const std::string root = has_root(call.kind) ? fmt::format(" with root {}", call.root) : "";
  if (call.dims < 0) return fmt::format("{}{} of {} {} in a list{}", what, op, call.count, name(call.dtype), root);
  const int shown = std::min<int>(call.dims, 6);
  return fmt::format("{}{} of {}[{}{}]{}", what, op, name(call.dtype), fmt::join(call.shape, call.shape + shown, ", "),
                     call.dims > shown ? ", ..." : "", root);
}

Tensor all_reduce(const Tensor& x, const Group& group, ReduceOp op) {
  check_differentiable("all_reduce", x, op);
  return call(all_reduce_op, x, attrs_for(group, op));
}

void all_reduce_(const Tensors& tensors, const Group& group, ReduceOp op) {
  if (tensors.empty() || !group.state().engine) return;
  const NoGrad no_grad;
  const NamedScope scope("all_reduce");
  dispatch(all_reduce_list_op, Tensors(tensors), attrs_for(group, op));
}

Tensor reduce(const Tensor& x, int root, const Group& group, ReduceOp op) {
  check_differentiable("reduce", x, op);
  return call(reduce_op, x, attrs_for(group, op, root));
}

Tensor reduce_scatter(const Tensor& x, const Group& group, ReduceOp op) {
  check_differentiable("reduce_scatter", x, op);
  return call(reduce_scatter_op, x, attrs_for(group, op));
}

Tensor all_gather(const Tensor& x, const Group& group) { return call(all_gather_op, x, attrs_for(group)); }
Tensor gather(const Tensor& x, int root, const Group& group) {
  return call(gather_ranks_op, x, attrs_for(group, Sum, root));
}
Tensor scatter(const Tensor& x, int root, const Group& group) {
  return call(scatter_ranks_op, x, attrs_for(group, Sum, root));
}
Tensor broadcast(const Tensor& x, int root, const Group& group) {
  return call(broadcast_op, x, attrs_for(group, Sum, root));
}
Tensor all_to_all(const Tensor& x, const Group& group) { return call(all_to_all_op, x, attrs_for(group)); }

void send(const Tensor& x, int to, const Group& group) {
  check_not_captured("send");
  check_rank("send", to, group);
  if (!x.defined()) throw Error("send: the tensor is undefined");
  if (to == group.rank()) throw Error("send: a rank does not send to itself");
  const NamedScope scope("send");
  const Way way = way_of(x.device(), group, false);
  const Tensor from = way.placed(x);
  way.engine->send(bytes_of(from), from.numel() * static_cast<int64_t>(size_of(from.dtype())), to);
}

Tensor recv(const TensorMeta& meta, int from, const Group& group) {
  check_not_captured("recv");
  check_rank("recv", from, group);
  if (from == group.rank()) throw Error("recv: a rank does not receive from itself");
  const NamedScope scope("recv");
  const Way way = way_of(meta.device, group, false);
  const Tensor out = way.room(meta.shape, meta.dtype);
  way.engine->recv(bytes_of(out), out.numel() * static_cast<int64_t>(size_of(out.dtype())), from);
  return way.back(out);
}

void barrier(const Group& group) {
  check_not_captured("barrier");
  const NamedScope scope("barrier");
  if (Engine* engine = group.state().engine.get()) engine->barrier();
}

}  // namespace dist
}  // namespace tessera
