// Tables and steps of traces made by hand; intervals against a walk over every nanosecond; names of kernels.
#include "profiler/summary.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <sstream>

#include "profiler/analysis.h"
#include "profiler/intervals.h"
#include "profiler/kernel_name.h"
#include "profiler/trace_maker.h"

namespace tessera::profiler {
namespace {

std::vector<bool> covered(const std::vector<Interval>& pieces, size_t length) {
  std::vector<bool> out(length);
  for (const Interval& piece : pieces)
    for (int64_t i = piece.begin; i < piece.end; ++i) out[static_cast<size_t>(i)] = true;
  return out;
}

TEST(Intervals, AreWhatAWalkOverTimeFinds) {
  std::mt19937 draws(1);
  const auto some = [&](int count) {
    std::vector<Interval> out;
    for (int i = 0; i < count; ++i) {
      const auto begin = static_cast<int64_t>(draws() % 90);
      out.push_back({begin, begin + static_cast<int64_t>(draws() % 10)});
    }
    return out;
  };
  for (int round = 0; round < 200; ++round) {
    const std::vector<Interval> x = some(round % 13), y = some(round % 7);
    const std::vector<bool> in_x = covered(x, 100), in_y = covered(y, 100);
    std::vector<bool> both(100), only(100);
    for (size_t i = 0; i < 100; ++i) {
      both[i] = in_x[i] && in_y[i];
      only[i] = in_x[i] && !in_y[i];
    }
    EXPECT_EQ(covered(union_of(x), 100), in_x);
    EXPECT_EQ(length_of(union_of(x)), std::count(in_x.begin(), in_x.end(), true));
    EXPECT_EQ(covered(common(union_of(x), union_of(y)), 100), both);
    EXPECT_EQ(covered(without(union_of(x), union_of(y)), 100), only);
    EXPECT_EQ(covered(clipped_to(union_of(x), {20, 50}), 100), covered(common(union_of(x), {{20, 50}}), 100));
  }
  EXPECT_TRUE(union_of({{5, 5}, {7, 3}}).empty());
}

TEST(KernelName, KeepsWhatTellsKernelsApart) {
  EXPECT_EQ(plain_kernel_name("void lib::kernels::(anonymous namespace)::act_kernel<float>(lib::Args, long long)"),
            "act_kernel<float>");
  EXPECT_EQ(plain_kernel_name("void lib::product<lib::t::Tile<128, 192, true>, lib::f16, lib::Result<lib::t::Tile<128, "
                              "192, true>, (lib::Activation)3> >(lib::Args)"),
            "product<Tile<128,192,true>,f16,Result<Tile,Activation3>>");
  EXPECT_EQ(plain_kernel_name("_ZN3lib4copyIfEEvPKT_"), "copy<float>");
  EXPECT_EQ(plain_kernel_name("void (anonymous namespace)::f(int)"), "f");
  EXPECT_EQ(plain_kernel_name("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"), "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n");
  EXPECT_EQ(plain_kernel_name("Memcpy DtoH (Device -> Pinned)"), "Memcpy DtoH (Device -> Pinned)");
  for (const char* odd :
       {"", "<", ">", "(", ")", "a(", "a)b(", "f<(", "::", "_Z", "_Z3", "void ", "x<y<z", "(anonymous namespace)::"})
    EXPECT_LE(plain_kernel_name(odd).size(), std::string(odd).size()) << odd;
  EXPECT_EQ(shortened("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(shortened("abcdefghijk", 10), "abcde..ijk");
}

TEST(KernelName, NamesThatWouldLookAlikeShowWhereTheyDiffer) {
  const std::string a = "a_kernel_whose_name_is_long_f16_and_which_ends_as_the_other_one_does";
  std::string b = a;
  b.replace(b.find("f16"), 3, "f32");
  const auto names = short_kernel_names({a, b, "c"}, 24);
  EXPECT_NE(names[0], names[1]);
  EXPECT_NE(names[0].find("f16"), names[0].npos) << names[0];
  EXPECT_NE(names[1].find("f32"), names[1].npos) << names[1];
  EXPECT_EQ(names[2], "c");
  for (const std::string& name : names) EXPECT_LE(name.size(), 24u);
  const std::string long_name(40, 'k');
  const auto three = short_kernel_names(
      {long_name + "1" + long_name + "2" + long_name + "z", long_name + "1" + long_name + "3" + long_name + "z",
       long_name + "4" + long_name + "3" + long_name + "z"},
      24);
  EXPECT_EQ(std::set<std::string>(three.begin(), three.end()).size(), 3u);
}

TEST(Digits, AreThree) {
  EXPECT_EQ(time_text(0.001234), "1.23 ms");
  EXPECT_EQ(time_text(0.9999e-3), "1.00 ms");
  EXPECT_EQ(time_text(12.34e-6), "12.3 us");
  EXPECT_EQ(time_text(2.5), "2.50 s");
  EXPECT_EQ(time_text(321e-9), "321 ns");
  EXPECT_EQ(time_text(-0.25), "-250 ms");
  EXPECT_EQ(time_text(0), "0");
  EXPECT_EQ(digits_text(0), "-");
  EXPECT_EQ(digits_text(12345.6), "12346");
}

// A product of two kernels, of which the second takes a third of the first, and an addition, twice each.
TraceMaker two_operators() {
  TraceMaker maker;
  maker.roof(0, {1e12, 60e12, 400e12, 800e12, 800e12, 60e12});
  const int32_t product = maker.call(call_of_op("matmul", {{64, 64}, {64, 64}}, "bf16", 12e9, 4e6, "h.0.mlp"));
  const int32_t sum = maker.call(call_of_op("add", {{64, 64}, {64, 64}}, "bf16", 1e6, 8e6, "h.1"));
  for (int i = 0; i < 2; ++i) {
    const int32_t a = maker.op(product, i * 100, i * 100 + 10);
    maker.kernel("gemm", i * 100 + 20, i * 100 + 50, a);
    maker.kernel("join", i * 100 + 50, i * 100 + 60, a);
    const int32_t b = maker.op(sum, i * 100 + 10, i * 100 + 20);
    maker.kernel("map", i * 100 + 60, i * 100 + 80, b);
  }
  return maker;
}

TEST(KernelTable, SharesACallsWorkAmongItsKernels) {
  const auto rows = kernel_table(two_operators().made());
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].kernel, "gemm");
  EXPECT_EQ(rows[0].op, "matmul");
  EXPECT_EQ(rows[0].path(), "h.0.mlp");
  EXPECT_EQ(rows[0].device, 0);
  EXPECT_EQ(rows[0].calls, 2);
  EXPECT_EQ(rows[0].times.size(), 2u);
  EXPECT_NEAR(rows[0].seconds, 60e-6, 1e-12);
  EXPECT_NEAR(rows[0].share, 0.5, 1e-9);
  // Of 12 GFLOP in 40 us each kernel has its share, so all of them run at the call's rate.
  EXPECT_NEAR(rows[0].flops_per_second, 300e12, 1e3);
  EXPECT_EQ(rows[1].kernel, "map");
  EXPECT_NEAR(rows[1].bytes_per_second, 400e9, 1);
  EXPECT_NEAR(rows[1].roof_share, 0.4, 1e-9);  // memory's
  EXPECT_EQ(rows[2].kernel, "join");
  EXPECT_NEAR(rows[2].flops_per_second, 300e12, 1e3);
  EXPECT_NEAR(rows[0].roof_share, 300.0 / 800, 1e-9);
  double flops = 0;
  for (const KernelRow& row : rows) flops += row.flops_per_second * row.seconds;
  EXPECT_NEAR(flops, 2 * 12e9 + 2 * 1e6, 1);
}

/// A row is of all modules that have the kernel, the one that took most first.
TEST(KernelTable, NamesEveryModule) {
  TraceMaker maker;
  for (const auto& [path, time] : {std::pair{"h.0", 10}, {"", 5}, {"h.1", 30}, {"h.0", 10}}) {
    const int32_t call = maker.call(call_of_op("add", {{64}}, "f32", 0, 0, path));
    const auto begin = static_cast<double>(maker.trace.spans.size() * 100);
    maker.kernel("map", begin + 20, begin + 20 + time, maker.op(call, begin, begin + 10));
  }
  const auto rows = kernel_table(maker.made());
  ASSERT_EQ(rows.size(), 1u);
  const auto& modules = rows[0].modules;
  ASSERT_EQ(modules.size(), 3u);
  EXPECT_EQ(modules[0].first, "h.1");
  EXPECT_NEAR(modules[0].second, 30e-6, 1e-12);
  EXPECT_EQ(modules[1].first, "h.0");
  EXPECT_NEAR(modules[1].second, 20e-6, 1e-12);
  EXPECT_EQ(modules[2].first, "");
  EXPECT_EQ(rows[0].path(), "h.1");
}

TEST(KernelTable, JoinsAnOperatorsKernels) {
  const auto rows = kernel_table(two_operators().made(), true);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].op, "matmul");
  EXPECT_EQ(rows[0].kernel, "gemm");  // which takes most of it
  EXPECT_EQ(rows[0].calls, 2);
  EXPECT_NEAR(rows[0].times[0], 40e-6, 1e-12);
  EXPECT_NEAR(rows[0].flops_per_second, 300e12, 1e3);
}

TEST(KernelTable, TellsCallsOfAReplayedGraphApart) {
  TraceMaker maker;
  const int32_t first = maker.call(call_of_op("matmul", {}, "f16", 8e9)),
                second = maker.call(call_of_op("matmul", {}, "f16", 8e9));
  const int32_t graph = maker.add(Kind::Op, "graph", 0, 5);
  for (const auto& [call, begin] : {std::pair{first, 10}, {first, 20}, {second, 30}})
    maker.trace.spans[static_cast<size_t>(maker.kernel("gemm", begin, begin + 10, graph))].call = call;
  const auto rows = kernel_table(maker.made());
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_NEAR(rows[0].flops_per_second, 16e9 / 30e-6, 1);
}

TEST(KernelTable, OnlyOfTf32HasItsRoof) {
  TraceMaker maker;
  maker.roof(0, {1e12, 50e12, 400e12, 0, 0, 0});
  const int32_t call = maker.call(call_of_op("matmul", {{8, 8}, {8, 8}}, "f32", 1e9, 1e3));
  maker.kernel("gemm_f32", 0, 40, maker.op(call, 0, 1));
  maker.kernel("gemm_tf32", 50, 90, maker.op(call, 2, 3));
  const int32_t half = maker.call(call_of_op("matmul", {{8, 8}, {8, 8}}, "f16", 1e9, 1e3));
  maker.kernel("gemm_f16", 100, 110, maker.op(half, 4, 5));
  std::map<std::string, double> shares;
  for (const KernelRow& row : kernel_table(maker.made())) shares[row.kernel] = row.roof_share;
  EXPECT_NEAR(shares.at("gemm_f32"), 0.5, 1e-9);
  EXPECT_NEAR(shares.at("gemm_tf32"), 0.0625, 1e-9);
  EXPECT_EQ(shares.at("gemm_f16"), 0);  // not measured
}

TEST(KernelTable, OfTheHostCountsAnOperatorWithoutThoseThatItCalls) {
  TraceMaker maker;
  Call outer = call_of_op("mlp");
  outer.kernel.clear();
  const int32_t mlp = maker.call(outer);
  const int32_t product = maker.call(call_of_op("matmul", {{8, 8}}, "f32", 1e6));
  for (int i = 0; i < 3; ++i) {
    maker.op(mlp, i * 100, i * 100 + 50);
    maker.op(product, i * 100 + 5, i * 100 + 25);
    maker.op(product, i * 100 + 25, i * 100 + 45);
  }
  maker.op(product, 0, 30, TraceMaker::kThread + 1);  // another thread, in which mlp is not
  const auto rows = kernel_table(maker.made());
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].kernel, "matmul_kernel");
  EXPECT_EQ(rows[0].device, -1);
  EXPECT_NEAR(rows[0].seconds, 150e-6, 1e-12);
  EXPECT_NEAR(rows[0].flops_per_second, 7e6 / 150e-6, 1);
  EXPECT_EQ(rows[1].op, "mlp");
  EXPECT_EQ(rows[1].kernel, "");
  EXPECT_NEAR(rows[1].seconds, 30e-6, 1e-12);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

TEST(TableText, FitsAndHasATotal) {
  TraceMaker maker = two_operators();
  const int32_t call = maker.call(call_of_op(std::string(60, 'x'), {{1}}, "f32", 1e15, 1e15));
  for (int i = 0; i < 30; ++i)
    maker.kernel("void lib::" + std::string(40, 'a') + "<lib::Tile<" + std::to_string(i) + ", 1>, " +
                     std::string(200, 'b') + ">(int)",
                 1000 + i, 1001 + i, maker.op(call, 900 + i, 901 + i));
  const Trace trace = maker.made();
  const std::string text = table_text(trace, kernel_table(trace), 5);
  const auto lines = lines_of(text);
  ASSERT_EQ(lines.size(), 8u) << text;  // header, five, others, total
  for (const std::string& line : lines) EXPECT_LE(line.size(), 120u) << line;
  EXPECT_NE(lines[1].find("gemm"), lines[1].npos);
  EXPECT_NE(lines[1].find("300"), lines[1].npos);
  EXPECT_EQ(lines[6].rfind("28 others", 0), 0u) << lines[6];
  EXPECT_EQ(lines[7].rfind("total", 0), 0u);
  EXPECT_NE(lines[7].find("100.0 %"), lines[7].npos);
  EXPECT_EQ(table_text(trace, kernel_table(trace), 5), text);
}

TEST(TableText, SaysThatThereIsNothing) {
  EXPECT_TRUE(kernel_table({}).empty());
  EXPECT_EQ(table_text({}, {}), "no kernels and no operators were recorded\n");
  EXPECT_EQ(steps_text({}), "no steps were recorded\n");
}

void expect_whole(const StepRow& step) {
  EXPECT_NEAR(step.busy + step.copies + step.idle, step.seconds, 1e-15) << step.name;
  EXPECT_GE(step.idle, 0) << step.name;
}

TEST(Steps, OfADeviceLieBetweenFirstKernels) {
  TraceMaker maker;
  const int32_t call = maker.call(call_of_op("add"));
  for (int i = 0; i < 3; ++i) {
    const double at = i * 100;
    maker.step(i, at, at + 100);
    maker.launched(call, "k", at + 10, at + 50, at + 80);  // ends in its step
    maker.launched(call, "k", at + 20, at + 80, at + 110);
    maker.on_device(Kind::Copy, "Memcpy HtoD", at + 100, at + 120, -1);  // 10 us of it beside the kernel
  }
  maker.launched(call, "early", -50, -40, 55);  // before the first step, but not over when it begins
  const auto steps = steps_of(maker.made());
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[1].name, "ProfilerStep#1");
  EXPECT_EQ(steps[1].begin, 150'000);
  EXPECT_EQ(steps[1].end, 250'000);
  EXPECT_NEAR(steps[1].seconds, 100e-6, 1e-15);
  EXPECT_NEAR(steps[1].busy, 60e-6, 1e-15);
  EXPECT_NEAR(steps[1].copies, 10e-6, 1e-15);
  EXPECT_NEAR(steps[1].idle, 30e-6, 1e-15);
  EXPECT_NEAR(steps[1].host_ops, 8e-6, 1e-15);
  EXPECT_EQ(steps[2].end, 310'000);
  for (const StepRow& step : steps) expect_whole(step);
  EXPECT_NE(steps_text(steps).find("mean"), std::string::npos);
  for (const std::string& line : lines_of(steps_text(steps))) EXPECT_LE(line.size(), 120u);
}

TEST(Steps, OfTheHostAreItsOwn) {
  TraceMaker maker;
  const int32_t call = maker.call(call_of_op("add"));
  maker.step(0, 0, 100);
  maker.step(1, 100, 250);
  maker.op(call, 90, 130);
  maker.op(call, 120, 140, TraceMaker::kThread + 1);
  const auto steps = steps_of(maker.made());
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_NEAR(steps[0].busy, 10e-6, 1e-15);
  EXPECT_NEAR(steps[1].busy, 40e-6, 1e-15);
  EXPECT_NEAR(steps[1].idle, 110e-6, 1e-15);
  for (const StepRow& step : steps) expect_whole(step);
}

TEST(Steps, OneOfAllWhereThereIsNone) {
  TraceMaker maker;
  maker.kernel("a", 10, 20);
  maker.kernel("b", 40, 60, -1, 1);
  maker.kernel("b", 70, 90, -1, 1);
  const auto steps = steps_of(maker.made());
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].name, "all");
  EXPECT_NEAR(steps[0].seconds, 50e-6, 1e-15);  // of device 1, which does more
  EXPECT_NEAR(steps[0].busy, 40e-6, 1e-15);
  EXPECT_TRUE(steps_of({}).empty());
}

TEST(Steps, WithoutKernelsTakeNoTimeOfADevice) {
  TraceMaker maker;
  const int32_t call = maker.call(call_of_op("add"));
  maker.step(0, 0, 100);
  maker.launched(call, "k", 10, 20, 30);
  maker.step(1, 100, 200);
  maker.step(2, 200, 300);
  maker.launched(call, "k", 210, 220, 230);
  maker.step(3, 300, 400);
  const auto steps = steps_of(maker.made());
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[1].seconds, 0);
  EXPECT_EQ(steps[3].seconds, 0);
  EXPECT_NEAR(steps[0].seconds, 200e-6, 1e-15);
  EXPECT_NEAR(steps[2].seconds, 10e-6, 1e-15);
  for (const StepRow& step : steps) expect_whole(step);
}

TEST(Steps, OfRandomTracesAreWholeAndDoNotOverlap) {
  std::mt19937 draws(7);
  for (int round = 0; round < 50; ++round) {
    TraceMaker maker;
    const int32_t call = maker.call(call_of_op("add"));
    for (int i = 0; i < 4; ++i) maker.step(i, i * 100, i * 100 + 100 - static_cast<int>(draws() % 30));
    for (int i = 0; i < 40; ++i) {
      const double launch = static_cast<double>(draws() % 400), begin = launch + static_cast<double>(draws() % 90);
      const int32_t owner = maker.op(call, launch, launch + 2);
      maker.on_device(draws() % 4 ? Kind::Kernel : Kind::Fill, "k", begin, begin + static_cast<double>(draws() % 20),
                      owner);
    }
    int64_t end = INT64_MIN;
    for (const StepRow& step : steps_of(maker.made())) {
      expect_whole(step);
      EXPECT_LE(end, step.begin);
      EXPECT_LE(step.begin, step.end);
      end = step.end;
    }
  }
}

}  // namespace
}  // namespace tessera::profiler
