// Every operator on tensors without memory: what it gives is as on the device, and nothing is computed.
#include <filesystem>

#include <fmt/ranges.h>

#include "io/temporary_folder.h"
#include "ops/call_plan.h"
#include "ops/op_table_checks.h"
#include "ops/ops_check.h"
#include "ops/output_layout.h"
#include "tessera/fused_gemm.h"
#include "tessera/io.h"

namespace tessera {
namespace {

using namespace op_table_test;

const char* const kWithoutMemory[] = {"meta(cpu)", "meta(cuda:0)", "cuda:sm90", "hip:gfx90a"};

Tensors without_memory(const Tensors& list, Device device) {
  Tensors out;
  for (const Tensor& t : list) out.push_back(t.defined() ? t.detach().to(device) : Tensor());
  return out;
}

// What makes tensors, or moves them, says where.
Attrs attrs_on(const OpCase& c, Device device) {
  Attrs attrs = c.attrs;
  try {
    attrs.set_text("device", to_string(device));
  } catch (const Error&) {  // most have none
  }
  return attrs;
}

std::string layout_of(const Tensor& t) {
  return fmt::format("{} at {}, [{}]", describe(t), t.offset(), fmt::join(t.strides(), ", "));
}

// The outputs' layouts, by what `infer` and output_layout say, or those of views.
void check_layouts(const Op& op, const Tensors& in, const Attrs& attrs, const Tensors& out, Device device) {
  const auto metas = metas_of({in.data(), in.size()}, device);
  const Metas wanted = infer_outputs(op, {metas.data(), metas.size()}, attrs, device, false);
  for (size_t i = 0; i < out.size(); ++i) {
    if (op.in_place) {
      EXPECT_TRUE(same(out[i], in[i]));
      continue;
    }
    if (op.view && out[i].storage() == in[0].storage()) {
      const auto layout = op.view(in[0].impl(), attrs);
      ASSERT_TRUE(layout);
      EXPECT_TRUE(dims_of(out[i].strides()) == layout->strides && Dim(out[i].offset()) == layout->offset)
          << layout_of(out[i]);
      continue;
    }
    if (op.count) continue;  // lies by symbols
    EXPECT_TRUE(dims_of(out[i].strides()) == strides_of(wanted[i]) && out[i].dtype() == wanted[i].dtype)
        << layout_of(out[i]);
    EXPECT_EQ(out[i].storage()->row_length, wanted[i].pitch ? wanted[i].shape.back().value() : 0);
  }
}

// A count that depends on values is a symbol with bounds.
bool may_be(const Shape& got, const Shape& want) {
  if (got.size() != want.size()) return false;
  for (size_t d = 0; d < got.size(); ++d)
    if (const int64_t n = want[d].value(); n < got[d].low() || n > got[d].high()) return false;
  return true;
}

void check_alike(const Tensors& got, const Tensors& want, Device device) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), want[i].defined()) << i;
    if (!got[i].defined()) continue;
    EXPECT_TRUE(may_be(got[i].shape(), want[i].shape())) << to_string(got[i].shape()) << to_string(want[i].shape());
    EXPECT_EQ(name(got[i].dtype()), name(want[i].dtype())) << i;
    EXPECT_EQ(to_string(got[i].device()), to_string(device)) << i;
    EXPECT_EQ(got[i].storage()->data, nullptr) << i;
  }
}

// What the CPU gives, or where it has no kernel the reference in the inputs' dtype.
Tensors with_memory(const Op& op, const Prepared& p, const Attrs& attrs) {
  if (op.view || op.compute || has_kernels(op, DeviceType::CPU)) return dispatch(op, Tensors(p.run), attrs);
  Tensors out = op.reference({p.exact.data(), p.exact.size()}, attrs);
  for (Tensor& t : out) t = t.to(p.run[0].dtype());
  return out;
}

struct PaddedRows {
  explicit PaddedRows(bool on) { pad_small_rows(on); }
  ~PaddedRows() { pad_small_rows(false); }
};

void check_forward(const Op& op, const OpCase& c, DType dtype) {
  NoGrad guard;
  const Prepared p = prepare(c, dtype, Form::Contiguous);
  const Tensors want = with_memory(op, p, c.attrs);
  for (const char* text : kWithoutMemory)
    for (const bool pads : {false, true}) {
      SCOPED_TRACE(text);
      const PaddedRows rows(pads);
      const Device device = parse_device(text);
      const Attrs attrs = attrs_on(c, device);
      for (const Form form : {Form::Contiguous, Form::Pitched, Form::Strided}) {
        SCOPED_TRACE(where(c, dtype, form));
        Tensors in = without_memory(p.run, device);
        if (form != Form::Contiguous)
          for (Tensor& t : in)
            if (t.defined()) t = with_gaps(t, form == Form::Pitched ? 1 : 2);
        const Tensors out = dispatch(op, Tensors(in), attrs);
        check_alike(out, want, op.name == "shape_of" ? meta(cpu()) : device);  // sizes lie on the host
        check_layouts(op, in, attrs, out, device);
      }
    }
}

void check_backward(const Op& op, const OpCase& c, DType dtype) {
  SCOPED_TRACE(where(c, dtype, Form::Contiguous));
  const Prepared p = prepare(c, dtype, Form::Contiguous);
  auto weights = random_weights(op, c, p);
  for (const bool composed : {false, true}) {
    const Tensors want = analytic_gradients(op, c, p.run, weights, dtype, composed);
    for (const char* text : kWithoutMemory) {
      SCOPED_TRACE(fmt::format("{}, {}", text, composed ? "composed" : "fused"));
      const Device device = parse_device(text);
      check_alike(analytic_gradients(op, c, without_memory(p.run, device), weights, dtype, composed), want, device);
    }
  }
}

class MetaOpTable : public testing::TestWithParam<const Op*> {};

TEST_P(MetaOpTable, GivesWhatTheDeviceWould) {
  const Op& op = *GetParam();
  if (op.name == "constant") return;  // has memory of its own wherever it is called
  for (const OpCase& c : cases_of(op.name))
    for (DType dtype : c.dtypes) check_forward(op, c, dtype);
}

TEST_P(MetaOpTable, GoesBackward) {
  const Op& op = *GetParam();
  if (!op.vjp || op.transfers) return;
  for (const OpCase& c : cases_of(op.name))
    if (c.gradients)
      for (DType dtype : c.dtypes)
        if (is_floating(dtype)) check_backward(op, c, dtype);
}

INSTANTIATE_TEST_SUITE_P(All, MetaOpTable, testing::ValuesIn(op_table().begin(), op_table().end()),
                         [](const auto& info) { return std::string(info.param->name); });

// ---- on the way from and to memory

TEST(Meta, ATensorThatMovesThereLosesItsMemory) {
  Generator g(1);
  const Tensor x = randn({3, 4}, g).set_requires_grad(), y = x * 2.0;
  const Tensor images = randn({2, 3, 5, 4}, g).to(ChannelsLast);
  for (const char* text : kWithoutMemory) {
    const Device device = parse_device(text);
    const Tensor moved = y.to(device);
    EXPECT_TRUE(moved.device() == device);
    EXPECT_EQ(moved.storage()->data, nullptr);
    EXPECT_EQ(to_string((moved + 1.0).shape()), "[3, 4]");
    EXPECT_TRUE(images.to(device).is_contiguous(ChannelsLast));
    EXPECT_EQ(to_string(y.transpose(0, 1).to(device).shape()), "[4, 3]");
    EXPECT_TRUE(moved.to(parse_device("hip:gfx90a")).to(device).device() == device);
    Tensor there = empty({3, 4}, Float32, device);
    there.copy_(x.detach());
    EXPECT_EQ(error_of([&] { there.to(cpu()); }),
              fmt::format("to: f32[3, 4] on {} has no memory, so there is nothing to move to cpu", text));
  }
}

TEST(Meta, ValuesAreOneClearErrorLine) {
  const Tensor x = zeros({2, 2}, Float32, meta(cpu()));
  const std::string moved = "to: f32[2, 2] on meta(cpu) has no memory, so there is nothing to move to cpu";
  EXPECT_EQ(error_of([&] { x.to_vector<float>(); }), moved);
  Tensor real = zeros({2, 2});
  EXPECT_EQ(error_of([&] { real.copy_(x); }), moved);
  EXPECT_EQ(error_of([&] { to_string(x); }), "item: f32[] on meta(cpu) has no memory, so its value cannot be read");
  const TemporaryFolder folder;
  EXPECT_EQ(error_of([&] { save_npy(folder / "x.npy", x); }), moved);
  EXPECT_EQ(error_of([&] { save_safetensors(folder / "x.safetensors", {{"x", x}}); }), moved);
  EXPECT_FALSE(std::filesystem::exists(folder / "x.npy"));
}

// A gradient without memory cannot become that of a tensor with memory.
TEST(Meta, BackwardDoesNotLeadBackToMemory) {
  const Tensor x = ones({3}).set_requires_grad();
  const std::string error = error_of([&] { x.to(meta(cpu())).sum().backward(); });
  EXPECT_EQ(error, "to: f32[3] on meta(cpu) has no memory, so there is nothing to move to cpu");
}

TEST(Meta, InPlaceRulesHold) {
  Tensor leaf = zeros({3}, Float32, meta(cpu())).set_requires_grad();
  EXPECT_NE(error_of([&] { leaf.fill_(1); }).find("a leaf that requires a gradient"), std::string::npos);
}

TEST(Meta, FusedGemmGivesItsResultsShape) {
  const Device card = parse_device("cuda:sm90");
  const Tensor a = empty({64, 32}, Float16, card), b = empty({32, 16}, Float16, card);
  EXPECT_EQ(describe(fused_gemm(a, b, "relu(acc)")), "f16[64, 16] on cuda:sm90");
}

}  // namespace
}  // namespace tessera
