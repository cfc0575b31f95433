// Walks the table of operators on a GPU, if there is one: each result against the reference on float64, in every dtype
// and layout, and each gradient against the CPU's in float64, which test_op_table.cpp compares with finite differences.
#include "core/gpu_check.h"
#include "core/util/debug.h"
#include "ops/op_table_checks.h"
#include "ops/output_layout.h"

namespace tessera {
namespace {

using namespace op_table_test;

std::vector<const Op*> ops_of_gpu() {
  if (!card().is_gpu()) return {};
  std::vector<const Op*> all(op_table().begin(), op_table().end());
  std::erase_if(all, [](const Op* op) { return op->name == "conv2d_act"; });  // made of others there
  return all;
}

// Integers that GPUs have no kernels for.
bool is_for_cpus(const Tensors& list) {
  return std::any_of(list.begin(), list.end(), [](const Tensor& t) { return t.defined() && is_rare(t.dtype()); });
}

Tensors moved(const Tensors& list, Device device) {
  Tensors out;
  for (const Tensor& t : list) out.push_back(t.defined() ? t.detach().to(device) : Tensor());
  return out;
}

// The inputs of a case on the GPU in a layout, and their values in float64 on the CPU.
Prepared prepare_on_gpu(const OpCase& c, DType dtype, Form form) {
  Prepared p = prepare(c, dtype, Form::Contiguous);
  p.run = moved(p.run, card());
  if (form != Form::Contiguous)
    for (Tensor& t : p.run)
      if (t.defined()) t = with_gaps(t, form == Form::Pitched ? 1 : 2);
  return p;
}

void compare_on_gpu(const Op& op, const OpCase& c, DType dtype, Form form) {
  SCOPED_TRACE(where(c, dtype, form));
  NoGrad guard;
  if (is_for_cpus(prepare(c, dtype, Form::Contiguous).exact)) return;
  Prepared p = prepare_on_gpu(c, dtype, form);
  const Attrs attrs = op.name == "to_device" ? Attrs(DeviceAttrs{cpu()}) : c.attrs;
  Tensors results = dispatch(op, Tensors(p.run), attrs), out = moved(results, cpu());
  if (c.check) return c.check(moved(p.run, cpu()), out);
  Tensors want = op.reference({p.exact.data(), p.exact.size()}, c.attrs);
  ASSERT_EQ(out.size(), want.size());
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(to_string(out[i].shape()), to_string(want[i].shape()));
    double limit = is_floating(out[i].dtype()) ? tolerance(op.name, out[i].dtype()) : 0;
    EXPECT_LE(relative_error(elements(out[i]), elements(want[i])), limit) << "output " << i;
  }
}

// Rounding enters twice: in the result that some gradients are made from, and in the gradient.
double gradient_tolerance(const Op& op, DType dtype) { return 4 * tolerance(op.name, dtype); }

void compare_gradients(const Op& op, const OpCase& c, DType dtype) {
  SCOPED_TRACE(where(c, dtype, Form::Contiguous));
  Prepared p = prepare(c, dtype, Form::Contiguous);
  auto weights = random_weights(op, c, p);
  for (auto& list : weights)  // the same numbers in every dtype
    for (double& w : list) w = static_cast<float>(bf16(static_cast<float>(w)));
  Tensors want = analytic_gradients(op, c, p.exact, weights, Float64, true);
  Tensors got = analytic_gradients(op, c, moved(p.run, card()), weights, dtype, false);
  Tensors here = analytic_gradients(op, c, p.run, weights, dtype, false);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].defined());
    EXPECT_EQ(got[i].device(), card());
    // Where the gradient cancels, as 1 - tanh² does, the CPU's own error in this dtype is the measure.
    const double limit =
        std::max(gradient_tolerance(op, dtype), 1.5 * relative_error(elements(here[i]), elements(want[i])));
    EXPECT_LE(relative_error(elements(got[i].to(cpu())), elements(want[i])), limit) << "gradient " << i;
  }
}

class GpuOpTable : public testing::TestWithParam<const Op*> {
 protected:
  void SetUp() override { poison_allocations(true); }
  void TearDown() override { poison_allocations(false); }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuOpTable);

TEST_P(GpuOpTable, MatchesReference) {
  for (const OpCase& c : cases_of(GetParam()->name))
    for (DType dtype : c.dtypes)
      for (Form form : {Form::Contiguous, Form::Pitched, Form::Strided}) compare_on_gpu(*GetParam(), c, dtype, form);
}

TEST_P(GpuOpTable, GradientMatchesTheCpu) {
  const Op& op = *GetParam();
  if (!op.vjp || op.transfers) return;
  for (const OpCase& c : cases_of(op.name))
    if (c.gradients)
      for (DType dtype : c.dtypes)
        if (is_floating(dtype)) compare_gradients(op, c, dtype);
}

// As large matrices of halves and f32 lie, and what is made of them.
TEST_P(GpuOpTable, TakesAndMakesPaddedRows) {
  const Op& op = *GetParam();
  struct Pads {
    Pads() { pad_small_rows(true); }
    ~Pads() { pad_small_rows(false); }
  } pads;
  for (const OpCase& c : cases_of(op.name))
    for (DType dtype : c.dtypes) {
      if (dtype != Float16 && dtype != BFloat16 && dtype != Float32) continue;
      compare_on_gpu(op, c, dtype, Form::Contiguous);
      if (op.vjp && !op.transfers && c.gradients) compare_gradients(op, c, dtype);
    }
}

INSTANTIATE_TEST_SUITE_P(All, GpuOpTable, testing::ValuesIn(ops_of_gpu()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST(GpuOpTableItself, NeedsAGpu) {
  if (!card().is_gpu()) GTEST_SKIP() << "no GPU: " << why_unavailable(cuda()) << "; " << why_unavailable(hip());
  EXPECT_GT(properties(card()).multiprocessors, 0);
}

}  // namespace
}  // namespace tessera
