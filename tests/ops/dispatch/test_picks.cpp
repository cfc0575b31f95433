// Picks: kernels are measured once for each kind of call, and what was measured or pinned is used.
#include "ops/call_plan.h"
#include "ops/picks.h"

#include <thread>

#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

/// Remembers what it is told.
struct Notebook : PickBook {
  Picks known, kept;
  bool measuring = true;
  int reads = 0;
  Picks read(Device) override { return ++reads, known; }
  bool measures() const override { return measuring; }
  void keep(Device, const std::string& call, const Pick& pick) override { kept[call] = pick; }
  std::string name(Device) const override { return "notebook"; }
};

class PicksTest : public testing::Test {
 protected:
  void SetUp() override { use_picks(book); }
  void TearDown() override { use_picks(nullptr); }

  // Of the CPU's kernels two are supported, and three could run.
  Tensor convolve() const { return conv2d(x, weight, {}, {.padding = {1, 1}}); }
  std::string explained() const {
    const Tensor outs[] = {empty({2, 48, 56, 54})};
    const Operand in[] = {Operand(x), Operand(weight), Operand()}, out[] = {Operand(outs[0])};
    return explain({find_op("conv2d"), in, Attrs(ConvAttrs{.padding = {1, 1}}), out});
  }

  NoGrad guard;
  Generator generator{5};
  Tensor x = randn({2, 32, 56, 54}, generator), weight = randn({48, 32, 3, 3}, generator);
  std::shared_ptr<Notebook> book = std::make_shared<Notebook>();
  const std::string call = "conv2d f32[2,32,56,54] f32[48,32,3,3] none -> 1; padding=[1, 1]";
};

TEST_F(PicksTest, EachKindOfCallIsMeasuredOnce) {
  use_picks(nullptr);
  const Tensor want = convolve();
  use_picks(book);
  for (int i = 0; i < 3; ++i) EXPECT_LE(relative_error(convolve().to(Float64), want.to(Float64)), 1e-6);
  EXPECT_EQ(book->reads, 1);
  ASSERT_EQ(book->kept.size(), 1u);
  const auto& [text, pick] = *book->kept.begin();
  EXPECT_EQ(text, call);
  const std::vector<std::string> kernels{"winograd", "implicit_gemm", "scatter", "planes", "copied_direct"};
  ASSERT_EQ(pick.microseconds.size(), kernels.size());
  std::pair<double, std::string> best{1e9, ""};
  for (size_t i = 0; i < kernels.size(); ++i) {
    const auto& [name, time] = pick.microseconds[i];
    EXPECT_EQ(name, kernels[i]);
    EXPECT_GT(time, 0);
    if (time <= 0.97 * best.first) best = {time, name};
  }
  EXPECT_EQ(pick.kernel, best.second);
  x = x.transpose(2, 3);
  convolve();  // another layout
  weight = weight.to(Float64);
  x = x.to(Float64);
  convolve();  // one kernel alone takes f64
  EXPECT_EQ(book->kept.size(), 2u);
}

TEST_F(PicksTest, WhatIsAllowedMakesOtherCalls) {
  for (const auto allow : {+[](bool) {}, allow_tf32, allow_nondeterministic}) {
    allow(true);
    convolve();
    allow(false);
  }
  EXPECT_EQ(book->kept.size(), 3u);
}

TEST_F(PicksTest, WhatIsKnownIsUsedAndExplained) {
  book->known[call] = {"implicit_gemm", "2026-11-21T14:00:00Z", {{"winograd", 20}, {"implicit_gemm", 10.25}}};
  convolve();
  EXPECT_TRUE(book->kept.empty());
  const std::string text = explained();
  EXPECT_TRUE(
      text.ends_with("   winograd         supported, but not what was picked, 20.0 us\n"
                     "   copied_depthwise does not take these shapes or kinds of inputs\n"
                     "   copied_direct    takes longer than another one, by estimate\n"
                     "-> implicit_gemm    chosen by measurement, 10.2 us\n"
                     "measured 2026-11-21T14:00:00Z\n"))
      << text;
  ForceKernel forced("conv2d", "winograd");
  EXPECT_NE(explained().find("-> winograd"), std::string::npos);
}

TEST_F(PicksTest, WithoutMeasuringTheListDecides) {
  book->measuring = false;
  convolve();
  EXPECT_TRUE(book->kept.empty());
  EXPECT_NE(explained().find("-> winograd         chosen\n"), std::string::npos) << explained();
}

TEST_F(PicksTest, APickThatCannotRunIsIgnoredWithOneWarning) {
  for (const char* kernel : {"none of these", "winograd"}) {
    use_picks(book);
    book->known[call].kernel = kernel;
    const bool wrong = std::string(kernel) != "winograd";
    testing::internal::CaptureStderr();
    for (int i = 0; i < 3; ++i) convolve();
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(
        said,
        wrong ? "warning: notebook picks 'none of these' for " + call + ", which is not in the list: ignored\n" : "");
    EXPECT_EQ(explained().find("ignored: a pick of 'none of these'") != std::string::npos, wrong) << explained();
  }
  EXPECT_TRUE(book->kept.empty());
}

TEST_F(PicksTest, ThreadsMeasureACallOnce) {
  use_picks(nullptr);
  const Tensor want = convolve();
  use_picks(book);
  std::vector<std::thread> threads;
  std::vector<double> errors(4);
  for (double& error : errors)
    threads.emplace_back([&] {
      NoGrad guard;
      error = relative_error(convolve().to(Float64), want.to(Float64));
    });
  for (std::thread& thread : threads) thread.join();
  for (double error : errors) EXPECT_LE(error, 1e-6);
  EXPECT_EQ(book->kept.size(), 1u);
}

TEST_F(PicksTest, AKernelThatFailsIsPassedOverWithAReason) {
  const auto works = [](const Call&, Plan&) {};
  const Kernel kernels[] = {{"first", nullptr, works},
                            {"broken", nullptr, [](const Call&, Plan&) { throw Error("no plan"); }},
                            {"last", nullptr, works}};
  const Tensor result = empty({1});
  const Operand ins[] = {Operand(x)}, outs[] = {Operand(result)};
  const Call made_up{find_op("exp"), ins, Attrs(), outs};
  testing::internal::CaptureStderr();
  ASSERT_NE(picked_kernel(made_up, kernels), nullptr);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: broken is not measured for exp f32[2,32,56,54] -> 1: no plan\n");
  EXPECT_EQ(book->kept.begin()->second.microseconds.size(), 2u);
  use_picks(book);
  const std::span all_broken(kernels + 1, 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(picked_kernel({find_op("log"), ins, Attrs(), outs}, all_broken), nullptr);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");  // the call itself will fail and say why
}

TEST_F(PicksTest, AKernelThatIsMeasuredMayPlanOthersThatAre) {
  const auto composed = [](const Call& call, Plan& plan) {
    const Operand ins[] = {call.in[0], call.in[1], Operand()};
    plan_call(find_op("conv2d"), ins, Attrs(ConvAttrs{.padding = {1, 1}}), call.out, plan);
  };
  const Kernel kernels[] = {{"composed", nullptr, composed}, {"other", nullptr, composed}};
  const Tensor result = empty({2, 48, 56, 54});
  const Operand ins[] = {Operand(x), Operand(weight)}, outs[] = {Operand(result)};
  ASSERT_NE(picked_kernel({find_op("add"), ins, Attrs(), outs}, kernels), nullptr);
  EXPECT_EQ(book->kept.size(), 2u);
  EXPECT_EQ(book->kept.count(call), 1u);
}

TEST_F(PicksTest, TextNamesTheMachine) {
  EXPECT_NE(card_of(cpu()).find(" threads"), std::string::npos);
  EXPECT_EQ(libraries_of(cpu()), std::string("tessera ") + TESSERA_VERSION);
}

}  // namespace
}  // namespace tessera
