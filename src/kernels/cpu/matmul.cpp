// Matrix products: tensors' strides go straight to the GEMM kernel.
#include <array>
#include <utility>

#include "kernels/shared/kept_input.h"
#include "kernels/shared/products.h"
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"
#ifdef TESSERA_GPU_KERNELS
#include "core/gpu/backend.h"
#include "kernels/args/gpu/fused_table.h"
#include "kernels/args/gpu/vendor_gemm.h"
#include "kernels/gpu/sm90_reason.h"
#endif

namespace tessera::TESSERA_KERNELS {
namespace {

size_t bytes_of(const Shape& shape, DType dtype) { return static_cast<size_t>(shape.numel().value()) * size_of(dtype); }

// A tensor in memory that belongs to somebody else, such as the workspace.
Tensor tensor_at(void* data, const Shape& shape, DType dtype, Device device) {
  auto storage = make_ref<Storage>();
  storage->data = data;
  storage->bytes = bytes_of(shape, dtype);
  storage->device = device;
  return as_strided(storage, shape, contiguous_strides(shape), 0, dtype);
}

void set_matrix(Products& p, Products::Operand which, const Tensor& t) {
  int rank = static_cast<int>(t.dim());
  p.set(which, t, t.strides()[rank - 2], t.strides()[rank - 1], rank - 2);
}

Products matmul_products(const Call& call) {
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  Products p(a.size(-2), b.size(-1), a.size(-1));
  set_matrix(p, Products::A, a);
  set_matrix(p, Products::B, b);
  set_matrix(p, Products::C, c);
  return p;
}

Products matmul_mul_sum_products(const Call& call) {
  Products p = matmul_products(call);
  const auto& attrs = call.attrs.as<LineSumAttrs>();
  if (call.in[2].defined()) set_matrix(p, Products::Factor, call.in[2]);
  size_t next = 1;
  const auto set_sums = [&](Products::Operand which, bool along_rows) {
    const Tensor& t = call.out[next++];
    const int64_t step = t.strides().back();
    p.set(which, t, along_rows ? step : 0, along_rows ? 0 : step, static_cast<int>(t.dim()) - 1);
  };
  if (attrs.rows) set_sums(Products::RowSums, true);
  if (attrs.columns) set_sums(Products::ColumnSums, false);
  return p;
}

Products gelu_grad_products(const Call& call) {
  Products p = matmul_products(call);
#ifdef TESSERA_GPU_KERNELS
  p.args().activation = Activation::gelu_tanh;  // whose slope the factor stands for
#endif
  set_matrix(p, Products::Factor, call.in[2]);
  p.set(Products::ColumnSums, call.out[1], 0, call.out[1].strides()[0], 0);
  return p;
}

/// With operands of f32 as they are, or rounded to tf32.
template <Products (*products)(const Call&), bool tf32 = false>
void run_gemm(const Call& call) {
  call.once(products).each([&](GemmArgs args) {
    args.tf32 = tf32;
    args.workspace = call.workspace;
    gemm_table().run(args, executor());
  });
}

Activation activation_of(tessera::Activation activation) {
  switch (activation) {
    case tessera::Activation::Relu:
      return Activation::relu;
    case tessera::Activation::GeluTanh:
      return Activation::gelu_tanh;
    case tessera::Activation::GeluErf:
      return Activation::gelu_erf;
    case tessera::Activation::Silu:
      return Activation::silu;
    case tessera::Activation::Tanh:
      return Activation::tanh;
    case tessera::Activation::None:
      break;
  }
  return Activation::none;
}

// Rows of one matrix; or, of m = 1, each a batch of one row, and the batch folds into as few products as strides allow.
void set_rows(Products& p, Products::Operand which, const Tensor& t) {
  long long pitch = 0;
  if (!t.defined()) return;
  if (p.args().m != 1 && folds_to_rows(t, 1, pitch)) p.set(which, t, pitch, 1, 0);
  else p.set(which, t, 0, t.strides().back(), static_cast<int>(t.dim()) - 1);
}
// The rows of all, if each tensor's are as far apart as the next ones; otherwise 1.
long long rows_of(std::initializer_list<const Tensor*> tensors) {
  long long pitch, rows = 1;
  for (const Tensor* t : tensors)
    if (t->defined() && !folds_to_rows(*t, 1, pitch)) return 1;
  for (int64_t d = 0; d < (*tensors.begin())->dim() - 1; ++d) rows *= (*tensors.begin())->shape()[d].value();
  return rows;
}

// An activation has no room for the residual, which is then added behind it.
bool adds_behind(const Call& call) {
  return call.attrs.as<LinearAttrs>().activation != tessera::Activation::None && call.in[3].defined();
}

// With activation and slope; the slope's place is also that of the activation's input.
Products activated_products(const Call& call) {
  const Tensor &x = call.in[0], &weight = call.in[1], &bias = call.in[2], &residual = call.in[3];
  Activation activation = activation_of(call.attrs.as<LinearAttrs>().activation);
  bool activated = activation != Activation::none;
  Products p(rows_of({&x, &residual, &call.out[0], &call.out[1]}), weight.size(0), weight.size(1));
  set_rows(p, Products::A, x);
  p.set(Products::B, weight, weight.strides()[1], weight.strides()[0], 0);
  set_rows(p, Products::C, call.out[0]);
  if (bias.defined()) p.set(Products::Bias, bias, 0, bias.strides()[0], 0);
  if (activated) set_rows(p, Products::Slope, call.out[1]);
  else set_rows(p, Products::Addend, residual);
  p.args().activation = activation;
  return p;
}

// Whether the second output is what the activation is applied to.
bool keeps_input(const Call& call) {
  return call.out[1].defined() && keeps_activation_input(call.attrs.as<LinearAttrs>().activation, call.in[0]);
}

// What is kept of an activation's input comes first, and a map makes the result of it.
Products linear_products(const Call& call) {
  Products p = activated_products(call);
  if (!keeps_input(call)) return p;
  set_rows(p, Products::C, call.out[1]);
  p.unset(Products::Slope);
  p.args().activation = Activation::none;
  return p;
}

// to = op(a, b?) element by element; every operand has the shape of `to`, and without `a` there is a 1.
void map(const Call& call, MapOp op, const Tensor& to, const Tensor& a, const Tensor& b = {}) {
  static constexpr double one = 1;
  MapArgs args{};
  args.op = op;
  args.compute = to.dtype() == Float64 ? Scalar::f64 : Scalar::f32;
  args.rank = checked_rank(call, to);
  args.inputs = b.defined() ? 2 : 1;
  set_lengths(args.lengths, to);
  args.tensor[0] = operand(to, args.rank);
  args.tensor[1] = a.defined() ? operand(a, args.rank) : TensorArg{const_cast<double*>(&one), Scalar::f64, {}, true};
  if (b.defined()) args.tensor[2] = operand(b, args.rank);
  elementwise_table().map(args, executor());
}

void add_behind(const Call& call) {
  if (adds_behind(call)) combine(call, MapOp::add, call.out[0], call.out[0], call.in[3]);
}
template <Products (*products)(const Call&), void (*run)(const Call&)>
void run_all(const Call& call) {
  run(call);
  if constexpr (products == linear_products) {
    if (keeps_input(call)) map(call, MapOp::gelu_tanh, call.out[0], call.out[1]);
    add_behind(call);
  }
}

template <Products (*products)(const Call&), bool tf32 = false>
size_t gemm_bytes(const Call& call) {
  long long bytes = 0;
  call.once(products).each([&](GemmArgs args) {
    args.tf32 = tf32;
    bytes = std::max(bytes, gemm_table().workspace(args, executor()));
  });
  return bytes;
}

#ifdef TESSERA_GPU_KERNELS
template <Products (*products)(const Call&)>
Reason tf32_takes(const Call& call) {
  if (call.in[0].dtype() != Float32) return Reason::DType;
  if (!tf32_allowed()) return Reason::Precision;
  bool all = true;
  call.once(products).each([&](const GemmArgs& args) { all = all && gemm_table().supports(args); });
  if (all) return Reason::Ok;
  return call_device(call).type == DeviceType::HIP ? Reason::Hardware : Reason::Layout;
}

// ---- the vendor's products, where its library is installed; what it cannot do itself follows in a pass of its own

GemmArgs without_finish(GemmArgs args) {
  if (args.factor.data) args.activation = Activation::none;  // whose slope it stands for
  args.factor = args.row_sums = args.column_sums = {};
  return args;
}
/// A ReLU's slope jumps at 0, so that it is taken from sums before the library rounds them; and in f16 a sum may become
/// infinite, which only tanh and what is made of it can take.
GemmArgs without_slope(GemmArgs args) {
  const bool saturates = args.activation == Activation::gelu_tanh || args.activation == Activation::tanh;
  if (args.activation == Activation::relu || (args.c.type == Scalar::f16 && !saturates)) return args;
  if (args.slope.data) args.activation = Activation::none;
  args.slope = {};
  return args;
}
/// A product in f16 may be infinite where the factor makes it small, or nothing.
bool finishes_safely(const GemmArgs& args) { return !args.factor.data || args.c.type != Scalar::f16; }
void finish(const GemmArgs& args) {
  if (args.factor.data || args.row_sums.data || args.column_sums.data || args.slope.data)
    gemm_table().finish(args, executor());
}

template <Products (*products)(const Call&)>
Reason vendor_takes(const Call& call) {
  const VendorGemmTable* vendor = vendor_tables() ? tables().vendor_gemm : nullptr;
  if (!vendor) return Reason::Library;
  bool all = true;
  call.once(products).each([&](const GemmArgs& args) {
    all = all && finishes_safely(args) && vendor->supports(without_slope(without_finish(args)));
  });
  return all ? Reason::Ok : Reason::Shape;
}

const VendorProductTable& vendor_products() { return static_cast<const VendorProductTable&>(*tables().vendor_gemm); }

// When zeros were written behind the lines in this memory: its version, and what replays of graphs may have changed;
// 0 where that cannot be told, on other streams than the device's own and while a graph is captured.
uint64_t time_of_zeros(const Storage& storage) {
  gpu::DeviceState& on = gpu::calling();
  if (gpu::capture_on(on) || gpu::stream_of(on).handle != on.stream->handle) return 0;
  return uint64_t{storage.version.load() + 1} << 32 | static_cast<uint32_t>(gpu::replays());
}

Ends ends_of(const Tensor& t, const MatrixArg& m, long long rows, long long columns) {
  const Storage& storage = *t.storage();
  const bool by_rows = m.column == 1;
  const long long lines = by_rows ? rows : columns, length = by_rows ? columns : rows,
                  step = by_rows ? m.row : m.column;
  const bool nobodys = storage.data == m.data && storage.rows == lines && storage.row_length == length &&
                       step % 4 == 0 && (length + 3) / 4 * 4 <= step &&
                       static_cast<size_t>((lines + 3) / 4 * 4 * step) * size_of(t.dtype()) <= storage.bytes;
  if (!nobodys) return Ends::others;
  const uint64_t now = time_of_zeros(storage);
  return now != 0 && storage.zeros == now ? Ends::zeros : Ends::nobodys;
}
Spare spare_of(const Call& call, const GemmArgs& args) {
  Spare spare{ends_of(call.in[0], args.a, args.m, args.k), ends_of(call.in[1], args.b, args.k, args.n), Ends::others};
  for (const Tensor& t : call.out)
    if (t.defined() && t.data_ptr() == args.c.data) spare.c = ends_of(t, args.c, args.m, args.n);
  return spare;
}
void note_zeros(const Call& call, const Spare& spare) {
  const auto note = [](const Tensor& t, Ends ends) {
    if (ends == Ends::zeros) t.storage()->zeros = time_of_zeros(*t.storage());
  };
  note(call.in[0], spare.a);
  note(call.in[1], spare.b);
}

template <Products (*products)(const Call&)>
size_t vendor_bytes(const Call& call) {
  size_t bytes = 0;
  call.once(products).each([&](const GemmArgs& args) {
    bytes = std::max(bytes, vendor_products().workspace(without_finish(args), spare_of(call, args)));
  });
  return bytes;
}

template <Products (*products)(const Call&), int choice = 0>
void run_vendor(const Call& call) {
  call.once(products).each([&](GemmArgs args) {
    args.workspace = call.workspace;
    Spare spare = spare_of(call, args);
    vendor_products().run_whole(without_slope(without_finish(args)), spare, choice, call.workspace, executor());
    note_zeros(call, spare);
    finish(args);
  });
}
// The library stores what GELU is applied to beside its result.
template <int choice = 0>
void run_vendor_linear(const Call& call) {
  bool stores = keeps_input(call);
  if (stores)
    call.once(activated_products).each([&](const GemmArgs& args) {
      stores = stores && tables().vendor_gemm->supports(args);
    });
  if (!stores) return run_all<linear_products, run_vendor<linear_products, choice>>(call);
  call.once(activated_products).each([&](const GemmArgs& args) {
    tables().vendor_gemm->run(args, choice, call.workspace, executor());
  });
  add_behind(call);
}

template <Products (*products)(const Call&), size_t (*of_product)(const Call&)>
size_t finished_bytes(const Call& call) {
  size_t bytes = of_product(call);
  call.once(products).each(
      [&](const GemmArgs& args) { bytes = std::max<size_t>(bytes, gemm_table().finish_workspace(args)); });
  return bytes;
}

// ---- halves by Hopper's own instructions

template <Products (*products)(const Call&)>
Reason sm90_takes(const Call& call) {
  const Sm90GemmTable* sm90 = tables().sm90_gemm;
  if (!sm90) return Reason::Hardware;
  Reason reason = Reason::Ok;
  call.once(products).each([&](const GemmArgs& args) {
    if (reason == Reason::Ok) reason = reason_of(sm90->refuses(args));
  });
  return reason;
}

template <Products (*products)(const Call&)>
size_t sm90_bytes(const Call& call) {
  long long bytes = 0;
  call.once(products).each(
      [&](const GemmArgs& args) { bytes = std::max(bytes, tables().sm90_gemm->workspace(args, executor())); });
  return bytes;
}

template <Products (*products)(const Call&)>
void run_sm90(const Call& call) {
  call.once(products).each([&](GemmArgs args) {
    args.workspace = call.workspace;
    tables().sm90_gemm->run(args, executor());
  });
}

/// Whether all that is asked is done while it multiplies.
template <Products (*products)(const Call&)>
bool by_own_kernel(const Call& call) {
  const auto* const table = static_cast<const Sm90FusedTable*>(tables().sm90_gemm);
  bool all = call.in[0].dtype() == BFloat16;
  call.once(products).each([&](const GemmArgs& args) { all = all && table->by_own_kernel(args); });
  return all;
}
// What GELU is applied to is stored beside its result.
void run_sm90_linear(const Call& call) {
  if (!keeps_input(call) || !by_own_kernel<activated_products>(call))
    return run_all<linear_products, run_sm90<linear_products>>(call);
  run_sm90<activated_products>(call);
  add_behind(call);
}

/// Where Hopper's own kernel beat cuBLASLt's first algorithm: results of at least seven of its tiles for each
/// multiprocessor, of sums that are not long, with neither a residual nor sums down the columns of both operands.
template <Products (*products)(const Call&)>
Reason sm90_takes_large(const Call& call) {
  if (!tables().sm90_gemm) return Reason::Hardware;
  if (call.out[0].numel() < 7LL * executor().multiprocessors * (128 * 192)) return Reason::Small;
  const Reason reason = sm90_takes<products>(call);
  if (reason != Reason::Ok) return reason;
  bool fits = true;
  call.once(products).each([&](const GemmArgs& args) { fits = fits && args.a.column == 1 && !args.addend.data; });
  return fits && by_own_kernel<products>(call) ? Reason::Ok : Reason::Layout;
}

/// What cuBLASLt has no fast algorithms for. Of rows that only end off whole units its entry makes the last few terms
/// of the sums a product of their own, so that they would be rounded twice.
template <Products (*products)(const Call&)>
Reason sm90_takes_odd_lines(const Call& call) {
  const Sm90GemmTable* sm90 = tables().sm90_gemm;
  if (!sm90) return Reason::Hardware;
  bool odd = true;
  call.once(products).each([&](const GemmArgs& args) { odd = odd && sm90->has_odd_lines(args); });
  return odd ? sm90_takes<products>(call) : Reason::Shape;
}

// ---- a product times the slope of GELU: plain, and the pass that follows one of the vendor's

template <void (*run)(const Call&)>
void run_gelu_grad(const Call& call) {
  run(call);
  call.once(gelu_grad_products).each([&](GemmArgs args) {
    args.workspace = call.workspace;
    finish(args);
  });
}
void run_sm90_gelu_grad(const Call& call) {
  if (by_own_kernel<gelu_grad_products>(call)) run_sm90<gelu_grad_products>(call);
  else run_gelu_grad<run_sm90<matmul_products>>(call);
}
size_t sm90_gelu_grad_bytes(const Call& call) {
  return std::max(finished_bytes<gelu_grad_products, sm90_bytes<matmul_products>>(call),
                  sm90_bytes<gelu_grad_products>(call));
}

Reason sm90_takes_gelu_grad(const Call& call) {
  const Reason reason = sm90_takes<matmul_products>(call);
  return reason != Reason::Ok || by_own_kernel<gelu_grad_products>(call) ? reason : Reason::Layout;
}

// ---- lists; before the last of each are the vendor's other algorithms, which only a measurement picks

template <Products (*products)(const Call&)>
struct ByVendor {
  template <int choice>
  static constexpr void (*run)(const Call&) = run_vendor<products, choice>;
};
struct LinearByVendor {
  template <int choice>
  static constexpr void (*run)(const Call&) = run_vendor_linear<choice>;
};
struct GeluGradByVendor {
  template <int choice>
  static constexpr void (*run)(const Call&) = run_gelu_grad<run_vendor<matmul_products, choice>>;
};

template <class By, size_t n>
constexpr std::array<Kernel, n + 7> with_choices(const Kernel (&list)[n]) {
  constexpr std::pair<const char*, void (*)(const Call&)> others[] = {
      {"vendor.1", By::template run<1>}, {"vendor.2", By::template run<2>}, {"vendor.3", By::template run<3>},
      {"vendor.4", By::template run<4>}, {"vendor.5", By::template run<5>}, {"vendor.6", By::template run<6>},
      {"vendor.7", By::template run<7>}};
  std::array<Kernel, n + 7> all{};
  auto* at = std::copy(list, list + n - 1, all.data());
  for (const auto& [name, run] : others) {
    *at = list[0];
    at->name = name;
    (at++)->run = run;
  }
  *at = list[n - 1];
  return all;
}

constexpr Kernel gelu_grad_kernels[] = {
    {.name = "vendor",
     .supports = vendor_takes<matmul_products>,
     .workspace_bytes = finished_bytes<gelu_grad_products, vendor_bytes<gelu_grad_products>>,
     .run = GeluGradByVendor::run<0>},
    {.name = "sm90",
     .supports = sm90_takes<matmul_products>,
     .workspace_bytes = sm90_gelu_grad_bytes,
     .run = run_sm90_gelu_grad},
    {.name = "gemm",
     .workspace_bytes = finished_bytes<gelu_grad_products, gemm_bytes<matmul_products>>,
     .run = run_gelu_grad<run_gemm<matmul_products>>}};

/// First, since cuBLASLt takes the host 10 us a product, a launch 4, and these take the card no more than 5 (an H100).
Reason is_small(const Call& call) {
  constexpr int64_t most = 64 * 64, longest = 256;
  return call.out[0].numel() <= most && call.in[0].shape().back().value() <= longest ? Reason::Ok : Reason::Shape;
}
template <Products (*products)(const Call&)>
constexpr Kernel small_products = {.name = "gemm.small",
                                   .supports = is_small,
                                   .workspace_bytes = gemm_bytes<products>,
                                   .run = run_all<products, run_gemm<products>>};

template <Products (*products)(const Call&)>
constexpr void (*by_sm90)(const Call&) = run_all<products, run_sm90<products>>;
template <>
constexpr void (*by_sm90<linear_products>)(const Call&) = run_sm90_linear;

template <Products (*products)(const Call&), class By = ByVendor<products>,
          size_t (*bytes)(const Call&) = vendor_bytes<products>>
constexpr Kernel kernels_of[] = {
    {.name = "vendor", .supports = vendor_takes<products>, .workspace_bytes = bytes, .run = By::template run<0>},
    {.name = "sm90",
     .supports = sm90_takes<products>,
     .workspace_bytes = sm90_bytes<products>,
     .run = by_sm90<products>},
    {.name = "tf32",
     .supports = tf32_takes<products>,
     .workspace_bytes = gemm_bytes<products, true>,
     .run = run_all<products, run_gemm<products, true>>},
    {.name = "gemm", .workspace_bytes = gemm_bytes<products>, .run = run_all<products, run_gemm<products>>}};
template <Products (*products)(const Call&)>
constexpr Kernel odd_lines = {.name = "sm90.odd_lines",
                              .supports = sm90_takes_odd_lines<products>,
                              .workspace_bytes = sm90_bytes<products>,
                              .run = by_sm90<products>};
constexpr Kernel large_matmul = {.name = "sm90.large",
                                 .supports = sm90_takes_large<matmul_products>,
                                 .workspace_bytes = sm90_bytes<matmul_products>,
                                 .run = run_sm90<matmul_products>};
constexpr Kernel large_linear = {.name = "sm90.large",
                                 .supports = sm90_takes_large<activated_products>,
                                 .workspace_bytes = sm90_bytes<linear_products>,
                                 .run = run_sm90_linear};
/// First, since the vendor's product needs a pass behind it: all of it while Hopper multiplies.
constexpr Kernel gelu_grad_at_once = {.name = "sm90.at_once",
                                      .supports = sm90_takes_gelu_grad,
                                      .workspace_bytes = sm90_bytes<gelu_grad_products>,
                                      .run = run_sm90<gelu_grad_products>};
template <size_t n>
constexpr std::array<Kernel, n + 1> with_first(const Kernel& first, const std::array<Kernel, n>& others) {
  std::array<Kernel, n + 1> all{};
  all[0] = first;
  std::copy(others.begin(), others.end(), all.begin() + 1);
  return all;
}
constexpr auto gelu_grad_list = with_first(gelu_grad_at_once, with_choices<GeluGradByVendor>(gelu_grad_kernels));
/// Before the others of a list: small products, and those with odd lines.
template <Products (*products)(const Call&), size_t n>
constexpr auto before_vendor(const std::array<Kernel, n>& others) {
  return with_first(small_products<products>, with_first(odd_lines<products>, others));
}
constexpr auto shared_list = with_choices<ByVendor<matmul_products>>(kernels_of<matmul_products>);
constexpr auto matmul_list = before_vendor<matmul_products>(with_first(large_matmul, shared_list));
constexpr auto matmul_wide_list = before_vendor<matmul_products>(shared_list);
constexpr auto matmul_mul_sum_list =
    before_vendor<matmul_mul_sum_products>(with_choices<ByVendor<matmul_mul_sum_products>>(
        kernels_of<matmul_mul_sum_products, ByVendor<matmul_mul_sum_products>,
                   finished_bytes<matmul_mul_sum_products, vendor_bytes<matmul_mul_sum_products>>>));
constexpr auto linear_list = before_vendor<linear_products>(
    with_first(large_linear, with_choices<LinearByVendor>(kernels_of<linear_products, LinearByVendor>)));
#else
// The slope is a factor, behind the products' own workspace.
size_t sums_bytes(const Call& call) { return (gemm_bytes<gelu_grad_products>(call) + 63) / 64 * 64; }
size_t gelu_grad_bytes(const Call& call) { return sums_bytes(call) + bytes_of(call.in[2].shape(), call.in[2].dtype()); }
void run_gelu_grad(const Call& call) {
  const Tensor& input = call.in[2];
  void* const place = static_cast<std::byte*>(call.workspace) + sums_bytes(call);
  const Tensor slope = tensor_at(place, input.shape(), input.dtype(), input.device());
  map(call, MapOp::gelu_tanh_grad, slope, {}, input);
  Products p = gelu_grad_products(call);
  set_matrix(p, Products::Factor, slope);
  p.args().workspace = call.workspace;
  p.run();
}
constexpr Kernel gelu_grad_list[] = {{.name = "gemm", .workspace_bytes = gelu_grad_bytes, .run = run_gelu_grad}};
constexpr Kernel matmul_list[] = {{.name = "gemm", .run = run_gemm<matmul_products>}};
constexpr const auto& matmul_wide_list = matmul_list;
constexpr Kernel matmul_mul_sum_list[] = {
    {.name = "gemm", .workspace_bytes = gemm_bytes<matmul_mul_sum_products>, .run = run_gemm<matmul_mul_sum_products>}};
constexpr Kernel linear_list[] = {{.name = "gemm", .run = run_all<linear_products, run_gemm<linear_products>>}};
#endif

// ---- two linear layers, each by the kernel that its own list picks

Shape hidden_shape(const Call& call) {
  Shape shape = call.in[0].shape();
  shape.back() = call.in[1].shape()[0];
  return shape;
}
// Rows that begin at whole units of 16 bytes.
Shape hidden_rows(const Call& call) {
  Shape shape = hidden_shape(call);
  const int64_t unit = 16 / static_cast<int64_t>(size_of(call.in[0].dtype()));
  shape.back() = (shape.back().value() + unit - 1) / unit * unit;
  return shape;
}
size_t mlp_bytes(const Call& call) {
  if (call.out[1].defined()) return 0;
  return bytes_of(hidden_rows(call), call.in[0].dtype());
}

void run_mlp(const Call& call) {
  const Tensor &x = call.in[0], &up = call.in[1], &down = call.in[3];
  Tensor hidden = call.out[1];
  if (!hidden.defined()) {  // nothing will need it afterwards
    const Tensor rows = tensor_at(call.workspace, hidden_rows(call), x.dtype(), x.device());
    hidden = as_strided(rows.storage(), hidden_shape(call), rows.strides(), 0, x.dtype());
  }
  const Tensor first[] = {x, up, call.in[2], {}}, second[] = {hidden, down, call.in[4], call.in[5]};
  const Tensor kept[] = {hidden, call.out[2]}, result[] = {call.out[0], {}};
  run_op(*call.op.made_of, first, call.attrs, kept);
  run_op(*call.op.made_of, second, LinearAttrs{}, result);
}
constexpr Kernel mlp_list[] = {{.name = "two_linear", .workspace_bytes = mlp_bytes, .run = run_mlp}};

}  // namespace

std::span<const KernelTableEntry> matmul_kernels() {
  static constexpr KernelTableEntry entries[] = {{"matmul", matmul_list},
                                                 {"matmul_wide", matmul_wide_list},
                                                 {"matmul_mul_sum", matmul_mul_sum_list},
                                                 {"matmul_gelu_grad", gelu_grad_list},
                                                 {"linear", linear_list},
                                                 {"mlp", mlp_list}};
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
