// Two traces made by hand, compared.
#include <gtest/gtest.h>

#include <sstream>

#include "profiler/summary.h"
#include "profiler/trace_maker.h"

namespace tessera::profiler {
namespace {

struct ComparedKernel {
  std::string name, op;
  double microseconds;
  double spread = 0.1;  // between one call and the next
};

/// Four steps of 100 us, each with these kernels.
Trace trace_of_kernels(const std::vector<ComparedKernel>& kernels) {
  TraceMaker maker;
  std::vector<int32_t> calls;
  for (const ComparedKernel& kernel : kernels) calls.push_back(maker.call(call_of_op(kernel.op)));
  for (int i = 0; i < 4; ++i) {
    maker.step(i, i * 100, i * 100 + 100);
    double at = i * 100 + 10;
    for (size_t k = 0; k < kernels.size(); ++k) {
      const double end = at + kernels[k].microseconds + (i % 2 ? kernels[k].spread : -kernels[k].spread);
      maker.kernel(kernels[k].name, at, end, maker.op(calls[k], at - 5, at - 4));
      at = end;
    }
  }
  return maker.made();
}

std::string line_with(const std::string& text, const std::string& part) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    EXPECT_LE(line.size(), 120u) << line;
    if (line.find(part) != line.npos) return line;
  }
  return "no line with " + part + " in\n" + text;
}
void expect_parts(const std::string& line, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(line.find(part), line.npos) << "'" << part << "' in: " << line;
}

TEST(Compare, SaysWhatChangedAndWhatIsNoise) {
  const Trace a = trace_of_kernels({{"gemm", "matmul", 20}, {"map", "add", 10}, {"norm", "layer_norm", 5, 0.5}});
  const Trace b = trace_of_kernels({{"gemm", "matmul", 30}, {"map", "add", 8}, {"norm", "layer_norm", 5.1, 0.5}});
  const std::string text = compare(a, b);
  expect_parts(line_with(text, "gemm"), {"20.0 us +-0.12 x4", "30.0 us +-0.12 x4", "+50.0 %", "+10.0 us", "slower"});
  expect_parts(line_with(text, "map"), {"-20.0 %", "-2.00 us", "faster"});
  expect_parts(line_with(text, "norm"), {"+2.0 %", "noise"});
  expect_parts(line_with(text, "a step:"), {"100 us", "x3"});
  EXPECT_LT(text.find("gemm"), text.find("map"));  // the largest change first
  EXPECT_LT(text.find("map"), text.find("norm"));
  expect_parts(compare(a, b, 1), {"gemm", "2 others", "-1.90 us"});
}

// Calls of two shapes: between steps they differ by little, so a small change is none of noise.
TEST(Compare, SpreadIsThatOfCallsThatDoTheSame) {
  const Trace a = trace_of_kernels({{"gemm", "matmul", 30}, {"gemm", "matmul", 10}});
  const Trace b = trace_of_kernels({{"gemm", "matmul", 31}, {"gemm", "matmul", 11}});
  expect_parts(line_with(compare(a, b), "gemm"), {"20.0 us +-0.12 x8", "+5.0 %", "+2.00 us", "slower"});
}

TEST(Compare, OfTheSameIsTheSame) {
  const Trace a = trace_of_kernels({{"gemm", "matmul", 20}});
  const std::string text = compare(a, a);
  expect_parts(line_with(text, "gemm"), {"same", "+0.0 %"});
  EXPECT_EQ(text.find("slower"), text.npos);
}

TEST(Compare, FindsWhatOneSideHasAlone) {
  const Trace a = trace_of_kernels({{"gemm", "matmul", 20}, {"gone", "sub", 3}});
  const Trace b = trace_of_kernels({{"gemm", "matmul", 20}, {"new", "mul", 4}});
  const std::string text = compare(a, b);
  expect_parts(line_with(text, "gone"), {"sub", "only A", "-3.00 us"});
  expect_parts(line_with(text, "new"), {"mul", "only B", "+4.00 us"});
}

TEST(Compare, KernelsOfAnotherNameAreMatchedByOperator) {
  const Trace a = trace_of_kernels({{"gemm_128", "matmul", 20}, {"map", "add", 3}});
  const Trace b = trace_of_kernels({{"gemm_256", "matmul", 15}, {"map", "add", 3}});
  const std::string text = compare(a, b);
  expect_parts(line_with(text, "gemm_128"), {"matmul", "-25.0 %", "-5.00 us", "faster"});
  expect_parts(line_with(text, "in B"), {"gemm_256"});
  EXPECT_EQ(text.find("only"), text.npos) << text;
}

TEST(Compare, OneCallHasNoSpread) {
  TraceMaker a, b;
  a.kernel("k", 0, 10);
  b.kernel("k", 0, 20);
  expect_parts(line_with(compare(a.made(), b.made()), "k "), {"once", "+100.0 %", "10.0 us x1"});
}

TEST(Compare, SaysThatThereIsNothing) {
  EXPECT_EQ(compare({}, {}), "no kernels and no operators were recorded in either\n");
  const std::string text = compare({}, trace_of_kernels({{"gemm", "matmul", 20}}));
  expect_parts(line_with(text, "gemm"), {"only B"});
}

}  // namespace
}  // namespace tessera::profiler
