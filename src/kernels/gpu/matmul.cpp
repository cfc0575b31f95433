// Matrix products on GPUs: the vendor's, Hopper's own, and those of ordinary and older matrix cores.
#include "kernels/shared/matmul.h"

#include <array>

#include "core/gpu/backend.h"
#include "kernels/args/gpu/fused_table.h"
#include "kernels/args/gpu/vendor_gemm.h"
#include "kernels/gpu/sm90_reason.h"

namespace tessera::gpu_kernels {
namespace {

// The factor stands for the slope of the activation.
Products times_slope(const Call& call) { return gelu_grad_products(call, Activation::gelu_tanh); }

template <Products (*products)(const Call&)>
Reason tf32_takes(const Call& call) {
  if (call.in[0].dtype() != Float32) return Reason::DType;
  if (!tf32_allowed()) return Reason::Precision;
  bool all = true;
  products(call).each([&](const GemmArgs& args) { all = all && gemm_table().supports(args); });
  if (all) return Reason::Ok;
  return call_device(call).type == DeviceType::HIP ? Reason::Hardware : Reason::Layout;
}

// ---- ours

/// With operands of f32 as they are, or rounded to tf32.
template <Products (*products)(const Call&), bool tf32 = false>
void plan_gemm(const Call& call, Plan& plan) {
  Products p = products(call);
  long long bytes = 0;
  p.each([&](GemmArgs args) {
    args.tf32 = tf32;
    bytes = std::max(bytes, gemm_table().workspace(args, executor()));
  });
  void* const workspace = plan.take(bytes);
  p.each([&](GemmArgs args) {
    args.tf32 = tf32;
    args.workspace = workspace;
    plan.launch("gemm", gemm_table().run, args);
  });
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
void finish(Plan& plan, const GemmArgs& args) {
  if (args.factor.data || args.row_sums.data || args.column_sums.data || args.slope.data)
    plan.launch("gemm.finish", gemm_table().finish, args);
}

template <Products (*products)(const Call&)>
Reason vendor_takes(const Call& call) {
  const VendorGemmTable* vendor = vendor_tables() ? tables().vendor_gemm : nullptr;
  if (!vendor) return Reason::Library;
  bool all = true;
  products(call).each([&](const GemmArgs& args) {
    all = all && finishes_safely(args) && vendor->supports(without_slope(without_finish(args)));
  });
  return all ? Reason::Ok : Reason::Shape;
}

const VendorProductTable& vendor_products() { return static_cast<const VendorProductTable&>(*tables().vendor_gemm); }

// Padding of the storage that empty_pitched made belongs to no tensor, so that zeros may be written there.
Padding padding_of(const Operand& t, const MatrixArg& m, long long rows, long long columns) {
  const bool by_rows = m.column == 1;
  const long long lines = by_rows ? rows : columns, length = by_rows ? columns : rows,
                  step = by_rows ? m.row : m.column;
  const bool free = t.data_ptr() == m.data && t.padded_rows() == lines && t.padded_row_length() == length &&
                    step % 4 == 0 && (length + 3) / 4 * 4 <= step &&
                    (lines + 3) / 4 * 4 * step * static_cast<int64_t>(size_of(t.dtype())) <= t.storage_bytes();
  return free ? Padding::free : Padding::none;
}
ProductPadding padding_of(const Call& call, const GemmArgs& args) {
  ProductPadding padding{padding_of(call.in[0], args.a, args.m, args.k), padding_of(call.in[1], args.b, args.k, args.n),
                         Padding::none};
  for (const Operand& t : call.out)
    if (t.defined() && t.data_ptr() == args.c.data) padding.c = padding_of(t, args.c, args.m, args.n);
  return padding;
}

struct VendorProduct {
  GemmArgs args;
  ProductPadding padding;
  int choice;
  void* workspace;
};
void launch_vendor(const VendorProduct& p, Executor& executor) {
  vendor_products().run_padded(p.args, p.padding, p.choice, p.workspace, executor);
}
void launch_vendor_epilogue(const VendorProduct& p, Executor& executor) {
  tables().vendor_gemm->run(p.args, p.choice, p.workspace, executor);
}

// Also as much as passes behind it want, of which there may be one.
template <Products (*products)(const Call&)>
void* vendor_workspace_of(const Call& call, Plan& plan) {
  size_t bytes = 0;
  products(call).each([&](const GemmArgs& args) {
    bytes = std::max(bytes, vendor_products().workspace(without_finish(args), padding_of(call, args)));
    if (gemm_table().finish_workspace) bytes = std::max<size_t>(bytes, gemm_table().finish_workspace(args));
  });
  return plan.take(static_cast<int64_t>(bytes));
}

template <Products (*products)(const Call&), int choice = 0>
void plan_vendor(const Call& call, Plan& plan) {
  void* const workspace = vendor_workspace_of<products>(call, plan);
  products(call).each([&](GemmArgs args) {
    args.workspace = workspace;
    const VendorProduct product{without_slope(without_finish(args)), padding_of(call, args), choice, workspace};
    plan.launch("cublasLt", launch_vendor, product);
    plan.calls_library("cublasLt", vendor_products().version());
    plan.zeroes_padding_of(vendor_products().zeroes(product.args, product.padding));
    finish(plan, args);
  });
}
// The library stores what GELU is applied to beside its result.
template <int choice = 0>
void plan_vendor_linear(const Call& call, Plan& plan) {
  bool stores = keeps_input(call);
  if (stores)
    activated_products(call).each(
        [&](const GemmArgs& args) { stores = stores && tables().vendor_gemm->supports(args); });
  if (!stores) return plan_all<linear_products, plan_vendor<linear_products, choice>>(call, plan);
  void* const workspace = vendor_workspace_of<linear_products>(call, plan);
  activated_products(call).each([&](const GemmArgs& args) {
    plan.launch("cublasLt", launch_vendor_epilogue, {args, {}, choice, workspace});
    plan.calls_library("cublasLt", tables().vendor_gemm->version());
  });
  add_behind(call, plan);
}

// ---- halves by Hopper's own instructions

template <Products (*products)(const Call&)>
Reason sm90_takes(const Call& call) {
  const Sm90GemmTable* sm90 = tables().sm90_gemm;
  if (!sm90) return Reason::Hardware;
  Reason reason = Reason::Ok;
  products(call).each([&](const GemmArgs& args) {
    if (reason == Reason::Ok) reason = reason_of(sm90->refuses(args));
  });
  return reason;
}

template <Products (*products)(const Call&)>
void plan_sm90(const Call& call, Plan& plan) {
  const Sm90GemmTable& sm90 = *tables().sm90_gemm;
  Products p = products(call);
  long long bytes = 0;
  p.each([&](const GemmArgs& args) { bytes = std::max(bytes, sm90.workspace(args, executor())); });
  void* const workspace = plan.take(bytes);
  p.each([&](GemmArgs args) {
    args.workspace = workspace;
    plan.launch("gemm.sm90", sm90.run, args);
  });
}

/// Whether all that is asked is done while it multiplies.
template <Products (*products)(const Call&)>
bool by_own_kernel(const Call& call) {
  const auto* const table = static_cast<const Sm90FusedTable*>(tables().sm90_gemm);
  bool all = call.in[0].dtype() == BFloat16;
  products(call).each([&](const GemmArgs& args) { all = all && table->by_own_kernel(args); });
  return all;
}
// What GELU is applied to is stored beside its result.
void plan_sm90_linear(const Call& call, Plan& plan) {
  if (!keeps_input(call) || !by_own_kernel<activated_products>(call))
    return plan_all<linear_products, plan_sm90<linear_products>>(call, plan);
  plan_sm90<activated_products>(call, plan);
  add_behind(call, plan);
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
  products(call).each([&](const GemmArgs& args) { fits = fits && args.a.column == 1 && !args.addend.data; });
  return fits && by_own_kernel<products>(call) ? Reason::Ok : Reason::Layout;
}

/// Short sums of pairs, for results whose rows are off 16 bytes: there lanes store for longer than tiles multiply, and
/// cuBLASLt has algorithms for pairs.
bool are_short_sums_of_pairs(const GemmArgs& args) {
  constexpr long long most = 512;  // by a model of both: equal at about 1,000
  const auto in_pairs = [](const MatrixArg& t) {
    return (t.row == 1 || t.row % 2 == 0) && (t.column == 1 || t.column % 2 == 0) &&
           reinterpret_cast<size_t>(t.data) % 4 == 0;
  };
  return args.k <= most && args.k % 2 == 0 && args.n % 2 == 0 && args.c.column == 1 && args.c.row % 8 != 0 &&
         in_pairs(args.a) && in_pairs(args.b) && in_pairs(args.c);
}

/// What cuBLASLt has no fast algorithms for. Of rows that only end off 16 bytes its entry makes the last few terms of
/// the sums a product of their own, so that they would be rounded twice.
template <Products (*products)(const Call&)>
Reason sm90_takes_odd_lines(const Call& call) {
  const Sm90GemmTable* sm90 = tables().sm90_gemm;
  if (!sm90) return Reason::Hardware;
  bool odd = true;
  products(call).each([&](const GemmArgs& args) {
    odd = odd && sm90->has_odd_lines(args) && !(vendor_tables() && are_short_sums_of_pairs(args));
  });
  return odd ? sm90_takes<products>(call) : Reason::Shape;
}

// ---- a product times the slope of GELU: plain, and the pass that follows one of the vendor's

template <void (*plan_product)(const Call&, Plan&)>
void plan_gelu_grad(const Call& call, Plan& plan) {
  plan_product(call, plan);
  Products p = times_slope(call);
  long long bytes = 0;
  p.each([&](const GemmArgs& args) { bytes = std::max(bytes, gemm_table().finish_workspace(args)); });
  void* const workspace = plan.take(bytes);
  p.each([&](GemmArgs args) {
    args.workspace = workspace;
    finish(plan, args);
  });
}
void plan_sm90_gelu_grad(const Call& call, Plan& plan) {
  if (by_own_kernel<times_slope>(call)) plan_sm90<times_slope>(call, plan);
  else plan_gelu_grad<plan_sm90<matmul_products>>(call, plan);
}

Reason sm90_takes_gelu_grad(const Call& call) {
  const Reason reason = sm90_takes<matmul_products>(call);
  return reason != Reason::Ok || by_own_kernel<times_slope>(call) ? reason : Reason::Layout;
}

// ---- lists; before the last of each are the vendor's other algorithms, which only a measurement picks

using PlanOf = void (*)(const Call&, Plan&);

template <Products (*products)(const Call&)>
struct ByVendor {
  template <int choice>
  static constexpr PlanOf plan = plan_vendor<products, choice>;
};
struct LinearByVendor {
  template <int choice>
  static constexpr PlanOf plan = plan_vendor_linear<choice>;
};
struct GeluGradByVendor {
  template <int choice>
  static constexpr PlanOf plan = plan_gelu_grad<plan_vendor<matmul_products, choice>>;
};

template <class By, size_t n>
constexpr std::array<Kernel, n + 7> with_choices(const Kernel (&list)[n]) {
  constexpr std::pair<const char*, PlanOf> others[] = {
      {"vendor.1", By::template plan<1>}, {"vendor.2", By::template plan<2>}, {"vendor.3", By::template plan<3>},
      {"vendor.4", By::template plan<4>}, {"vendor.5", By::template plan<5>}, {"vendor.6", By::template plan<6>},
      {"vendor.7", By::template plan<7>}};
  std::array<Kernel, n + 7> all{};
  auto* at = std::copy(list, list + n - 1, all.data());
  for (const auto& [name, plan] : others) {
    *at = list[0];
    at->name = name;
    (at++)->plan = plan;
  }
  *at = list[n - 1];
  return all;
}

constexpr Kernel gelu_grad_kernels[] = {
    {.name = "vendor", .supports = vendor_takes<matmul_products>, .plan = GeluGradByVendor::plan<0>},
    {.name = "sm90", .supports = sm90_takes<matmul_products>, .plan = plan_sm90_gelu_grad},
    {.name = "gemm", .plan = plan_gelu_grad<plan_gemm<matmul_products>>}};

/// First, since cuBLASLt takes the host 10 us a product, a launch 4, and these take the card no more than 5 (an H100).
Reason is_small(const Call& call) {
  constexpr int64_t most = 64 * 64, longest = 256;
  return call.out[0].numel() <= most && call.in[0].shape().back().value() <= longest ? Reason::Ok : Reason::Shape;
}
template <Products (*products)(const Call&)>
constexpr Kernel small_products = {
    .name = "gemm.small", .supports = is_small, .plan = plan_all<products, plan_gemm<products>>};

template <Products (*products)(const Call&)>
constexpr PlanOf by_sm90 = plan_all<products, plan_sm90<products>>;
template <>
constexpr PlanOf by_sm90<linear_products> = plan_sm90_linear;

template <Products (*products)(const Call&), class By = ByVendor<products>>
constexpr Kernel kernels_of[] = {
    {.name = "vendor", .supports = vendor_takes<products>, .plan = By::template plan<0>},
    {.name = "sm90", .supports = sm90_takes<products>, .plan = by_sm90<products>},
    {.name = "tf32", .supports = tf32_takes<products>, .plan = plan_all<products, plan_gemm<products, true>>},
    {.name = "gemm", .plan = plan_all<products, plan_gemm<products>>}};
template <Products (*products)(const Call&)>
constexpr Kernel odd_lines = {
    .name = "sm90.odd_lines", .supports = sm90_takes_odd_lines<products>, .plan = by_sm90<products>};
constexpr Kernel large_matmul = {
    .name = "sm90.large", .supports = sm90_takes_large<matmul_products>, .plan = plan_sm90<matmul_products>};
constexpr Kernel large_linear = {
    .name = "sm90.large", .supports = sm90_takes_large<activated_products>, .plan = plan_sm90_linear};
/// First, since the vendor's product needs a pass behind it: all of it while Hopper multiplies.
constexpr Kernel gelu_grad_at_once = {
    .name = "sm90.at_once", .supports = sm90_takes_gelu_grad, .plan = plan_sm90<times_slope>};
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
constexpr auto matmul_mul_sum_list = before_vendor<matmul_mul_sum_products>(
    with_choices<ByVendor<matmul_mul_sum_products>>(kernels_of<matmul_mul_sum_products>));
constexpr auto linear_list = before_vendor<linear_products>(
    with_first(large_linear, with_choices<LinearByVendor>(kernels_of<linear_products, LinearByVendor>)));

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

}  // namespace tessera::gpu_kernels
