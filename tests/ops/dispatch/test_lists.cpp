// Walks the lists of kernels that have more than one entry, on the CPU and on a GPU if there is one: each entry is
// forced on the cases of the operators' table, and on a GPU on some that are large enough for it, and compared with the
// CPU in float64. An entry that takes none of them fails, unless the device or a library for it is missing.
#include <map>

#include "core/conv_attrs.h"
#include "core/gpu_check.h"
#include "ops/call_plan.h"
#include "ops/op_table_checks.h"
#include "tessera/device.h"

namespace tessera {
namespace {

using op_table_test::cases_of;

struct Problem {
  std::string label;
  Attrs attrs = {};
  std::function<Tensors(Generator&)> inputs = {};
  uint32_t gradients = 0;  // as in OpCase; where it is not 0 a backward will follow
  std::vector<DType> dtypes = {Float16, BFloat16};
  bool channels_last = false;
};

std::function<Tensors(Generator&)> normals(std::vector<Shape> shapes) {
  return [=](Generator& g) {
    Tensors in;
    for (const Shape& s : shapes) in.push_back(s.empty() ? Tensor() : normal64(s, g));
    return in;
  };
}

/// Results of whole tiles, of rows off whole units of 16 bytes, and of seven tiles for each multiprocessor of an H100.
void add_products(std::string_view op, std::vector<Problem>& all) {
  const bool linear = op == "linear", sums = op == "matmul_mul_sum" || op == "matmul_gelu_grad";
  for (auto [m, n, k] : {std::tuple{256, 384, 128}, {1024, 1024, 257}, {5120, 4608, 64}}) {
    const bool large = m > 1024;
    if (large && !linear && op != "matmul") continue;
    Problem p{fmt::format("{} x {} x {}", m, n, k)};
    std::vector<Shape> shapes = {{m, k}, linear ? Shape{n, k} : Shape{k, n}};
    if (linear) shapes.insert(shapes.end(), {{n}, {}}), p.attrs = LinearAttrs{Activation::None};
    if (sums) shapes.push_back({m, n}), p.attrs = LineSumAttrs{false, true, false};
    if (large) p.dtypes = {BFloat16};
    p.inputs = normals(shapes);
    all.push_back(std::move(p));
  }
}

void add_convolutions(std::string_view op, std::vector<Problem>& all) {
  struct Sizes {
    int64_t images, channels, filters, edge, window, groups = 1;
  };
  for (const auto& [n, c, k, edge, window, groups] :
       {Sizes{2, 64, 128, 16, 1}, Sizes{2, 64, 128, 16, 3}, Sizes{8, 13, 21, 32, 3}, Sizes{16, 64, 64, 32, 3, 2},
        Sizes{2, 5, 9, 66, 1}, Sizes{9, 1024, 8, 16, 3}}) {
    if (c == 1024 && op != "conv2d_input_grad") continue;  // fills a card
    const Shape x{n, c, edge, edge}, w{k, c / groups, window, window}, y{n, k, edge, edge};
    ConvAttrs attrs{.padding = {window / 2, window / 2}, .groups = groups};
    std::vector<Shape> shapes = {x, w, {}};
    if (op == "conv2d_input_grad") shapes = std::vector<Shape>{y, w}, attrs.size[0] = attrs.size[1] = edge;
    if (op == "conv2d_weight_grad") shapes = std::vector<Shape>{x, y, {}}, attrs.size[0] = attrs.size[1] = window;
    for (bool channels_last : {false, true})
      all.push_back({fmt::format("{} to {} in {}, {} x {}{}", c, k, groups, window, window,
                                 channels_last ? ", channels last" : ""),
                     attrs, normals(shapes), 0,
                     c % 8 == 0 && groups == 1 ? std::vector<DType>{Float32, Float16, BFloat16}
                                               : std::vector<DType>{Float16, BFloat16},
                     channels_last});
  }
}

/// Many channels to few, whose products with all taps are one wide product, and back.
void add_narrow_convolutions(std::string_view op, std::vector<Problem>& all) {
  const bool gradient = op == "conv2d_input_grad", act = op == "conv2d_act";
  if (op != "conv2d" && !gradient && !act) return;
  const Shape wide{2, 100, 9, 11};
  ConvAttrs attrs{.padding = {1, 1}};
  if (gradient) attrs.size[0] = 9, attrs.size[1] = 11;
  std::vector<Shape> shapes = {wide, gradient ? Shape{100, 9, 3, 3} : Shape{9, 100, 3, 3}};
  if (!gradient) shapes.push_back({9});
  if (act) shapes.push_back({});
  all.push_back({"100 to 9", attrs, normals(shapes), 0, {Float32}});
  if (act) all.back().attrs = ConvActAttrs{.padding = {1, 1}, .activation = Activation::Relu};
}

/// One channel and two filters a group.
void add_grouped_convolutions(std::string_view op, std::vector<Problem>& all) {
  const bool gradient = op == "conv2d_input_grad", weights = op == "conv2d_weight_grad", act = op == "conv2d_act";
  if (op != "conv2d" && !gradient && !weights && !act) return;
  const Shape x{2, 16, 40, 40}, w{32, 1, 2, 5}, y{2, 32, 39, 36};
  ConvAttrs attrs{.groups = 16};
  if (gradient) attrs.size[0] = attrs.size[1] = 40;
  if (weights) attrs.size[0] = 2, attrs.size[1] = 5;
  std::vector<Shape> shapes = {gradient ? y : x, weights ? y : w};
  if (!gradient) shapes.push_back({});
  if (act) shapes.push_back({});
  all.push_back({"16 groups", attrs, normals(shapes), 0, {Float32}});
  if (act) all.back().attrs = ConvActAttrs{.groups = 16, .activation = Activation::Relu};
}

/// Heads of 64 and 128 columns, causal or not; what a backward is given is in the dtype of q, but for the log-sum-exp.
void add_attention(std::string_view op, std::vector<Problem>& all) {
  const bool packed = op.starts_with("attention_qkv"), backward = op.ends_with("_backward");
  for (auto [width, causal] : {std::pair<int64_t, bool>{64, false}, {128, true}}) {
    const AttentionAttrs attrs{.causal = causal, .heads = packed ? 2 : 0};
    const auto inputs = [=, width = width, causal = causal](Generator& g) -> Tensors {
      const Tensor qkv = normal64({1, 512, 3, 2, width}, g).permute({2, 0, 3, 1, 4});
      const Tensors parts = {qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2)};
      const Tensor whole = qkv.permute({1, 3, 0, 2, 4}).reshape({1, 512, 6 * width});
      if (!backward) return packed ? Tensors{whole, {}, {}} : Tensors{parts[0], parts[1], parts[2], {}, {}};
      Tensor scores = matmul(parts[0], parts[1].transpose(2, 3)) * (1 / std::sqrt(static_cast<double>(width)));
      if (causal) scores = where(tril(ones({512, 512}, Bool)), scores, full({}, -INFINITY, Float64));
      Tensor y = matmul(softmax(scores, -1), parts[2]);
      if (packed) y = y.transpose(1, 2).reshape({1, 512, 2 * width});
      Tensors in = {normal64(y.shape(), g), y, logsumexp(scores, {-1}).to(Float32)};
      for (const Tensor& t : packed ? Tensors{whole} : parts) in.push_back(t);
      in.resize(in.size() + 2);
      return in;
    };
    all.push_back({fmt::format("heads of {}", width), attrs, inputs, backward ? 0u : packed ? 1u : 7u});
  }
}

/// Statistics and weights of the norm are f32.
void add_norm_convolutions(std::string_view op, std::vector<Problem>& all) {
  const bool weights = op == "norm_conv2d_weight_grad";
  if (!weights && op != "norm_conv2d") return;
  for (int64_t window : {1, 3}) {
    if (weights && window > 1) continue;
    const auto inputs = [=](Generator& g) -> Tensors {
      Tensors in = {normal64({5, 64, 16, 64}, g),
                    weights ? normal64({5, 128, 16, 64}, g) : normal64({128, 64, window, window}, g)};
      if (!weights) in.push_back({});
      for (const Tensor& t : {mean(in[0], {0, 2, 3}), var(in[0], {0, 2, 3}), normal64({64}, g), normal64({64}, g)})
        in.push_back(t.to(Float32));
      return in;
    };
    NormConvAttrs attrs{{.padding = {window / 2, window / 2}}, {.training = !weights && window == 1, .relu = true}};
    if (weights) attrs.conv.size[0] = attrs.conv.size[1] = window;
    Problem p{fmt::format("halves, {} x {}", window, window), attrs, inputs};
    p.channels_last = window > 1;
    all.push_back(std::move(p));
  }
}

/// Images of halves with their channels last, statistics and weights in f32.
void add_known_statistics(std::vector<Problem>& all) {
  const auto inputs = [](Generator& g) -> Tensors {
    Tensors in = {normal64({3, 72, 7, 5}, g)};
    for (const Tensor& t : {mean(in[0], {0, 2, 3}), var(in[0], {0, 2, 3}), normal64({72}, g), normal64({72}, g)})
      in.push_back(t.to(Float32));
    return in;
  };
  all.push_back({"halves, channels last", NormAttrs{.training = true, .relu = true}, inputs, 0b11001, {Float16}, true});
}

std::vector<Problem> problems_of(std::string_view op, Device device) {
  std::vector<Problem> all;
  for (OpCase& c : cases_of(op)) all.push_back({c.label, c.attrs, std::move(c.inputs), c.gradients, c.dtypes});
  if (device.type == DeviceType::CPU) add_narrow_convolutions(op, all), add_grouped_convolutions(op, all);
  if (device.type == DeviceType::CPU && (op.starts_with("conv2d") || op.find("_pool2d") != op.npos))
    for (size_t i = 0, count = all.size(); i < count; ++i) {
      Problem p = all[i];
      p.label += ", channels last";
      p.channels_last = true;
      all.push_back(std::move(p));
    }
  if (device.is_gpu() && op == "batch_norm_known") add_known_statistics(all);
  if (device.type != DeviceType::CUDA) return all;
  if (op.starts_with("matmul") || op == "linear") add_products(op, all);
  if (op.starts_with("conv2d")) add_convolutions(op, all);
  if (op.find("attention") != op.npos) add_attention(op, all);
  if (op.starts_with("norm_conv")) add_norm_convolutions(op, all);
  return all;
}

Tensor placed(const Tensor& t, bool channels_last, Device device) {
  const Tensor there = t.to(device);
  if (!channels_last || t.dim() != 4) return there;
  return there.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
}

/// ||got - want|| / ||want||, by operators: large results are quickly compared.
double difference(const Tensor& got, const Tensor& want) {
  EXPECT_EQ(to_string(got.shape()), to_string(want.shape()));
  return norm(got - want).item<double>() / std::max(norm(want).item<double>(), 1e-30);
}

struct Taken {
  int calls = 0;
  std::string refusal;
  bool missing() const {
    return refusal.find(sentence(Reason::Hardware)) != refusal.npos ||
           refusal.find(sentence(Reason::Library)) != refusal.npos;
  }
};

/// Whether two values of a scatter come to one place, so that in any order either may stay.
bool comes_twice(const Op& op, const Tensors& in, const Attrs& attrs) {
  if (op.name != "scatter" || in[1].numel() == 0) return false;
  const Tensor none = zeros(in[0].shape(), Float64), one = ones(in[1].shape(), Float64);
  return amax(flatten(scatter_add(none, attrs.as<DimAttrs>().dim, in[1], one)), {0}).item<double>() > 1;
}

void force_each(const Op& op, const Problem& p, DType dtype, Device device, std::map<std::string, Taken>& taken) {
  SCOPED_TRACE(fmt::format("{} '{}' {}", op.name, p.label, name(dtype)));
  Generator generator(31);
  Tensors run, exact;
  for (const Tensor& t : p.inputs(generator)) {
    const Tensor x = t.defined() && t.dtype() == Float64 ? t.to(dtype) : t;
    exact.push_back(x.defined() && is_floating(x.dtype()) ? x.to(Float64) : x);
    run.push_back(x.defined() ? placed(x, p.channels_last, device) : x);
    if (run.size() <= 32 && (p.gradients >> (run.size() - 1) & 1)) run.back() = run.back().detach().set_requires_grad();
  }
  Tensors want;
  for (const Kernel& kernel : kernels_for(op, device.type)) {
    const bool rounds = kernel.name == std::string_view("tf32");  // operands to the fraction of f16
    allow_tf32(rounds);
    Tensors got;
    try {
      const ForceKernel forced(op.name, kernel.name);
      got = dispatch(op, Tensors(run), p.attrs);
    } catch (const Error& error) {
      if (std::string_view(error.what()).find("which is forced") == std::string_view::npos) throw;
      taken[kernel.name].refusal = error.what();
      continue;
    }
    if (want.empty()) want = dispatch(op, Tensors(exact), p.attrs);
    NoGrad guard;
    ++taken[kernel.name].calls;
    if (kernel.name == std::string_view("any") && comes_twice(op, exact, p.attrs)) continue;
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LE(difference(got[i].to(cpu()).to(Float64), want[i]), tolerance(op.name, rounds ? Float16 : dtype))
          << kernel.name << ", output " << i;
  }
}

std::vector<std::string_view> ops_with_choices(Device device) {
  std::vector<std::string_view> names;
  for (const Op* op : op_table())
    if (!op->view && !op->compute && has_kernels(*op, device.type) && has_kernels(*op, DeviceType::CPU) &&
        kernels_for(*op, device.type).size() > 1 &&
        op->name != "map_graph")  // of whose cases each has one dtype: test_map_graph.cpp forces its kernels
      names.push_back(op->name);
  return names;
}

class Lists : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { allow_nondeterministic(true); }
  void TearDown() override {
    allow_tf32(false);
    allow_nondeterministic(false);
  }
  static void force_all(Device device) {
    const Op& op = find_op(GetParam());
    std::map<std::string, Taken> taken;
    for (const Problem& p : problems_of(op.name, device))
      for (DType dtype : p.dtypes) force_each(op, p, dtype, device, taken);
    for (const Kernel& kernel : kernels_for(op, device.type)) {
      const Taken& t = taken[kernel.name];
      EXPECT_TRUE(t.calls > 0 || t.missing()) << op.name << ": " << kernel.name << " took no call: " << t.refusal;
    }
  }
};
class GpuLists : public Lists {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuLists);

TEST_P(Lists, EachEntryIsForcedAndAgrees) { force_all(cpu()); }
TEST_P(GpuLists, EachEntryIsForcedAndAgrees) { force_all(card()); }

const auto itself = [](const auto& info) { return std::string(info.param); };
INSTANTIATE_TEST_SUITE_P(All, Lists, testing::ValuesIn(ops_with_choices(cpu())), itself);
INSTANTIATE_TEST_SUITE_P(All, GpuLists,
                         testing::ValuesIn(card().is_gpu() ? ops_with_choices(card())
                                                           : std::vector<std::string_view>()),
                         itself);

}  // namespace
}  // namespace tessera
