// Every operator's cases, written and read back.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cases/cases.h"
#include "onnx/kept.h"
#include "ops/op_table.h"

namespace tessera::onnx {
namespace {

bool is_of_training(const Op& op) {
  const std::string_view name = op.name;
  for (const char* part : {"backward", "_grad", "_mul_sum", "adam", "sgd", "unscale", "update_scale", "global_norm"})
    if (name.find(part) != name.npos && name != "slice_backward" && name != "conv2d_input_grad") return true;
  return op.in_place;
}

// What ONNX lacks, or this library does for itself alone.
const std::set<std::string_view> kWithout = {"batch_norm_add",
                                             "batch_norm_known",
                                             "conv2d_moments",
                                             "custom_function",
                                             "draw",
                                             "dropout",
                                             "empty",
                                             "fold",
                                             "fused_gemm",
                                             "gru_layer_backward",
                                             "left_shift",
                                             "lstm_layer_backward",
                                             "map_graph",
                                             "max_in_windows",
                                             "max_in_windows_backward",
                                             "multinomial",
                                             "normal",
                                             "pack",
                                             "randint",
                                             "recurrent_net",
                                             "recurrent_net_backward",
                                             "right_shift",
                                             "rnn_layer_backward",
                                             "sparse_lines",
                                             "sparse_planes",
                                             "uniform"};

// And what it lacks of others.
constexpr std::string_view kInPart[] = {"in training",     "with dropout",    "with smoothed labels",
                                        "before opset 20", "before opset 26", "of a number differs"};

/// What a case draws, floating inputs in f32; absent ones are not among the inputs of the model.
struct Drawn {
  Tensors all, present;
  FunctionOf module;
  explicit Drawn(const OpCase& c)
      : all(drawn(c)),
        present(those(all)),
        module([&op = find_op(c.op), attrs = c.attrs, given = all](const Tensors& in) {
          Tensors full = given;
          for (size_t i = 0, next = 0; i < full.size(); ++i)
            if (full[i].defined()) full[i] = in[next++];
          return dispatch(op, std::move(full), attrs);
        }) {}
  static Tensors drawn(const OpCase& c) {
    Generator g(5);
    Tensors in = c.inputs ? c.inputs(g) : Tensors();
    for (Tensor& t : in)
      if (t.defined() && is_floating(t.dtype())) t = t.to(Float32);
    return in;
  }
  static Tensors those(const Tensors& all) {
    Tensors present;
    for (const Tensor& t : all)
      if (t.defined()) present.push_back(t);
    return present;
  }
};

void expect_cases(int64_t opset) {
  TemporaryFolder folder;
  const std::string path = folder / "m.onnx";
  std::set<std::string_view> tried, refused;
  std::map<std::string, int> numbers;
  for (const OpCase& c : op_cases()) {
    if (c.benchmark || is_of_training(find_op(c.op))) continue;
    if (!c.dtypes.empty() && std::find(c.dtypes.begin(), c.dtypes.end(), Float32) == c.dtypes.end()) continue;
    SCOPED_TRACE(std::string(c.op) + " " + c.label);
    tried.insert(c.op);
    try {
      const Drawn d(c);
      // In the tail 1 + erf(x) cancels where it is a formula, and in ONNX Runtime.
      const bool cancels = c.op.starts_with("gelu") && d.present[0].numel() == 1;
      if (cancels && opset < 20) continue;
      save(d.module, d.present, path, {.opset = opset, .batch = ""});
      EXPECT_LE(error_of_file(path, d.module, d.present), 1e-5);
      const int number = ++numbers[std::string(c.op)];
      if (!cancels) keep_case(fmt::format("{}_{}_{}", c.op, number, opset), path, d.module, d.present);
    } catch (const Unsupported& e) {
      refused.insert(c.op);
      const std::string_view why = e.what();
      const bool in_part = std::any_of(std::begin(kInPart), std::end(kInPart),
                                       [&](std::string_view part) { return why.find(part) != why.npos; });
      EXPECT_TRUE(kWithout.count(c.op) || in_part) << why;
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  }
  for (const std::string_view op : kWithout) EXPECT_EQ(refused.count(op), tried.count(op)) << op;
}

TEST(OnnxWriterOps, CasesAgreeAtOpset20) { expect_cases(20); }
TEST(OnnxWriterOps, CasesAgreeAtTheFirstOpset) { expect_cases(18); }
TEST(OnnxWriterOps, CasesAgreeAtTheLastOpset) { expect_cases(28); }

}  // namespace
}  // namespace tessera::onnx
