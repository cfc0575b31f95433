// Each rule on steps made by hand, with the time that is to be won known, and on their twins, in which nothing is.
#include "profiler/advice.h"

#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "profiler/summary.h"
#include "profiler/trace_maker.h"

namespace tessera::profiler {
namespace {

constexpr Roof kRoof{2e12, 50e12, 400e12, 800e12, 800e12, 50e12};
constexpr int kSteps = 4;

/// Steps of so many microseconds, each as `fill` makes it.
Trace advised_steps(double length, const std::function<void(TraceMaker&, double at)>& fill) {
  TraceMaker maker;
  maker.roof(0, kRoof);
  for (int i = 0; i < kSteps; ++i) {
    maker.step(i, i * length, (i + 1) * length);
    fill(maker, i * length);
  }
  return maker.made();
}

const Advice* advice_of(const std::vector<Advice>& all, const std::string& rule) {
  for (const Advice& one : all)
    if (one.rule == rule) return &one;
  return nullptr;
}

std::string rules_in(const std::vector<Advice>& all) {
  std::string out;
  for (const Advice& one : all) out += one.rule + ": " + one.what + "\n";
  return out;
}

/// Just this rule, with so many microseconds of a step to be won.
Advice expect_advice(const Trace& trace, const std::string& rule, double microseconds, double share) {
  const std::vector<Advice> all = advice(trace);
  const Advice* found = advice_of(all, rule);
  EXPECT_EQ(all.size(), 1u) << rules_in(all);
  EXPECT_NE(found, nullptr) << rules_in(all);
  if (!found) return {};
  EXPECT_NEAR(found->seconds * 1e6, microseconds, 1e-6 * microseconds) << found->what;
  EXPECT_NEAR(found->share, share, 1e-6) << found->what;
  return *found;
}
void expect_no_advice(const Trace& trace) {
  const std::vector<Advice> all = advice(trace);
  EXPECT_TRUE(all.empty()) << rules_in(all);
}
void expect_says(const Advice& one, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(one.what.find(part), one.what.npos) << part << " in: " << one.what;
}

Call good_product(const std::string& path = "h.0") {
  return call_of_op("matmul", {{1024, 1024}, {1024, 1024}}, "bf16", 100e-6 * 500e12, 6e6, path);
}

/// Ten products of 100 us in a row from `begin` on, launched one after the other from `launch` on.
void add_products(TraceMaker& maker, double launch, double begin, int count = 10) {
  const int32_t call = maker.call(good_product());
  for (int i = 0; i < count; ++i) maker.launched(call, "gemm", launch + i * 5, begin + i * 100, begin + (i + 1) * 100);
}

TEST(Advice, ATunedStepGetsNone) {
  expect_no_advice(advised_steps(1000, [](TraceMaker& maker, double at) { add_products(maker, at + 5, at + 100); }));
  expect_no_advice({});
  EXPECT_EQ(advice_text({}), "");
}

// ---- the loader

// The device is done when the step ends; the host is in the loader for 300 us then, and launches 10 us later.
Trace loading_steps(const std::string& name, int64_t thread, double begin) {
  return advised_steps(1310, [&](TraceMaker& maker, double at) {
    maker.add(Kind::Range, name, at, at + 300, thread);
    add_products(maker, at + 300, at + begin);
  });
}

TEST(AdviceOnLoader, NamesWhatTheDeviceWaitsFor) {
  const Advice one = expect_advice(loading_steps("data", TraceMaker::kThread, 310), "data loader", 300, 300.0 / 1310);
  EXPECT_EQ(one.op, "data");
  expect_says(one, {"300 us of a step", "\"data\""});
  for (const char* name : {"DataLoader.__next__", "load data", "next batch", "my_loader"})
    EXPECT_TRUE(advice_of(advice(loading_steps(name, TraceMaker::kThread, 310)), "data loader")) << name;
}

TEST(AdviceOnLoader, IsSilentWhereItRunsAhead) {
  for (const char* name : {"database", "metadata", "forward"})
    EXPECT_FALSE(advice_of(advice(loading_steps(name, TraceMaker::kThread, 310)), "data loader")) << name;
  EXPECT_FALSE(advice_of(advice(loading_steps("data", TraceMaker::kThread + 1, 310)), "data loader"));
  expect_no_advice(advised_steps(1000, [](TraceMaker& maker, double at) {  // the device works meanwhile
    maker.add(Kind::Range, "data", at + 60, at + 360);
    add_products(maker, at + 5, at + 500);
  }));
}

TEST(AdviceOnLoader, OfTheHostWinsAllThatItTakes) {
  const auto steps = [](int64_t thread) {
    return advised_steps(1000, [=](TraceMaker& maker, double at) {
      maker.add(Kind::Range, "data", at, at + 200, thread);
      maker.op(maker.call(good_product()), at + 200, at + 1000);
    });
  };
  expect_advice(steps(TraceMaker::kThread), "data loader", 200, 0.2);
  expect_no_advice(steps(TraceMaker::kThread + 1));
}

// ---- the host

// Twenty kernels of 20 us, each 50 us after the one before: launched just then, or all in time.
Trace sparse_steps(bool in_time) {
  return advised_steps(1000, [=](TraceMaker& maker, double at) {
    const int32_t call = maker.call(call_of_op("layer_norm", {}, "f32", 0, 0, "h.2"));
    for (int i = 0; i < 20; ++i) {
      const double begin = at + (in_time ? 510 : 10) + i * 50;
      if (!in_time && i > 0) maker.op(call, begin - 30, begin - 6);
      maker.launched(call, "norm", in_time ? at + 5 + i * 5 : begin - 5, begin, begin + 20);
    }
  });
}

TEST(AdviceOnHost, CountsGapsInWhichTheDeviceWaitsForLaunches) {
  const Advice one = expect_advice(sparse_steps(false), "host-bound", 20 * 29.5, 0.59);
  EXPECT_EQ(one.op, "layer_norm");
  EXPECT_EQ(one.path, "h.2");
  expect_says(one, {"20 gaps", "29.5 us on average", "graph"});
}

TEST(AdviceOnHost, LeavesOutWhatRecordingTook) {
  Trace trace = sparse_steps(false);  // of a millisecond, of which the device is busy for 400 us
  const std::string unknown = "Recording is part of it: no step was timed without.";
  expect_says(expect_advice(trace, "host-bound", 20 * 29.5, 0.59), {unknown});
  trace.plain_step = 700'000;
  const Advice known = expect_advice(trace, "host-bound", 20 * 29.5 / 2, 0.295);
  EXPECT_EQ(known.what.find(unknown), std::string::npos);
  trace.plain_step = 400'000;
  expect_no_advice(trace);
  trace.plain_step = 2'000'000;  // a first one
  expect_advice(trace, "host-bound", 20 * 29.5, 0.59);
}

TEST(AdviceOnHost, IsSilentWhereKernelsWereLaunchedInTime) { expect_no_advice(sparse_steps(true)); }

TEST(AdviceOnHost, IsSilentWhereTheProgramDoesSomethingElse) {
  expect_no_advice(advised_steps(1000, [](TraceMaker& maker, double at) {
    add_products(maker, at + 395, at + 400, 5);  // 500 us of which nothing is known
  }));
}

// ---- small kernels

// Some kernels of 5 us, 1 us apart, and products.
Trace steps_of_small(int count, const std::string& op, double each = 5) {
  return advised_steps(1000, [=](TraceMaker& maker, double at) {
    double begin = at + 200;
    for (int i = 0; i < count; ++i) {
      const int32_t call = maker.call(call_of_op(i % 2 ? op : "mul", {}, "f32", 0, 0, "h.3.mlp"));
      maker.launched(call, "map", at + 5 + i * 5, begin, begin + each);
      begin += each + 1;
    }
    maker.launched(maker.call(good_product()), "gemm", at + 190, begin, at + 1200);
  });
}

TEST(AdviceOnSmallKernels, WinsGapsAndFloorsBetweenThem) {
  const Advice one = expect_advice(steps_of_small(20, "add"), "small kernels", 19 * 3, 0.057);
  EXPECT_EQ(one.op, "mul");
  EXPECT_EQ(one.path, "h.3.mlp");
  expect_says(one, {"3 times", "20 kernels", "mul, add, mul, add, .."});
  expect_advice(steps_of_small(20, "add", 1.5), "small kernels", 19 * 2.5, 0.0475);  // no floor is more than it took
}

// A graph's kernels are spread by recording: its steps are shorter otherwise.
TEST(AdviceOnSmallKernels, LeavesOutWhatRecordingTook) {
  Trace trace = steps_of_small(20, "add");
  trace.plain_step = 750'000;
  expect_advice(trace, "small kernels", 19 * 3 * 0.75, 0.057 * 0.75);
  trace.plain_step = 2'000'000;  // a first one
  expect_advice(trace, "small kernels", 19 * 3, 0.057);
}

TEST(AdviceOnSmallKernels, IsSilentWhereRowsAreShortOrHoldProducts) {
  expect_no_advice(steps_of_small(4, "add"));
  expect_no_advice(steps_of_small(20, "matmul"));
  expect_no_advice(steps_of_small(20, "add", 11));
}

// What one operator starts is nobody's to fuse.
TEST(AdviceOnSmallKernels, IsSilentAboutKernelsOfOneCall) {
  expect_no_advice(advised_steps(1000, [](TraceMaker& maker, double at) {
    const int32_t owner = maker.op(maker.call(call_of_op("adam_")), at + 5, at + 20);
    for (int i = 0; i < 40; ++i) maker.kernel("adam", at + 100 + i * 6, at + 105 + i * 6, owner);
    maker.launched(maker.call(good_product()), "gemm", at + 30, at + 340, at + 1100);
  }));
}

TEST(AdviceOnSmallKernels, OnTheHostCountsDispatch) {
  const auto steps = [](double each) {
    return advised_steps(100, [=](TraceMaker& maker, double at) {
      for (int i = 0; i < 10; ++i)
        maker.op(maker.call(call_of_op("add")), at + i * (each + 1), at + i * (each + 1) + each);
      maker.op(maker.call(good_product()), at + 10 * (each + 1), at + 100);
    });
  };
  expect_advice(steps(2), "small kernels", 9 * (0.5 + 0.2), 0.063);  // half of a gap is the recorder's
  expect_no_advice(steps(6));
}

// ---- matrix cores

// A product of 100 us, and 100 us of products that are as they should be.
Trace steps_with_product(const Call& call, const std::string& kernel) {
  return advised_steps(200, [=](TraceMaker& maker, double at) {
    add_products(maker, at + 5, at + 50, 1);
    maker.launched(maker.call(call), kernel, at + 15, at + 150, at + 250);
  });
}

TEST(AdviceOnMatrixCores, F32IsSlow) {
  const double flops = 4e9;  // 10 us at the roof of tf32
  const Call slow = call_of_op("linear", {{512, 1024}, {4096, 1024}}, "f32", flops, 1e6, "h.1.mlp");
  const Advice one =
      expect_advice(steps_with_product(slow, "simt_gemm"), "matrix cores", 100 - 10 / 0.6, (100 - 10 / 0.6) / 200);
  EXPECT_EQ(one.op, "linear");
  EXPECT_EQ(one.path, "h.1.mlp");
  expect_says(one, {"linear of [512, 1024] x [4096, 1024]", "10 % of what tf32 allows", "f32", "1 call of a step"});
  expect_no_advice(steps_with_product(slow, "gemm_tf32_128x128"));
  Call quick = slow;
  quick.flops = 100e-6 * 400e12 * 0.31;
  expect_no_advice(steps_with_product(quick, "simt_gemm"));
  Call sum = slow;
  sum.op = "softmax";
  expect_no_advice(steps_with_product(sum, "softmax"));
}

TEST(AdviceOnMatrixCores, NamesTheDimThatIsOdd) {
  const double flops = 8e9;
  const Call odd = call_of_op("matmul", {{512, 1023}, {1023, 4096}, {}}, "bf16", flops, 1e6, "head");
  const Advice one =
      expect_advice(steps_with_product(odd, "gemm"), "matrix cores", 100 - 10 / 0.6, (100 - 10 / 0.6) / 200);
  expect_says(one, {"10 % of what bf16 allows", "dim 1 of input 0 is 1023", "no multiple of 8"});
  EXPECT_EQ(one.what.find("4096,"), one.what.npos);
  Call even = odd;
  even.dims = {{512, 1024}, {1024, 4096}, {}};
  expect_no_advice(steps_with_product(even, "gemm"));
  const Call vocabulary = call_of_op("linear", {{512, 768}, {50257, 768}}, "f16", flops, 1e6);
  expect_says(
      expect_advice(steps_with_product(vocabulary, "gemm"), "matrix cores", 100 - 10 / 0.6, (100 - 10 / 0.6) / 200),
      {"dim 0 of input 1 is 50257"});
  const Call channels = call_of_op("conv2d", {{8, 3, 224, 224}, {64, 3, 7, 7}}, "f16", flops, 1e6);
  expect_says(
      expect_advice(steps_with_product(channels, "conv"), "matrix cores", 100 - 10 / 0.6, (100 - 10 / 0.6) / 200),
      {": dim 1 of input 0 is 3, no multiple of 8"});
}

// Bytes alone take 50 us, so the type is not to blame.
TEST(AdviceOnMatrixCores, IsSilentWhereMemoryIsTheRoof) {
  expect_no_advice(steps_with_product(call_of_op("matmul", {{8, 8}, {8, 8}}, "f32", 1e6, 100e6), "simt_gemm"));
}

TEST(AdviceOnMatrixCores, IsSilentWithoutMeasuredRoofs) {
  Trace trace = steps_with_product(call_of_op("matmul", {{8, 8}, {8, 8}}, "f32", 4e9), "simt_gemm");
  trace.devices[0].roof = {};
  expect_no_advice(trace);
  trace.devices.clear();
  expect_no_advice(trace);
}

// ---- copies

Trace copying_steps(double casts, double copies) {
  return advised_steps(1000, [=](TraceMaker& maker, double at) {
    const Call cast = call_of_op("cast", {}, "f32", 0, 0, "h.5"), copy = call_of_op("copy_", {}, "f32", 0, 0, "h.6");
    maker.launched(maker.call(cast), "convert", at + 5, at + 100, at + 100 + casts);
    maker.launched(maker.call(copy), "copy", at + 10, at + 100 + casts, at + 100 + casts + copies);
    maker.launched(maker.call(good_product()), "gemm", at + 15, at + 100 + casts + copies, at + 1100);
  });
}

TEST(AdviceOnCopies, WinsAllOfThem) {
  const Advice one = expect_advice(copying_steps(60, 30), "layout copies", 90, 0.09);
  EXPECT_EQ(one.op, "cast");
  EXPECT_EQ(one.path, "h.5");
  expect_says(one, {"9 % of a step", "cast 60.0 us, copy_ 30.0 us"});
  expect_no_advice(copying_steps(25, 20));
}

TEST(AdviceOnCopies, CountsTheHostsAndTheLibrarys) {
  const auto host = [](double time) {
    return advised_steps(1000, [=](TraceMaker& maker, double at) {
      maker.op(maker.call(call_of_op("clone")), at, at + time);
      maker.op(maker.call(good_product()), at + time, at + 1000);
    });
  };
  expect_advice(host(100), "layout copies", 100, 0.1);
  expect_no_advice(host(40));
  const auto library = [](const char* name) {
    return advised_steps(1000, [=](TraceMaker& maker, double at) {
      add_products(maker, at + 5, at + 100, 9);
      maker.on_device(Kind::Copy, name, at + 1000, at + 1100);
    });
  };
  expect_advice(library("Memcpy DtoD (Device -> Device)"), "layout copies", 100, 0.1);
  expect_no_advice(library("Memcpy HtoD (Pinned -> Device)"));
}

// A convolution whose library brings images into another layout first: 80 of its 200 us.
TEST(AdviceOnCopies, CountsThoseWithinOperators) {
  const auto steps = [](const char* name) {
    return advised_steps(1000, [=](TraceMaker& maker, double at) {
      add_products(maker, at + 5, at + 100, 8);
      const int32_t call = maker.call(call_of_op("conv2d", {{8, 64, 56, 56}, {64, 64, 3, 3}}, "bf16", 1e9, 0, "conv1"));
      const int32_t owner = maker.op(call, at + 60, at + 70);
      maker.kernel(name, at + 900, at + 980, owner);
      maker.kernel("conv", at + 980, at + 1100, owner);
    });
  };
  const Advice one = expect_advice(steps("void lib::nchwToNhwcKernel<float>(int)"), "layout copies", 80, 0.08);
  EXPECT_EQ(one.op, "conv2d");
  EXPECT_EQ(one.path, "conv1");
  expect_says(one, {"nchwToNhwcKernel<float> 80.0 us"});
  expect_no_advice(steps("prepare"));
}

/// Norms and pools of planes may gain where images need not be copied: at most what they take longer than their bytes.
TEST(AdviceOnCopies, SaysWhatNormsOfPlanesMayGain) {
  const std::vector<std::vector<int64_t>> planes = {{64 * 56 * 56, 56 * 56, 56, 1}},
                                          last = {{64 * 56 * 56, 1, 56 * 64, 64}};
  const auto steps = [](const char* kernel, const char* norm, const std::vector<std::vector<int64_t>>& strides) {
    return advised_steps(1000, [=](TraceMaker& maker, double at) {
      add_products(maker, at + 5, at + 100, 8);
      const int32_t conv = maker.call(call_of_op("conv2d", {{8, 64, 56, 56}, {64, 64, 3, 3}}, "bf16", 1e9));
      maker.kernel(kernel, at + 900, at + 980, maker.op(conv, at + 60, at + 70));
      Call call = call_of_op(norm, {{8, 64, 56, 56}}, "bf16", 1e6, 100e6);  // 50 us at this roof
      call.strides = strides;
      maker.kernel("norm", at + 980, at + 1070, maker.op(maker.call(call), at + 70, at + 80));
    });
  };
  for (const char* norm : {"batch_norm", "batch_norm_backward", "max_pool2d"}) {
    const Advice one = expect_advice(steps("nchwToNhwcKernel", norm, planes), "layout copies", 80, 0.08);
    EXPECT_NEAR(one.at_most, 120e-6, 1e-10);
    expect_says(one, {"planes take 40.0 us longer"});
    const std::string text = advice_text({one});
    EXPECT_NE(text.find("layout copies: 80.0 us to 120 us of a step (8 to 12 %)"), std::string::npos) << text;
  }
  EXPECT_EQ(expect_advice(steps("nchwToNhwcKernel", "batch_norm", last), "layout copies", 80, 0.08).at_most, 0);
  EXPECT_EQ(expect_advice(steps("nchwToNhwcKernel", "layer_norm", planes), "layout copies", 80, 0.08).at_most, 0);
  EXPECT_EQ(expect_advice(steps("nchwToNhwcKernel", "batch_norm", {}), "layout copies", 80, 0.08).at_most, 0);
  expect_no_advice(steps("conv", "batch_norm", planes));  // nothing is copied
}

// ---- synchronisation

// Products end 900 us after they began; the host waits for them until then, and has the next ones 100 us later.
Trace waiting_steps(const std::string& call, double next) {
  return advised_steps(900 + next, [=](TraceMaker& maker, double at) {
    add_products(maker, at + 5, at + 10, 9);
    Call read = call_of_op("to_device", {}, "f32", 0, 0, "loss");
    read.source = "train()";
    const int32_t owner = maker.op(maker.call(read), at + 100, at + 912);
    const int32_t runtime = maker.add(Kind::Runtime, call, at + 101, at + 911);
    maker.trace.spans[static_cast<size_t>(runtime)].owner = owner;
  });
}

TEST(AdviceOnSynchronisation, NamesWhoWaits) {
  for (const char* name : {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy"}) {
    const Advice one = expect_advice(waiting_steps(name, 100), "synchronisation", 100, 0.1);
    EXPECT_EQ(one.op, "to_device");
    EXPECT_EQ(one.path, "loss");
    EXPECT_EQ(one.source, "train()");
    expect_says(one, {name, " in to_device", "3 times"});
  }
}

TEST(AdviceOnSynchronisation, IsSilentWhereTheDeviceGoesOn) {
  expect_no_advice(waiting_steps("cudaStreamSynchronize", 12));
  EXPECT_FALSE(advice_of(advice(waiting_steps("cudaMemcpyAsync", 100)), "synchronisation"));
  expect_no_advice(advised_steps(1000, [](TraceMaker& maker, double at) {  // it has other work queued
    maker.add(Kind::Runtime, "cudaEventSynchronize", at + 60, at + 500);
    add_products(maker, at + 5, at + 600);
  }));
}

TEST(AdviceOnSynchronisation, SeesItemWithoutTheLibrarysCalls) {
  const Trace trace = advised_steps(1000, [](TraceMaker& maker, double at) {
    add_products(maker, at + 5, at + 10, 9);
    maker.op(maker.call(call_of_op("item")), at + 100, at + 911);
  });
  const Advice one = expect_advice(trace, "synchronisation", 100, 0.1);
  EXPECT_EQ(one.op, "item");
}

/// A copy to pageable memory waits though its call is cudaMemcpyAsync; one to pinned memory does not.
TEST(AdviceOnSynchronisation, KnowsCopiesThatWait) {
  const auto with_copy = [](const char* copy) {
    return advised_steps(1000, [&](TraceMaker& maker, double at) {
      add_products(maker, at + 5, at + 10, 9);
      const int32_t runtime = maker.add(Kind::Runtime, "cudaMemcpyAsync", at + 101, at + 915);
      const int32_t on_device = maker.on_device(Kind::Copy, copy, at + 912, at + 914);
      for (const int32_t span : {runtime, on_device})
        maker.trace.spans[static_cast<size_t>(span)].correlation = 77777 + static_cast<uint32_t>(at);
    });
  };
  expect_advice(with_copy("Memcpy DtoH (Device -> Pageable)"), "synchronisation", 96, 0.096);  // 914 to 1010
  EXPECT_FALSE(advice_of(advice(with_copy("Memcpy DtoH (Device -> Pinned)")), "synchronisation"));
}

// ---- imbalance

Trace unequal_ranks(double late) {
  std::vector<Trace> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(advised_steps(1000, [&](TraceMaker& maker, double at) {
      maker.trace.rank = rank;
      maker.trace.ranks = 4;
      const double more = rank == 2 ? late : 0;
      maker.launched(maker.call(good_product()), "gemm", at + 5, at + 100, at + 600 + more);
      maker.launched(maker.call(call_of_op("all_reduce")), "ncclDevKernel_AllReduce", at + 10, at + 600 + more,
                     at + 1100);
    }));
  }
  return merge(ranks);
}

TEST(AdviceOnImbalance, WinsTheMeanWait) {
  const Advice one = expect_advice(unequal_ranks(400), "imbalance", 300, 0.3);  // three ranks wait, one does not
  expect_says(one, {"rank 2 comes last to 4 of 4 collectives", "300 us"});
  EXPECT_EQ(one.op, "ncclDevKernel_AllReduce");
  expect_no_advice(unequal_ranks(10));
}

// ---- all of it

TEST(Advice, ComesByTimeToBeWonAndFits) {
  const Trace trace = advised_steps(1310, [](TraceMaker& maker, double at) {
    maker.add(Kind::Range, "data", at, at + 300);
    const Call slow = call_of_op("linear", {{512, 1024}, {4096, 1024}}, "f32", 4e9, 1e6, "h.1.mlp");
    const int32_t call = maker.call(slow);
    for (int i = 0; i < 10; ++i)
      maker.launched(call, "simt_gemm", at + 300 + i * 5, at + 310 + i * 100, at + 410 + i * 100);
  });
  const std::vector<Advice> all = advice(trace);
  ASSERT_EQ(all.size(), 2u) << rules_in(all);
  EXPECT_EQ(all[0].rule, "matrix cores");
  EXPECT_EQ(all[1].rule, "data loader");
  EXPECT_GE(all[0].seconds, all[1].seconds);
  const std::string text = advice_text(all);
  EXPECT_EQ(text.rfind("matrix cores: 833 us of a step (64 %)\n", 0), 0u) << text;
  EXPECT_NE(text.find("at: operator linear, module h.1.mlp"), text.npos) << text;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) EXPECT_LE(line.size(), 120u) << line;
}

}  // namespace
}  // namespace tessera::profiler
