// Collectives of tensors: what is checked, what goes to the engine, and what backward calls.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "dist/group.h"
#include "tessera/autograd.h"
#include "tessera/observer.h"
#include "tessera/ops.h"
#include "tessera/ops_shape.h"
#include "tessera/stream.h"

namespace tessera::dist {
namespace {

using Kind = Call::Kind;

constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "reduce",  "all_gather", "gather", "scatter",
                                  "broadcast",  "all_to_all",     "barrier", "send",       "recv"};

bool combines(Kind kind) { return kind <= Kind::Reduce; }

Call call_of(Kind kind, const Tensor& x, int64_t count, int root = 0, ReduceOp op = Sum) {
  if (!x.defined()) throw Error(fmt::format("{}: the tensor is undefined", kNames[static_cast<int>(kind)]));
  Call call{
      .kind = kind, .dtype = x.dtype(), .op = op, .root = root, .count = count, .dims = static_cast<int32_t>(x.dim())};
  for (int i = 0; i < std::min<int>(x.dim(), 6); ++i) call.shape[i] = x.size(i);
  if (combines(kind)) check_combines(kNames[static_cast<int>(kind)], x.dtype(), op);
  return call;
}

void check_rank(const char* what, int rank, const Group& group) {
  if (rank < 0 || rank >= group.size())
    throw Error(fmt::format("{}: there is no rank {} among {}", what, rank, group.size()));
}

// Rows of dim 0 for each rank.
int64_t rows_of_each(const char* what, const Tensor& x, const Group& group) {
  const int64_t rows = x.defined() && x.dim() > 0 ? x.size(0) : 0;
  if (!x.defined() || x.dim() == 0 || rows % group.size() != 0)
    throw Error(fmt::format("{}: {} has not a multiple of {} rows", what,
                            x.defined() ? to_string(x.shape()) : "nothing", group.size()));
  return rows / group.size();
}

// How a tensor goes to other ranks: from its own device, or through the host.
struct Way {
  Engine* engine;  // null where the rank is alone
  Device device, from;
  PageLocked* page_locked;
  bool through_host() const { return !(device == from); }
  // Where it goes from, or where it comes to.
  Tensor room(const Shape& shape, DType dtype) const {
    return through_host() ? page_locked->empty(shape, dtype, from) : empty(shape, dtype, device);
  }
  // Until copies have arrived.
  void settle() const {
    if (!from.is_card()) return;
    Event done(from);
    done.record(current_stream(from));
    done.synchronize();
  }
  // A copy is on its way to memory of the host. The host waits for it in settle().
  Tensor begin_placing(const Tensor& x) const {
    if (!through_host()) return x.detach().contiguous();
    Tensor out = room(x.shape(), x.dtype());
    copy_async(out, x.detach());
    return out;
  }
  Tensor back(const Tensor& out) const {
    if (!through_host()) return out;
    const Tensor there = out.to(from);
    settle();
    return there;
  }
};
Way way_of(Device device, const Group& group, bool of_all = true) {
  Group::State& state = group.state();
  if (Engine* const own = state.engine_on(device, of_all)) return {own, device, device, nullptr};
  return {state.engine.get(), state.engine ? cpu() : device, device, &state.page_locked};
}
Way way_of(const Tensor& x, const Group& group) { return way_of(x.device(), group); }

Shape with_rows(const Tensor& like, int64_t rows) {
  Shape shape = like.shape();
  shape[0] = rows;
  return shape;
}

// Row-major where it goes from; as own copy in memory that this call alone writes.
Tensor placed(const Tensor& x, const Way& way) {
  const Tensor out = way.begin_placing(x);
  if (way.through_host()) way.settle();
  return out;
}
Tensor own_copy(const Tensor& x, const Way& way) {
  return way.through_host() ? placed(x, way) : x.detach().clone().contiguous();
}

// ---- sums of GPUs in the order of the host's, which is slower than the library's own

bool in_order(const Way& way) {
  static const bool asked = [] {
    const char* const text = std::getenv("TESSERA_REDUCTION");
    return text && std::string_view(text) == "ordered";
  }();
  return asked && way.device.is_gpu();
}

// Rows of all ranks along combine()'s tree.
Tensor combined(const Tensor& rows, ReduceOp op) {
  const DType dtype = rows.dtype(), wide = dtype == Float16 || dtype == BFloat16 ? Float32
                                           : dtype == Bool                       ? Int32
                                                                                 : dtype;
  Tensors level = unbind(cast(rows, wide), 0);
  while (level.size() > 1) {
    Tensors next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) {
      const Tensor &a = level[i], &b = level[i + 1];
      next.push_back(op == Max ? maximum(a, b) : op == Min ? minimum(a, b) : op == Product ? a * b : a + b);
    }
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = std::move(next);
  }
  if (op == Mean) level[0] = level[0] / full({}, static_cast<double>(rows.size(0)), level[0].dtype(), rows.device());
  return cast(level[0], dtype);
}

char* bytes_of(const Tensor& x) { return static_cast<char*>(x.data_ptr()); }

// x [size * n], combined: this rank's n.
Tensor combined_share(const Tensor& x, const Way& way, const Group& group, ReduceOp op) {
  const Call call = call_of(Kind::AllToAll, x, x.numel() / group.size());
  const Tensor received = empty(x.shape(), x.dtype(), x.device());
  way.engine->all_to_all(call, bytes_of(x), bytes_of(received));
  return combined(reshape(received, {group.size(), x.numel() / group.size()}), op);
}

// All elements, combined.
Tensor combined_whole(const Tensor& x, const Way& way, const Group& group, ReduceOp op) {
  const int64_t n = x.numel(), each = (n + group.size() - 1) / group.size();
  if (n == 0) return x;
  Tensor flat = reshape(x, {n});
  if (each * group.size() > n) flat = pad(flat, {0}, {each * group.size() - n});
  const Tensor share = combined_share(flat.contiguous(), way, group, op).contiguous();
  const Tensor all = empty({each * group.size()}, x.dtype(), x.device());
  way.engine->all_gather(call_of(Kind::AllGather, share, each), bytes_of(share), bytes_of(all));
  return reshape(slice(all, 0, 0, n), x.shape());
}

using Collective = std::function<Tensor(const Tensor&)>;

// forward(x), of whose gradient backward makes that of x.
Tensor differentiable(const char* name, const Tensor& x, const Collective& forward, const Collective& backward) {
  const NamedScope scope(name);  // for profiles
  if (!x.defined() || !grad_enabled() || !x.requires_grad()) return forward(x);
  return custom_function(
      name, {x}, [forward](const Tensors& in) { return Tensors{forward(in[0])}; },
      [backward](const Tensors&, const Tensors& out, const Tensors& grads) {
        return Tensors{
            backward(grads[0].defined() ? grads[0] : zeros(out[0].shape(), out[0].dtype(), out[0].device()))};
      })[0];
}

Tensor mean_share(const Tensor& grad, ReduceOp op, const Group& group) {
  return op == Mean ? grad / static_cast<double>(group.size()) : grad;
}

void check_differentiable(const char* what, const Tensor& x, ReduceOp op) {
  if (x.defined() && grad_enabled() && x.requires_grad() && op != Sum && op != Mean)
    throw Error(fmt::format("{}: {} has no gradient", what, name(op)));
}

}  // namespace

std::string_view name_of(Call::Kind kind) {
  return kNames[std::min<size_t>(static_cast<size_t>(kind), std::size(kNames) - 1)];
}

std::string_view name(ReduceOp op) {
  constexpr std::string_view names[] = {"sum", "mean", "product", "max", "min"};
  return names[static_cast<int>(op)];
}

std::string to_string(const Call& call) {
  const char* const what = kNames[static_cast<int>(call.kind)];
  if (call.kind == Kind::Barrier) return what;
  const std::string op = combines(call.kind) ? fmt::format(" {}", name(call.op)) : "";
  const std::string root = call.kind == Kind::Reduce || call.kind == Kind::Gather || call.kind == Kind::Scatter ||
                                   call.kind == Kind::Broadcast
                               ? fmt::format(" with root {}", call.root)
                               : "";
  if (call.dims < 0) return fmt::format("{}{} of {} {} in a list{}", what, op, call.count, name(call.dtype), root);
  const int shown = std::min<int>(call.dims, 6);
  return fmt::format("{}{} of {}[{}{}]{}", what, op, name(call.dtype), fmt::join(call.shape, call.shape + shown, ", "),
                     call.dims > shown ? ", ..." : "", root);
}

Tensor all_reduce(const Tensor& x, const Group& group, ReduceOp op) {
  check_differentiable("all_reduce", x, op);
  return differentiable(
      "all_reduce", x,
      [=](const Tensor& in) {
        const Call call = call_of(Kind::AllReduce, in, in.numel(), 0, op);
        const Way way = way_of(in, group);
        if (in_order(way)) return combined_whole(placed(in, way), way, group, op);
        const Tensor out = own_copy(in, way);
        const Segment all{bytes_of(out), out.numel()};
        if (way.engine) way.engine->all_reduce(call, {&all, 1});
        return way.back(out);
      },
      [=](const Tensor& grad) { return mean_share(all_reduce(grad, group), op, group); });
}

void all_reduce_(const Tensors& tensors, const Group& group, ReduceOp op) {
  if (tensors.empty() || !group.state().engine) return;
  const NoGrad no_grad;
  const NamedScope scope("all_reduce");
  Call call = call_of(Kind::AllReduce, tensors[0], 0, 0, op);
  call.dims = -1;
  std::fill(std::begin(call.shape), std::end(call.shape), 0);
  const Way way = way_of(tensors[0], group);
  std::vector<Segment> segments;
  Tensors sent;
  for (const Tensor& t : tensors) {
    if (t.dtype() != call.dtype)
      throw Error(fmt::format("all_reduce_: a list of {} and {}", name(call.dtype), name(t.dtype())));
    sent.push_back(way.begin_placing(t));  // t itself where it lies so already
    segments.push_back({bytes_of(sent.back()), t.numel()});
    call.count += t.numel();
  }
  if (way.through_host()) way.settle();
  if (in_order(way)) {
    Tensors flat;
    for (const Tensor& t : sent) flat.push_back(reshape(t, {t.numel()}));
    const Tensor all = combined_whole(concat(flat, 0), way, group, op);
    for (int64_t at = 0; Tensor & t : sent) {
      t = reshape(slice(all, 0, at, at + t.numel()), t.shape());
      at += t.numel();
    }
  } else {
    way.engine->all_reduce(call, segments);
  }
  for (size_t i = 0; i < tensors.size(); ++i)
    if (sent[i].data_ptr() != tensors[i].data_ptr()) Tensor(tensors[i]).copy_(sent[i]);
  if (way.through_host()) way.settle();
}

Tensor reduce(const Tensor& x, int root, const Group& group, ReduceOp op) {
  check_rank("reduce", root, group);
  check_differentiable("reduce", x, op);
  return differentiable(
      "reduce", x,
      [=](const Tensor& in) {
        const Call call = call_of(Kind::Reduce, in, in.numel(), root, op);
        const Way way = way_of(in, group);
        if (in_order(way)) {
          const Tensor sum = combined_whole(placed(in, way), way, group, op);
          return group.rank() == root ? sum : in.clone();
        }
        const Tensor out = own_copy(in, way);
        if (way.engine) way.engine->reduce(call, bytes_of(out));
        return way.back(out);
      },
      [=](const Tensor& grad) { return mean_share(broadcast(grad, root, group), op, group); });
}

Tensor reduce_scatter(const Tensor& x, const Group& group, ReduceOp op) {
  const int64_t rows = rows_of_each("reduce_scatter", x, group);
  check_differentiable("reduce_scatter", x, op);
  return differentiable(
      "reduce_scatter", x,
      [=](const Tensor& in) {
        const Call call = call_of(Kind::ReduceScatter, in, in.numel() / group.size(), 0, op);
        const Way way = way_of(in, group);
        if (!way.engine) return in.clone();
        const Tensor from = placed(in, way), out = way.room(with_rows(in, rows), in.dtype());
        if (in_order(way)) return reshape(combined_share(from, way, group, op), out.shape());
        way.engine->reduce_scatter(call, bytes_of(from), bytes_of(out));
        return way.back(out);
      },
      [=](const Tensor& grad) { return mean_share(all_gather(grad, group), op, group); });
}

Tensor all_gather(const Tensor& x, const Group& group) {
  if (!x.defined() || x.dim() == 0) throw Error("all_gather: there is no dim along which to put tensors together");
  return differentiable(
      "all_gather", x,
      [=](const Tensor& in) {
        const Call call = call_of(Kind::AllGather, in, in.numel());
        const Way way = way_of(in, group);
        if (!way.engine) return in.clone();
        const Tensor from = placed(in, way), out = way.room(with_rows(in, in.size(0) * group.size()), in.dtype());
        way.engine->all_gather(call, bytes_of(from), bytes_of(out));
        return way.back(out);
      },
      [=](const Tensor& grad) { return reduce_scatter(grad, group); });
}

Tensor gather(const Tensor& x, int root, const Group& group) {
  check_rank("gather", root, group);
  if (!x.defined() || x.dim() == 0) throw Error("gather: there is no dim along which to put tensors together");
  const bool is_root = group.rank() == root;
  const int64_t rows = x.size(0) * group.size();
  return differentiable(
      "gather", x,
      [=](const Tensor& in) {
        const Call call = call_of(Kind::Gather, in, in.numel(), root);
        const Way way = way_of(in, group);
        if (!way.engine) return in.clone();
        const Tensor from = placed(in, way), out = way.room(with_rows(in, is_root ? rows : 0), in.dtype());
        way.engine->gather(call, bytes_of(from), bytes_of(out));
        return way.back(out);
      },
      [=](const Tensor& grad) {
        return scatter(is_root ? grad : empty(with_rows(grad, rows), grad.dtype(), grad.device()), root, group);
      });
}

Tensor scatter(const Tensor& x, int root, const Group& group) {
  check_rank("scatter", root, group);
  const int64_t rows = rows_of_each("scatter", x, group);
  return differentiable(
      "scatter", x,
      [=](const Tensor& in) {
        const Call call = call_of(Kind::Scatter, in, in.numel() / group.size(), root);
        const Way way = way_of(in, group);
        if (!way.engine) return in.clone();
        const Tensor from = placed(in, way), out = way.room(with_rows(in, rows), in.dtype());
        way.engine->scatter(call, bytes_of(from), bytes_of(out));
        return way.back(out);
      },
      [=](const Tensor& grad) {
        const Tensor all = gather(grad, root, group);
        return group.rank() == root ? all : zeros(with_rows(grad, rows * group.size()), grad.dtype(), grad.device());
      });
}

Tensor broadcast(const Tensor& x, int root, const Group& group) {
  check_rank("broadcast", root, group);
  return differentiable(
      "broadcast", x,
      [=](const Tensor& in) {
        const Call call = call_of(Kind::Broadcast, in, in.numel(), root);
        const Way way = way_of(in, group);
        const Tensor out = own_copy(in, way);
        if (way.engine) way.engine->broadcast(call, bytes_of(out));
        return way.back(out);
      },
      [=](const Tensor& grad) {
        const Tensor sum = reduce(grad, root, group);
        return group.rank() == root ? sum : zeros(grad.shape(), grad.dtype(), grad.device());
      });
}

Tensor all_to_all(const Tensor& x, const Group& group) {
  rows_of_each("all_to_all", x, group);
  return differentiable(
      "all_to_all", x,
      [=](const Tensor& in) {
        const Call call = call_of(Kind::AllToAll, in, in.numel() / group.size());
        const Way way = way_of(in, group);
        if (!way.engine) return in.clone();
        const Tensor from = placed(in, way), out = way.room(in.shape(), in.dtype());
        way.engine->all_to_all(call, bytes_of(from), bytes_of(out));
        return way.back(out);
      },
      [=](const Tensor& grad) { return all_to_all(grad, group); });
}

void send(const Tensor& x, int to, const Group& group) {
  check_rank("send", to, group);
  if (!x.defined()) throw Error("send: the tensor is undefined");
  if (to == group.rank()) throw Error("send: a rank does not send to itself");
  const NamedScope scope("send");
  const Way way = way_of(x.device(), group, false);
  const Tensor from = placed(x, way);
  way.engine->send(bytes_of(from), from.numel() * static_cast<int64_t>(size_of(from.dtype())), to);
}

Tensor recv(const TensorMeta& meta, int from, const Group& group) {
  check_rank("recv", from, group);
  if (from == group.rank()) throw Error("recv: a rank does not receive from itself");
  const NamedScope scope("recv");
  const Way way = way_of(meta.device, group, false);
  const Tensor out = way.room(meta.shape, meta.dtype);
  way.engine->recv(bytes_of(out), out.numel() * static_cast<int64_t>(size_of(out.dtype())), from);
  return way.back(out);
}

void barrier(const Group& group) {
  const NamedScope scope("barrier");
  if (Engine* engine = group.state().engine.get()) engine->barrier();
}

}  // namespace tessera::dist
