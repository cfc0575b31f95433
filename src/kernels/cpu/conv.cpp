// The CPU's convolutions: by Winograd's algorithm, by kernels whose vectors run along channels that lie last or along
// rows, or as products of implicit matrices.
#include "kernels/shared/conv.h"
#include "core/conv_attrs.h"
#include "kernels/cpu/conv_cost.h"
#include "kernels/shared/matmul.h"
#include "kernels/shared/panels.h"

namespace tessera::cpu_kernels {

DType conv_dtype(const Operand& t) { return t.dtype() == Float64 ? Float64 : Float32; }

namespace {

using Bytes = long long (*ConvTable::*)(const ConvArgs&);
using Run = void (*ConvTable::*)(const ConvArgs&, Executor&);

// A convolution, or a gradient, by functions of the table, of images as they lie or copied into channels last.
template <ConvArgs (*args)(const Call&, Workspace&, Last), Bytes bytes, Run run, Last last = Last::None>
void by(const Call& call, Workspace& workspace) {
  convolve(call, workspace, args(call, workspace, last), conv_table().*bytes, conv_table().*run);
}

Reason if_least(bool least) { return least ? Reason::Ok : Reason::Slower; }

// Winograd's algorithm trades multiplications, of which a tile of 2x2 outputs saves 20 for each channel and filter, for
// transforms of tiles and filters.
Reason takes_tiles(const Call& call, int64_t least) {
  const Operand &from = call.in[0], &weight = call.in[1], &to = call.out[0];
  auto& a = call.attrs.as<ConvAttrs>();
  for (int d = 0; d < 2; ++d)
    if (weight.size(2 + d) != 3 || a.stride[d] != 1 || a.dilation[d] != 1) return Reason::Window;
  if (a.groups != 1) return Reason::Window;
  if (conv_dtype(from) != Float32) return Reason::DType;
  const int64_t tiles = to.size(0) * ((to.size(2) + 1) / 2) * ((to.size(3) + 1) / 2);
  return from.size(1) < 16 || to.size(1) < 16 || tiles < least ? Reason::Small : Reason::Ok;
}
Reason takes_winograd(const Call& call) { return takes_tiles(call, 64); }

// The gradient of the output is padded by what is missing to 2.
template <Reason (*takes)(const Call&)>
Reason input_grad_takes(const Call& call) {
  const Reason reason = takes(call);
  auto& a = call.attrs.as<ConvAttrs>();
  return reason == Reason::Ok && (a.padding[0] > 2 || a.padding[1] > 2) ? Reason::Shape : reason;
}

// ---- over channels that lie last: vectors run along those of what is computed

Reason lie_last(std::initializer_list<const Operand*> images) {
  for (const Operand* t : images) {
    if (t->dtype() != Float32) return Reason::DType;
    if (t->size(1) != 1 && t->strides()[1] != 1) return Reason::Layout;
  }
  return Reason::Ok;
}
Reason takes_direct(const Call& call) { return lie_last({&call.in[0], &call.out[0]}); }
Reason takes_winograd_last(const Call& call) {
  const Reason reason = takes_direct(call);
  return reason == Reason::Ok ? takes_tiles(call, 48) : reason;
}
// Short rows make slow products of implicit matrices, whose vectors run along them.
constexpr int64_t short_row = 32;
bool has_taps(const Operand& weight) { return weight.size(2) * weight.size(3) > 1; }
bool is_strided(const Call& call) {
  const auto& a = call.attrs.as<ConvAttrs>();
  return a.stride[0] * a.stride[1] > 1;
}

// Each channel has a filter of its own.
Reason takes_depthwise(const Call& call, const Operand& weight, std::initializer_list<const Operand*> images) {
  if (weight.size(1) != 1 || weight.size(0) != call.attrs.as<ConvAttrs>().groups) return Reason::Shape;
  return weight.dtype() == Float32 ? lie_last(images) : Reason::DType;
}
Reason takes_depthwise(const Call& call) { return takes_depthwise(call, call.in[1], {&call.in[0], &call.out[0]}); }
Reason weight_grad_takes_depthwise(const Call& call) {
  return takes_depthwise(call, call.out[0], {&call.in[0], &call.in[1]});
}

// ---- over planes: vectors run along rows, so that a group may have few filters

bool rows_lie(std::initializer_list<const Operand*> images) {
  return std::ranges::all_of(images, [](const Operand* t) { return t->size(3) == 1 || t->strides()[3] == 1; });
}
// Of no images, channels or filters, whose costs mean nothing.
bool is_empty(const Call& call) {
  return call.in[0].numel() == 0 || call.in[1].numel() == 0 || call.out[0].numel() == 0;
}

// Where each channel has a filter of its own, vectors run along rows, or along channels of copies.
bool rows_beat_channels(const Call& call, const Operand& x, const Operand& weight, const Operand& y, Pass pass) {
  const auto& a = call.attrs.as<ConvAttrs>();
  const bool copies = has_taps(weight) || is_strided(call) || a.padding[0] > 0 || a.padding[1] > 0;
  if (!copies || is_empty(call)) return true;
  const DepthwiseCost cost(a, x, weight, y);
  return cost.planes(pass) < cost.copies(pass);
}
bool is_depthwise(const Call& call, const Operand& weight) {
  return weight.size(1) == 1 && weight.size(0) == call.attrs.as<ConvAttrs>().groups;
}

// ---- where rows lie one after the other: by what takes the least time

enum class ByRows { None, Planes, Copies, Gemm, Scatter, Winograd };
template <class Cost>
ByRows least_by_rows(const Cost& cost, bool scatters, bool tiles) {
  std::pair<double, ByRows> best{cost.planes(), ByRows::Planes};
  best = std::min({best, {cost.copies(), ByRows::Copies}, {cost.gemm(), ByRows::Gemm}});
  if (scatters) best = std::min(best, {cost.scatter(), ByRows::Scatter});
  if (tiles) best = std::min(best, {cost.winograd(), ByRows::Winograd});
  return best.second;
}
// None: channels lie last, a product of pixels, or a filter for each channel.
ByRows by_rows(const Call& call, bool gradient) {
  const Operand &from = call.in[0], &weight = call.in[1], &to = call.out[0];
  const auto& a = call.attrs.as<ConvAttrs>();
  if (conv_dtype(from) != Float32 || !rows_lie({&from, &to}) || lie_last({&from, &to}) == Reason::Ok ||
      (!has_taps(weight) && !is_strided(call)) || is_depthwise(call, weight) || is_empty(call))
    return ByRows::None;
  const bool scatters = gradient || !is_strided(call);
  if (!has_taps(weight)) return least_by_rows(PointsCost(a, from, weight, to, gradient), scatters, false);
  const bool tiles = takes_winograd(call) == Reason::Ok && (!gradient || std::max(a.padding[0], a.padding[1]) <= 2);
  return least_by_rows(RowsCost(a, from, weight, to, gradient), scatters, tiles);
}
// Whether that is the one, unless others are to tell.
template <ByRows by>
std::optional<Reason> taken_by_rows(const Call& call, bool gradient) {
  const ByRows best = by_rows(call, gradient);
  if (best == ByRows::None) return std::nullopt;
  return if_least(best == by);
}
template <Reason (*takes)(const Call&), bool gradient>
Reason takes_tiles_of_rows(const Call& call) {
  const Reason reason = takes(call);
  return reason == Reason::Ok ? taken_by_rows<ByRows::Winograd>(call, gradient).value_or(reason) : reason;
}

// ---- over channels that lie last, of several groups or with few results: by what takes the least time

// Whether all filters can be lanes. `gradient`: of images, whose channels are.
bool can_spread(const Call& call, const Operand& weight, std::initializer_list<const Operand*> images, bool gradient) {
  const auto& a = call.attrs.as<ConvAttrs>();
  if (a.groups == 1 || is_depthwise(call, weight) || is_empty(call) || lie_last(images) != Reason::Ok) return false;
  constexpr int64_t lanes = 16;
  return (gradient ? weight.size(1) * a.groups : weight.size(0)) >= lanes;
}

enum class ByLast { None, Spread, Scatter, Planes, Direct };
// None: channels do not lie last, a filter for each channel, or one group of many results.
ByLast by_last(const Call& call, bool gradient) {
  const Operand &from = call.in[0], &weight = call.in[1], &to = call.out[0];
  const auto& a = call.attrs.as<ConvAttrs>();
  if (conv_dtype(from) != Float32 || lie_last({&from, &to}) != Reason::Ok || is_depthwise(call, weight) ||
      is_empty(call) || (a.groups == 1 && to.size(1) > 8))
    return ByLast::None;
  const bool strided = is_strided(call);
  const ConvCost cost(a, gradient ? to : from, weight, gradient ? from : to);
  std::pair<double, ByLast> best{cost.direct_of_few(gradient), ByLast::Direct};
  best = std::min(best, {cost.turned_planes(gradient), ByLast::Planes});
  if (gradient ? strided || has_taps(weight) : !strided && has_taps(weight))
    best = std::min(best, {cost.scatter(gradient), ByLast::Scatter});
  if (can_spread(call, weight, {&from, &to}, gradient)) best = std::min(best, {cost.spread(gradient), ByLast::Spread});
  return best.second;
}
// Whether that is the one, unless others are to tell.
template <ByLast by>
std::optional<Reason> taken_by_last(const Call& call, bool gradient) {
  const ByLast best = by_last(call, gradient);
  if (best == ByLast::None) return std::nullopt;
  return if_least(best == by);
}
template <bool gradient>
Reason takes_spread(const Call& call) {
  if (conv_dtype(call.in[0]) != Float32) return Reason::DType;
  if (!can_spread(call, call.in[1], {&call.in[0], &call.out[0]}, gradient)) return Reason::Shape;
  return taken_by_last<ByLast::Spread>(call, gradient).value_or(Reason::Slower);
}

constexpr int64_t few_places = 20;  // of an image, which leave lanes of its rows idle
// `strided`: whether products of pixels would scatter elements along rows.
Reason takes_planes(const Call& call, bool gradient, bool strided) {
  const Operand &from = call.in[0], &weight = call.in[1], &to = call.out[0];
  const auto& a = call.attrs.as<ConvAttrs>();
  if (conv_dtype(from) != Float32) return Reason::DType;
  if (const auto reason = taken_by_rows<ByRows::Planes>(call, gradient)) return *reason;
  if (const auto reason = taken_by_last<ByLast::Planes>(call, gradient)) return *reason;
  const bool rows = rows_lie({&from, &to});
  if (is_depthwise(call, weight)) {
    if (!rows) return Reason::Layout;
    return if_least(gradient ? rows_beat_channels(call, to, weight, from, Pass::Images)
                             : rows_beat_channels(call, from, weight, to, Pass::Forward));
  }
  if (!rows) return Reason::Slower;
  const int64_t each = to.size(1) / a.groups, summed = from.size(1) / a.groups;
  const auto places = [](const Operand& t) { return t.size(2) * t.size(3); };
  if (std::min(places(from), places(to)) < few_places) return Reason::Slower;
  const bool few = each <= 8 || (each <= 12 && summed <= 16);
  // A product for each group and image is begun anew, which few channels do not pay for.
  const bool products = a.groups > 1 && summed <= 16 && !is_strided(call);
  const ConvCost cost(a, gradient ? to : from, weight, gradient ? from : to);
  return if_least(few || products || strided || cost.point_by_planes(gradient));
}
Reason takes_planes(const Call& call) { return takes_planes(call, false, false); }
Reason input_grad_takes_planes(const Call& call) {
  const bool copied = call.out[0].size(3) < short_row * call.attrs.as<ConvAttrs>().stride[1];
  return takes_planes(call, true, is_strided(call) && !copied);
}

// ---- the gradient of filters: by what takes the least time

enum class ByFilters { Planes, Direct, Gemm, Spread };
ByFilters by_filters(const Call& call) {
  const Operand &x = call.in[0], &dy = call.in[1];
  const ConvCost cost(call.attrs.as<ConvAttrs>(), x, call.out[0], dy);
  std::pair<double, ByFilters> best{cost.filters_by_direct(), ByFilters::Direct};
  best = std::min(best, {cost.filters_by_gemm(), ByFilters::Gemm});
  const bool lines = std::max(x.size(1), dy.size(1)) > 16;  // of memory, several for a pixel
  const bool reads_much = lines && !rows_lie({&x, &dy}) && x.numel() + dy.numel() > (int64_t{4} << 20);
  if (!reads_much) best = std::min(best, {cost.filters_by_planes(), ByFilters::Planes});
  if (can_spread(call, call.out[0], {&x, &dy}, false))
    best = std::min(best, {cost.filters_by_spread(), ByFilters::Spread});
  return best.second;
}

Reason weight_grad_takes_spread(const Call& call) {
  if (conv_dtype(call.in[0]) != Float32) return Reason::DType;
  if (!can_spread(call, call.out[0], {&call.in[0], &call.in[1]}, false)) return Reason::Shape;
  return if_least(by_filters(call) == ByFilters::Spread);
}
Reason weight_grad_takes_planes(const Call& call) {
  const Operand &x = call.in[0], &dy = call.in[1], &dw = call.out[0];
  if (conv_dtype(x) != Float32) return Reason::DType;
  if (is_depthwise(call, dw)) {
    if (!rows_lie({&x, &dy})) return Reason::Layout;
    return if_least(rows_beat_channels(call, x, dw, dy, Pass::Filters));
  }
  return if_least(by_filters(call) == ByFilters::Planes);
}
// Images in another order, of contiguous rows, are turned round on the way.
Reason weight_grad_takes_direct(const Call& call) {
  if (conv_dtype(call.in[0]) != Float32) return Reason::DType;
  for (const Operand* t : {&call.in[0], &call.in[1]})
    if (t->dtype() != Float32 || (t->strides()[3] != 1 && t->strides()[1] != 1)) return Reason::Layout;
  if (is_depthwise(call, call.out[0])) return Reason::Shape;
  return if_least(by_filters(call) == ByFilters::Direct);
}

// ---- products of pixels with all taps

// Whether they take less time than kernels that compute each result from its window: these multiply padding, too, and
// have a vector for the results of a pixel, however few.
Reason scatter_pays(const Call& call, bool gradient) {
  const Operand &from = call.in[0], &weight = call.in[1], &to = call.out[0];
  if (conv_dtype(from) != Float32) return Reason::DType;
  if (!has_taps(weight) && !is_strided(call)) return Reason::Window;  // a product
  if (is_depthwise(call, weight) || is_empty(call)) return Reason::Shape;
  if (const auto reason = taken_by_rows<ByRows::Scatter>(call, gradient)) return *reason;
  if (const auto reason = taken_by_last<ByLast::Scatter>(call, gradient)) return *reason;
  const ConvCost cost(call.attrs.as<ConvAttrs>(), gradient ? to : from, weight, gradient ? from : to);
  const double direct = cost.direct(gradient) / (takes_tiles(call, 0) == Reason::Ok ? 2 : 1);
  const bool last = lie_last({&from, &to}) == Reason::Ok;
  return if_least(cost.scatter(gradient) < (last ? direct : std::min(direct, 1.7 * cost.full_vectors())));
}
Reason takes_scatter(const Call& call) {
  if (is_strided(call)) return Reason::Window;
  return scatter_pays(call, false);
}
Reason input_grad_takes_scatter(const Call& call) { return scatter_pays(call, true); }

// ---- copied into channels last

template <size_t weight>
Reason takes_copied_depthwise(const Call& call) {
  if (conv_dtype(call.in[0]) != Float32) return Reason::DType;
  return is_depthwise(call, weight < call.in.size() ? call.in[weight] : call.out[0]) ? Reason::Ok : Reason::Shape;
}

Reason takes_copied_direct(const Call& call) {
  if (conv_dtype(call.in[0]) != Float32) return Reason::DType;
  if (const auto reason = taken_by_rows<ByRows::Copies>(call, false)) return *reason;
  const Operand &weight = call.in[1], &y = call.out[0];
  const auto& a = call.attrs.as<ConvAttrs>();
  const bool many = a.groups > 1 || weight.size(0) > 4 || y.size(2) * y.size(3) < few_places;
  // Implicit matrices gather elements a stride apart.
  const bool slow = a.stride[1] > 1 || (has_taps(weight) && y.size(3) < short_row);
  return if_least(slow && many);
}
// Each residue of a stride is a product of its own, of still shorter rows.
Reason input_grad_takes_copied_direct(const Call& call) {
  if (conv_dtype(call.in[0]) != Float32) return Reason::DType;
  if (const auto reason = taken_by_rows<ByRows::Copies>(call, true)) return *reason;
  const Operand &weight = call.in[1], &dx = call.out[0];
  const auto& a = call.attrs.as<ConvAttrs>();
  const bool strided = is_strided(call), many = strided || weight.size(0) / a.groups >= 12;
  return if_least(dx.size(3) < short_row * a.stride[1] && (has_taps(weight) || strided) && many);
}

// Filters of one element each are a product's weight.
std::optional<Packing> pack_points(const Call& call, size_t input) {
  const bool one_group = input == 1 && call.in[1].size(1) == call.in[0].size(1);
  return one_group ? weight_panels(call.in[1]) : std::nullopt;
}
constexpr Kernel reading_points(Kernel kernel) {
  kernel.pack = pack_points;
  return kernel;
}

using T = ConvTable;
constexpr Kernel conv2d_list[] = {
    staged_kernel<by<forward_args, &T::spread_workspace, &T::spread_forward>>("spread", takes_spread<false>),
    staged_kernel<by<forward_args, &T::scatter_workspace, &T::scatter_forward, Last::Result>>("scatter", takes_scatter),
    staged_kernel<by<forward_args, &T::planes_workspace, &T::planes_forward>>("planes", takes_planes),
    staged_kernel<by<forward_args, &T::depthwise_workspace, &T::depthwise_forward>>("depthwise", takes_depthwise),
    staged_kernel<by<forward_args, &T::winograd_last_workspace, &T::winograd_last_forward>>("winograd_last",
                                                                                            takes_winograd_last),
    reading_points(staged_kernel<by<forward_args, &T::direct_workspace, &T::direct_forward>>("direct", takes_direct)),
    staged_kernel<by<forward_args, &T::winograd_workspace, &T::winograd_forward>>(
        "winograd", takes_tiles_of_rows<takes_winograd, false>),
    staged_kernel<by<forward_args, &T::depthwise_workspace, &T::depthwise_forward, Last::Images>>(
        "copied_depthwise", takes_copied_depthwise<1>),
    staged_kernel<by<forward_args, &T::direct_workspace, &T::direct_forward, Last::Result>>("copied_direct",
                                                                                            takes_copied_direct),
    staged_kernel<conv2d_gemm>("implicit_gemm")};
// ---- with what is behind it: the same, but that few add a residual

template <Reason (*takes)(const Call&), bool adds>
Reason takes_act(const Call& call) {
  const Operand& residual = call.in[3];
  if (residual.defined() && !adds) return Reason::Shape;
  if (residual.defined() && residual.size(1) != 1 && residual.strides()[1] != 1) return Reason::Layout;
  const Attrs conv = call.attrs.as<ConvActAttrs>().conv();
  return takes({call.op, call.in, conv, call.out});
}
template <Bytes bytes, Run run, Last last = Last::None>
void act_by(const Call& call, Workspace& workspace) {
  const auto& a = call.attrs.as<ConvActAttrs>();
  const Attrs conv = a.conv();
  ConvArgs args = forward_args({call.op, call.in, conv, call.out}, workspace, last);
  args.activation = activation_of(a.activation);
  if (a.high < std::numeric_limits<double>::infinity()) args.high = static_cast<float>(a.high);
  if (call.in[3].defined()) args.residual = conv_tensor(workspace.read(call.in[3], conv_dtype(call.in[0])));
  convolve(call, workspace, args, conv_table().*bytes, conv_table().*run);
}
constexpr Kernel conv2d_act_list[] = {
    staged_kernel<act_by<&T::spread_workspace, &T::spread_forward>>("spread", takes_act<takes_spread<false>, false>),
    staged_kernel<act_by<&T::scatter_workspace, &T::scatter_forward, Last::Result>>("scatter",
                                                                                    takes_act<takes_scatter, false>),
    staged_kernel<act_by<&T::planes_workspace, &T::planes_forward>>("planes", takes_act<takes_planes, true>),
    staged_kernel<act_by<&T::depthwise_workspace, &T::depthwise_forward>>("depthwise",
                                                                          takes_act<takes_depthwise, false>),
    staged_kernel<act_by<&T::winograd_last_workspace, &T::winograd_last_forward>>("winograd_last",
                                                                                  takes_act<takes_winograd_last, true>),
    reading_points(
        staged_kernel<act_by<&T::direct_workspace, &T::direct_forward>>("direct", takes_act<takes_direct, true>)),
    staged_kernel<act_by<&T::winograd_workspace, &T::winograd_forward>>(
        "winograd", takes_act<takes_tiles_of_rows<takes_winograd, false>, false>),
    staged_kernel<act_by<&T::depthwise_workspace, &T::depthwise_forward, Last::Images>>(
        "copied_depthwise", takes_act<takes_copied_depthwise<1>, false>),
    staged_kernel<act_by<&T::direct_workspace, &T::direct_forward, Last::Result>>(
        "copied_direct", takes_act<takes_copied_direct, false>),
    staged_kernel<act_by<&T::forward_workspace, &T::forward>>("implicit_gemm")};
constexpr Kernel input_grad_list[] = {
    staged_kernel<by<images_args, &T::spread_workspace, &T::spread_backward_images>>("spread", takes_spread<true>),
    staged_kernel<by<images_args, &T::scatter_workspace, &T::scatter_backward_images, Last::Result>>(
        "scatter", input_grad_takes_scatter),
    staged_kernel<by<images_args, &T::planes_workspace, &T::planes_backward_images>>("planes", input_grad_takes_planes),
    staged_kernel<by<images_args, &T::depthwise_workspace, &T::depthwise_backward_images>>("depthwise",
                                                                                           takes_depthwise),
    staged_kernel<by<images_args, &T::winograd_last_workspace, &T::winograd_last_backward_images>>(
        "winograd_last", input_grad_takes<takes_winograd_last>),
    staged_kernel<by<images_args, &T::direct_workspace, &T::direct_backward_images>>("direct", takes_direct),
    staged_kernel<by<images_args, &T::winograd_workspace, &T::winograd_backward_images>>(
        "winograd", takes_tiles_of_rows<input_grad_takes<takes_winograd>, true>),
    staged_kernel<by<images_args, &T::depthwise_workspace, &T::depthwise_backward_images, Last::Images>>(
        "copied_depthwise", takes_copied_depthwise<1>),
    staged_kernel<by<images_args, &T::direct_workspace, &T::direct_backward_images, Last::Result>>(
        "copied_direct", input_grad_takes_copied_direct),
    staged_kernel<input_grad_gemm>("implicit_gemm")};
constexpr Kernel weight_grad_list[] = {
    staged_kernel<by<filters_args, &T::spread_filters_workspace, &T::spread_backward_filters>>(
        "spread", weight_grad_takes_spread),
    staged_kernel<by<filters_args, &T::planes_filters_workspace, &T::planes_backward_filters>>(
        "planes", weight_grad_takes_planes),
    staged_kernel<by<filters_args, &T::depthwise_filters_workspace, &T::depthwise_backward_filters>>(
        "depthwise", weight_grad_takes_depthwise),
    staged_kernel<by<filters_args, &T::direct_filters_workspace, &T::direct_backward_filters>>(
        "direct", weight_grad_takes_direct),
    staged_kernel<by<filters_args, &T::depthwise_filters_workspace, &T::depthwise_backward_filters, Last::Images>>(
        "copied_depthwise", takes_copied_depthwise<9>),
    staged_kernel<weight_grad_gemm>("implicit_gemm")};

}  // namespace

std::span<const KernelTableEntry> conv_kernels() {
  static constexpr KernelTableEntry entries[] = {
      {"conv2d", conv2d_list},
      {"conv2d_act", conv2d_act_list},
      {"conv2d_input_grad", input_grad_list},
      {"conv2d_weight_grad", weight_grad_list},
      {"conv_transpose2d", transpose_list},
  };
  return entries;
}

}  // namespace tessera::cpu_kernels
