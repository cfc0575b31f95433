#include "dist/way.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "tessera/ops.h"
#include "tessera/ops_shape.h"
#include "tessera/stream.h"

namespace tessera::dist {
namespace {

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

}  // namespace

Tensor Way::room(const Shape& shape, DType dtype) const {
  return through_host() ? page_locked->empty(shape, dtype, from) : empty(shape, dtype, device);
}

Tensor Way::begin_placing(const Tensor& x) const {
  if (!through_host()) return x.detach().contiguous();
  Tensor out = room(x.shape(), x.dtype());
  copy_async(out, x.detach());
  return out;
}

void Way::settle() const {
  if (!from.is_card()) return;
  Event done(from);
  done.record(current_stream(from));
  done.synchronize();
}

Tensor Way::placed(const Tensor& x) const {
  const Tensor out = begin_placing(x);
  if (through_host()) settle();
  return out;
}

Tensor Way::own_copy(const Tensor& x) const { return through_host() ? placed(x) : x.detach().clone().contiguous(); }

Tensor Way::back(const Tensor& out) const {
  if (!through_host()) return out;
  const Tensor there = out.to(from);
  settle();
  return there;
}

bool Way::in_order() const {
  static const bool asked = [] {
    const char* const text = std::getenv("TESSERA_REDUCTION");
    return text && std::string_view(text) == "ordered";
  }();
  return asked && device.is_gpu();
}

Way way_of(Device device, const Group& group, bool of_all) {
  Group::State& state = group.state();
  if (Engine* const own = state.engine_on(device, of_all)) return {own, device, device, nullptr};
  return {state.engine.get(), state.engine ? cpu() : device, device, &state.page_locked};
}

Tensor combined_share(const Tensor& x, const Way& way, const Group& group, ReduceOp op) {
  const Call call = call_of(Call::Kind::AllToAll, x, x.numel() / group.size());
  const Tensor received = empty(x.shape(), x.dtype(), x.device());
  way.engine->all_to_all(call, bytes_of(x), bytes_of(received));
  return combined(reshape(received, {group.size(), x.numel() / group.size()}), op);
}

Tensor combined_whole(const Tensor& x, const Way& way, const Group& group, ReduceOp op) {
  const int64_t n = x.numel(), each = (n + group.size() - 1) / group.size();
  if (n == 0) return x;
  Tensor flat = reshape(x, {n});
  if (each * group.size() > n) flat = pad(flat, {0}, {each * group.size() - n});
  const Tensor share = combined_share(flat.contiguous(), way, group, op).contiguous();
  const Tensor all = empty({each * group.size()}, x.dtype(), x.device());
  way.engine->all_gather(call_of(Call::Kind::AllGather, share, each), bytes_of(share), bytes_of(all));
  return reshape(slice(all, 0, 0, n), x.shape());
}

Call call_of(Call::Kind kind, const Tensor& x, int64_t count, int root, ReduceOp op) {
  Call call{
      .kind = kind, .dtype = x.dtype(), .op = op, .root = root, .count = count, .dims = static_cast<int32_t>(x.dim())};
  for (int i = 0; i < std::min<int>(x.dim(), 6); ++i) call.shape[i] = x.size(i);
  return call;
}

}  // namespace tessera::dist
