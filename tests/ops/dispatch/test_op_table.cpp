// Walks the table of operators: no op can lack a test against its reference, and no gradient can go unchecked.
#include <gtest/gtest.h>

#include <set>

#include "core/util/debug.h"
#include "ops/call_plan.h"
#include "ops/op_table_checks.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

using namespace op_table_test;

void compare_with_reference(const Op& op, const OpCase& c, DType dtype, Form form) {
  SCOPED_TRACE(where(c, dtype, form));
  Prepared p = prepare(c, dtype, form);
  NoGrad guard;
  Tensors out = dispatch(op, Tensors(p.run), c.attrs);
  if (c.check) return c.check(p.run, out);
  ASSERT_NE(op.reference, nullptr) << op.name << " has no reference";
  Tensors want = op.reference({p.exact.data(), p.exact.size()}, c.attrs);
  ASSERT_EQ(out.size(), want.size());
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(to_string(out[i].shape()), to_string(want[i].shape()));
    double limit = is_floating(out[i].dtype()) ? tolerance(op.name, out[i].dtype()) : 0;
    double error = relative_error(elements(out[i]), elements(want[i]));
    EXPECT_LE(error, limit) << "output " << i;
  }
}

// sum over outputs of <out, weight>, and the weights.
double weighted_sum(const Tensors& out, const std::vector<std::vector<double>>& weights) {
  double total = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (!is_floating(out[i].dtype())) continue;
    auto values = elements(out[i]);
    for (size_t j = 0; j < values.size(); ++j) total += values[j] * weights[i][j];
  }
  return total;
}

void check_gradient(const Op& op, const OpCase& c) {
  SCOPED_TRACE(where(c, Float64, Form::Contiguous));
  Prepared p = prepare(c, Float64, Form::Contiguous);
  auto run = [&] {
    NoGrad guard;
    Tensors in = p.run;
    if (op.in_place)
      for (Tensor& t : in)
        if (t.defined()) t = t.clone();
    return dispatch(op, std::move(in), c.attrs);
  };
  auto weights = random_weights(run());
  Tensors got = analytic_gradients(op, c, p.run, weights, Float64, false);
  Tensors composed = analytic_gradients(op, c, p.run, weights, Float64, true);
  size_t slot = 0;
  for (size_t i = 0; i < p.run.size() && i < 32; ++i) {
    if (!(c.gradients >> i & 1)) continue;
    Tensor x = p.run[i];
    ASSERT_TRUE(got[slot].defined()) << "no gradient for input " << i;
    ASSERT_EQ(to_string(got[slot].shape()), to_string(x.shape()));
    std::vector<double> analytic = elements(got[slot]), numeric, picked;
    std::mt19937_64 rng(i);
    constexpr size_t kMost = 64;  // elements tried per input
    double* data = x.data<double>();
    for (size_t n = 0; n < std::min<size_t>(analytic.size(), kMost); ++n) {
      size_t j = analytic.size() <= kMost ? n : rng() % analytic.size();
      const double step = 1e-5, saved = data[j];
      data[j] = saved + step;
      double high = weighted_sum(run(), weights);
      data[j] = saved - step;
      double low = weighted_sum(run(), weights);
      data[j] = saved;
      numeric.push_back((high - low) / (2 * step));
      picked.push_back(analytic[j]);
    }
    double scale = 0;
    for (double v : analytic) scale = std::max(scale, std::abs(v));
    for (size_t n = 0; n < numeric.size(); ++n)
      EXPECT_NEAR(picked[n], numeric[n], 2e-6 * std::max(scale, 1.0)) << "input " << i;
    EXPECT_LE(relative_error(analytic, elements(composed[slot])), 1e-9) << "fused and composed differ, input " << i;
    ++slot;
  }
}

// infer on symbols, then values for the symbols, must give what infer gives on the values.
void check_symbolic(const Op& op, const OpCase& c) {
  SCOPED_TRACE(where(c, Float64, Form::Contiguous));
  Generator generator(1);
  SmallVector<TensorMeta, 4> concrete, symbolic;
  std::set<int64_t> sizes;
  for (const Tensor& t : c.inputs(generator)) {
    concrete.push_back(t.defined() ? t.meta() : TensorMeta{{Dim(-1)}, Float32, {}});
    symbolic.push_back(concrete.back());
    if (!t.defined()) continue;
    for (Dim& d : symbolic.back().shape)
      if (d.value() > 1) {
        sizes.insert(d.value());
        d = Dim::symbol("s" + std::to_string(d.value()));
      }
  }
  Metas want = op.infer({concrete.data(), concrete.size()}, c.attrs);
  Metas got = op.infer({symbolic.data(), symbolic.size()}, c.attrs);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].dtype, want[i].dtype);
    Shape shape = got[i].shape;
    for (Dim& d : shape)
      for (int64_t s : sizes) d = d.substitute("s" + std::to_string(s), s);
    EXPECT_EQ(to_string(shape), to_string(want[i].shape)) << "from " << to_string(got[i].shape);
  }
}

class OpTable : public testing::TestWithParam<const Op*> {
 protected:
  void SetUp() override { poison_allocations(true); }
  void TearDown() override { poison_allocations(false); }
};

// Ops that only GPUs have kernels for: elsewhere a call says so.
bool runs_on_cpu(const Op& op) { return op.view || op.compute || has_kernels(op, DeviceType::CPU); }

TEST_P(OpTable, MatchesReference) {
  const Op& op = *GetParam();
  auto cases = cases_of(op.name);
  ASSERT_FALSE(cases.empty()) << op.name << " has no case";
  if (!runs_on_cpu(op)) {
    const Prepared p = prepare(cases[0], Float32, Form::Contiguous);
    EXPECT_EQ(error_of([&] { dispatch(op, Tensors(p.run), cases[0].attrs); }),
              std::string(op.name) + ": no kernel on cpu");
    return;
  }
  for (const OpCase& c : cases)
    for (DType dtype : c.dtypes)
      for (Form form : {Form::Contiguous, Form::Pitched, Form::Strided}) compare_with_reference(op, c, dtype, form);
}

using NameSet = std::set<std::string_view>;

// Ops without a gradient. Some ops that end in _backward have none either: they serve where nothing is recorded.
const NameSet kWithoutGradient = {"full",
                                  "empty",
                                  "constant",
                                  "nonzero",
                                  "shape_of",
                                  "draw",
                                  "pack",
                                  "matmul_gelu_grad",
                                  "fused_gemm",
                                  "cross_entropy_and_gradient_",
                                  "norm_conv2d_weight_grad",
                                  "arange",
                                  "uniform",
                                  "normal",
                                  "randint",
                                  "multinomial",
                                  "one_hot",
                                  "isnan",
                                  "isinf",
                                  "isfinite",
                                  "logical_not",
                                  "logical_and",
                                  "logical_or",
                                  "logical_xor",
                                  "bitwise_and",
                                  "bitwise_or",
                                  "bitwise_xor",
                                  "left_shift",
                                  "right_shift",
                                  "bitcast",
                                  "eq",
                                  "ne",
                                  "lt",
                                  "le",
                                  "gt",
                                  "ge",
                                  "any",
                                  "all",
                                  "argmax",
                                  "argmin",
                                  "adam_",
                                  "sgd_",
                                  "move_estimates_",
                                  "global_norm",
                                  "unscale_",
                                  "update_scale_",
                                  "cross_entropy_backward_",
                                  "grid_sample_input_grad",
                                  "grid_sample_grid_grad"};
// Ops whose attributes fix sizes of their inputs, or whose inputs have multiples of each other's.
const NameSet kWithoutSymbols = {"conv2d_input_grad",
                                 "conv2d_weight_grad",
                                 "max_pool2d_backward",
                                 "avg_pool2d_backward",
                                 "group_norm_backward",
                                 "attention_qkv",
                                 "attention_qkv_backward",
                                 "norm_conv2d",
                                 "norm_conv1x1_one_filter_backward",
                                 "custom_function",
                                 "lstm_layer",
                                 "lstm_layer_backward",
                                 "gru_layer",
                                 "gru_layer_backward",
                                 "rnn_layer",
                                 "rnn_layer_backward",
                                 "recurrent_net",
                                 "recurrent_net_backward",
                                 "sparse_lines",
                                 "sparse_planes",
                                 "max_in_windows",
                                 "max_in_windows_backward",
                                 "fold",
                                 "roi_align_input_grad"};

TEST_P(OpTable, GradientMatchesFiniteDifferences) {
  const Op& op = *GetParam();
  if (!op.vjp) {
    EXPECT_TRUE(kWithoutGradient.contains(op.name) || op.name.ends_with("_backward")) << op.name << " has no gradient";
    return;
  }
  if (!runs_on_cpu(op)) return;
  EXPECT_FALSE(kWithoutGradient.contains(op.name)) << op.name;
  bool any = false;
  for (const OpCase& c : cases_of(op.name))
    if (c.gradients) {
      any = true;
      check_gradient(op, c);
    }
  EXPECT_TRUE(any) << op.name << " has a gradient that no case checks";
}

TEST_P(OpTable, InfersSymbolicShapes) {
  const Op& op = *GetParam();
  bool any = false;
  for (const OpCase& c : cases_of(op.name))
    if (c.symbolic) {
      any = true;
      check_symbolic(op, c);
    }
  EXPECT_NE(any, kWithoutSymbols.contains(op.name)) << op.name;
}

TEST_P(OpTable, ListEndsWithAKernelThatTakesEveryCall) {
  const Op& op = *GetParam();
  if (op.view || op.compute || !runs_on_cpu(op)) return;
  KernelList list = kernels_for(op, DeviceType::CPU);
  ASSERT_FALSE(list.empty());
  EXPECT_EQ(list.back().supports, nullptr) << list.back().name;
}

INSTANTIATE_TEST_SUITE_P(All, OpTable, testing::ValuesIn(op_table().begin(), op_table().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace tessera
