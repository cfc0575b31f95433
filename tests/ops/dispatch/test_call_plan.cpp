// Plans: launches as relocatable bytes, made once for tensors that lie alike.
#include "ops/call_plan.h"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <thread>

#include "core/gpu/backend.h"
#include "core/gpu_check.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "ops/schema.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

Ref<Plan> plan_for(const Op& op, const Tensors& in, const Tensors& out, const Attrs& attrs = {}) {
  const auto ins = metas_of({in.data(), in.size()}, cpu()), outs = metas_of({out.data(), out.size()}, cpu());
  return make_plan(op, {ins.data(), ins.size()}, attrs, {outs.data(), outs.size()});
}
void run(const Plan& plan, const Tensors& in, const Tensors& out) {
  run_plan(plan, {in.data(), in.size()}, {out.data(), out.size()});
}

TEST(Plan, RunsOnOtherTensorsThatLieAlike) {
  NoGrad guard;
  Generator g(1);
  const Op& op = find_op("matmul");
  const Tensor y = empty({5, 3});
  const Ref<Plan> plan = plan_for(op, {randn({5, 7}, g), randn({7, 3}, g)}, {y});
  EXPECT_STREQ(plan->kernel()->name, "gemm");
  ASSERT_EQ(plan->launches().size(), 1u);
  EXPECT_EQ(plan->relocations().size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const Tensor a = randn({5, 7}, g), b = randn({7, 3}, g);
    run(*plan, {a, b}, {y});
    EXPECT_EQ(y.to_vector<float>(), matmul(a, b).to_vector<float>());
  }
}

TEST(Plan, ViewsAreRelocatedFromTheirFirstElement) {
  NoGrad guard;
  Generator g(2);
  const Tensor x = randn({6, 9}, g), other = randn({6, 9}, g);
  const auto part = [](const Tensor& t) { return t.slice(0, 5, 6).slice(1, 1, 8, 2); };  // aligned to 4 bytes
  const Tensor y = empty({1, 4});
  const Attrs flipped = PermuteAttrs{{1}};
  const Ref<Plan> plan = plan_for(find_op("flip"), {part(x)}, {y}, flipped);
  run(*plan, {part(other)}, {y});
  EXPECT_EQ(y.to_vector<float>(), flip(part(other), {1}).to_vector<float>());
}

struct Halves {
  uint32_t low, high;
  void* pointer;
};
/// Padding is not cleared by every compiler: what is left there of a place must not make a pointer of its neighbour.
TEST(Plan, HalfAPlaceIsNoPointer) {
  const Kernel& kernel = kernels_for(find_op("cumsum"), DeviceType::CPU)[0];
  const Ref<Plan> plan = PlanMaker::make(kernel, {TensorMeta{{4}, Float32, cpu()}}, [](int base, Plan& p) {
    void* const place = PlanMaker::place(0, base, 0, true);
    const auto high = static_cast<uint32_t>(reinterpret_cast<uint64_t>(place) >> 32);
    p.launch(
        "halves", +[](const Halves& h) { *static_cast<uint32_t*>(h.pointer) = h.low; }, Halves{5, high, place});
  });
  ASSERT_EQ(plan->relocations().size(), 1u);
  EXPECT_EQ(plan->relocations()[0].at, offsetof(Halves, pointer));
  uint32_t written = 0;
  void* slots[] = {&written, nullptr};
  plan->run(slots, nullptr);
  EXPECT_EQ(written, 5u);
}

struct Byte {
  uint8_t first;
  uint8_t rest[7];  // what a compiler may leave as it was
  void* pointer;
};
/// The same of a byte beside seven eighths of a place, in memory of any alignment, on either device, and in that of a
/// plan's own bytes.
TEST(Plan, AByteBesideAPlaceIsNoPointer) {
  const Kernel& kernel = kernels_for(find_op("cumsum"), DeviceType::CPU)[0];
  const auto launches = [&](TensorMeta meta, bool own) {
    return PlanMaker::make(kernel, {meta}, [&](int base, Plan& p) {
      int64_t number = 7;
      void* const place = own ? p.keep(&number, 1) : PlanMaker::place(0, base, meta.alignment, !meta.device.is_gpu());
      Byte bytes{};
      std::memcpy(static_cast<void*>(&bytes), &place, sizeof place);
      bytes.first = 5;
      bytes.pointer = place;
      p.launch(
          "byte", +[](const Byte& b) { EXPECT_EQ(b.first, 5); }, bytes);
    });
  };
  alignas(256) std::byte memory[512];
  for (const Device device : {cpu(), cuda(0)})
    for (const int alignment : {1, 2, 4, 8, 16, 32, 64, 128, 256})
      for (const bool own : {false, true}) {
        TensorMeta meta{{4}, UInt8, device};
        meta.alignment = alignment;
        const Ref<Plan> plan = launches(meta, own);
        for (int at = alignment; at <= 256; at += 2 * alignment) {
          void* slots[] = {memory + at, memory};
          plan->run(slots, nullptr);
        }
      }
}

/// A number whose bits are those of a place is a number all the same.
TEST(Plan, NumbersThatLookLikePlacesStay) {
  NoGrad guard;
  for (int base : {0, 1})
    for (uint32_t slot : {0u, 1u, 2u}) {
      const double value = std::bit_cast<double>(reinterpret_cast<uint64_t>(PlanMaker::place(slot, base, 0)));
      const Tensor x = full({3}, value, Float64);
      EXPECT_EQ(std::bit_cast<uint64_t>(x.to_vector<double>()[1]), std::bit_cast<uint64_t>(value));
      const Tensor sum = add(zeros({3}, Float64), value);
      EXPECT_EQ(std::bit_cast<uint64_t>(sum.to_vector<double>()[2]), std::bit_cast<uint64_t>(value));
    }
}

TEST(Plan, RefusesTensorsThatLieOtherwise) {
  NoGrad guard;
  const Op& op = find_op("add");
  const Tensor a = ones({4, 3}), y = empty({4, 3});
  const Ref<Plan> plan = plan_for(op, {a, a}, {y});
  EXPECT_EQ(error_of([&] { run(*plan, {a}, {y}); }), "plan of kernel 'map': made for 3 tensors, not 2");
  EXPECT_EQ(error_of([&] {
              run(*plan, {a, ones({3, 4})}, {y});
            }),
            "plan of kernel 'map': tensor 1 is f32[3, 4] on cpu, not f32[4, 3] on cpu");
  EXPECT_EQ(error_of([&] {
              run(*plan, {a, ones({3, 4}).transpose(0, 1)}, {y});
            }),
            "plan of kernel 'map': tensor 1 is f32[4, 3] on cpu with strides [1, 4], not f32[4, 3] on cpu");
  EXPECT_EQ(error_of([&] {
              run(*plan, {a, {}}, {y});
            }),
            "plan of kernel 'map': tensor 1 is absent, not f32[4, 3] on cpu");
  EXPECT_EQ(error_of([&] {
              run(*plan, {a, a.to(Float64)}, {y});
            }),
            "plan of kernel 'map': tensor 1 is f64[4, 3] on cpu, not f32[4, 3] on cpu");
}

TEST(Plan, AKernelPlansTheSameEachTime) {
  static int times = 0;
  struct Nothing {
    double x;
  };
  const Kernel fickle{"fickle", nullptr, [](const Call&, Plan& plan) {
                        for (int i = 0; i <= times; ++i)
                          plan.launch(
                              "x", +[](const Nothing&, Executor&) {}, Nothing{});
                        ++times;
                      }};
  EXPECT_EQ(error_of([&] { make_plan(fickle, find_op("exp"), {}, Attrs(), {}); }),
            "kernel 'fickle' plans other launches each time");
}

/// What a kernel that is made at run time knows travels with its calls.
TEST(Plan, KernelsMayHaveState) {
  struct Scale {
    double factor;
  };
  struct Args {
    const float* x;
    float* y;
    double factor;
  };
  static const Scale three{3};
  const Kernel kernel{
      .name = "scaled",
      .supports = [](const Call& c) { return c.state ? Reason::Ok : Reason::Shape; },
      .plan =
          [](const Call& c, Plan& plan) {
            const auto run = +[](const Args& a, Executor&) { *a.y = static_cast<float>(*a.x * a.factor); };
            plan.launch("scale", run,
                        Args{static_cast<const float*>(c.in[0].data_ptr()), static_cast<float*>(c.out[0].data_ptr()),
                             static_cast<const Scale*>(c.state)->factor});
          },
      .state = &three};
  const Tensor x = full({1}, 2.0), y = empty({1});
  const TensorMeta in[] = {x.meta()}, out[] = {y.meta()};
  const Ref<Plan> plan = make_plan(kernel, find_op("exp"), in, Attrs(), out);
  run(*plan, {x}, {y});
  EXPECT_EQ(y.item(), 6);
}

TEST(Plan, CallsThatLieAlikeShareOne) {
  NoGrad guard;
  const Op& op = find_op("exp");
  const auto of = [&](const Tensors& in) { return call_plan(op, in, {}, cpu(), false).plan; };
  const Ref<Plan> plan = of({ones({8, 2})});
  EXPECT_EQ(of({zeros({8, 2})}), plan);
  EXPECT_NE(of({ones({2, 8})}), plan);
  EXPECT_NE(of({ones({2, 8}).transpose(0, 1)}), plan);
  EXPECT_NE(of({ones({8, 2}, Float64)}), plan);
  EXPECT_EQ(of({ones({8, 2})}), plan);
  const int threads = num_threads();
  set_num_threads(threads + 1);
  EXPECT_NE(of({ones({8, 2})}), plan);
  set_num_threads(threads);
  Ref<Plan> elsewhere;
  std::thread([&] { elsewhere = of({ones({8, 2})}); }).join();
  EXPECT_NE(elsewhere, plan);
}

TEST(Plan, AttributesAndWhatIsForcedMakeOthers) {
  NoGrad guard;
  const Tensor x = ones({2, 32, 56, 56}), w = ones({48, 32, 3, 3});
  const Op& op = find_op("conv2d");
  const auto of = [&](const ConvAttrs& attrs) { return call_plan(op, {x, w, {}}, attrs, cpu(), false).plan; };
  const Ref<Plan> plan = of({.padding = {1, 1}});
  EXPECT_STREQ(plan->kernel()->name, "winograd");
  EXPECT_EQ(of({.padding = {1, 1}}), plan);
  EXPECT_NE(of({.padding = {0, 1}}), plan);
  const ForceKernel forced("conv2d", "implicit_gemm");
  EXPECT_STREQ(of({.padding = {1, 1}})->kernel()->name, "implicit_gemm");
}

/// What a line of explain names is there to be opened: `name` stands in the file.
void expect_in_file(const std::string& place, const std::string& name) {
  const auto colon = place.rfind(':');
  ASSERT_NE(colon, std::string::npos) << place;
  std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/" + place.substr(0, colon));
  std::string line;
  for (int n = std::stoi(place.substr(colon + 1)); n > 0; --n) ASSERT_TRUE(std::getline(file, line)) << place;
  EXPECT_NE(line.find(name), std::string::npos) << place << ": " << line;
}
TEST(Plan, NamesTheLinesOfListAndLaunch) {
  for (const char* name : {"softmax", "cumsum", "exp", "sum", "layer_norm"})
    for (const Kernel& kernel : kernels_for(find_op(name), DeviceType::CPU))
      expect_in_file(text_of(kernel.where), std::string(name) == "exp" ? "map" : kernel.name);
  const Tensor x = ones({4, 64}), y = empty({4, 64});
  const Ref<Plan> plan = plan_for(find_op("cumsum"), {x}, {y}, DimAttrs{1});
  for (const Plan::Launch& l : plan->launches()) expect_in_file(text_of(l.where), "launch");
}

TEST(Plan, SaysWhatItRuns) {
  const Tensor x = ones({4, 64}), y = empty({4, 64});
  const Ref<Plan> plan = plan_for(find_op("softmax"), {x.transpose(0, 1)}, {y.transpose(0, 1)}, DimAttrs{0});
  const std::string text = plan->describe();
  EXPECT_NE(text.find("launch softmax"), std::string::npos) << text;
}

/// Kernels of the vendor's, and of a plan of several launches, with their grids; nothing of it is computed.
TEST(GpuPlan, SaysInWhichStepsItRuns) {
  if (!card().is_gpu()) GTEST_SKIP() << "no GPU";
  NoGrad guard;
  const Tensor a = full({512, 256}, 2.0, BFloat16, card()), b = full({256, 384}, 2.0, BFloat16, card()),
               y = full({512, 384}, 3.0, BFloat16, card());
  const Op& op = find_op("matmul");
  const Attrs attrs = default_attrs(op);
  const auto ins = operands_of(std::vector<Tensor>{a, b}), outs = operands_of(std::vector<Tensor>{y});
  for (const Kernel& kernel : kernels_for(op, card().type)) {
    const ForceKernel forced("matmul", kernel.name);
    const Call call{op, {ins.data(), ins.size()}, attrs, {outs.data(), outs.size()}};
    gpu::begin_call(card());
    if (supports(kernel, call) != Reason::Ok) continue;
    const std::string text = explain_plan(call);
    EXPECT_NE(text.find("   step   "), std::string::npos) << text;
    EXPECT_NE(text.find(" blocks of "), std::string::npos) << text;
    EXPECT_EQ(text.find(" 0 registers"), std::string::npos) << text;
    EXPECT_EQ(text.find(": a kernel"), std::string::npos) << text;
    if (std::string_view(kernel.name).starts_with("vendor")) {
      EXPECT_NE(text.find(", by cublasLt "), std::string::npos) << text;
    }
  }
  EXPECT_EQ(y.to(Float32).to(cpu()).to_vector<float>(), std::vector<float>(512 * 384, 3.0f));
}

}  // namespace
}  // namespace tessera
