// cuDNN's plans for a card that need not be there: which problems it takes under the rules for precision and
// determinism. Skipped where the library is not installed.
#include <gtest/gtest.h>

#include "kernels/gpu/device/vendor/cudnn_attention.h"
#include "kernels/gpu/device/vendor/cudnn_conv.h"

namespace tessera::gpu_kernels {
namespace {

/// An H100, as cuDNN 9.11 and newer describe one.
constexpr std::string_view h100 = R"({
  "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
  "multiProcessorCount": 132, "warpSize": 32, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
  "l2CacheSize": 52428800, "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
  "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
  "maxThreadsPerSM": 2048, "totalGlobalMem": 84900000000, "deviceVer": 900, "driverVer": 13000, "pciDeviceId": 9008,
  "isTccDriver": 0, "supportCoopLaunch": 1, "cudaDeviceId": 0, "deviceName": "NVIDIA H100 80GB HBM3"})";

class Cudnn : public testing::Test {
 protected:
  void SetUp() override {
    if (!cudnn::library().complete) GTEST_SKIP() << "libcudnn.so.9 is not installed";
    try {
      properties.emplace(cudnn::Kind::device_properties);
      properties->set(cudnn::Attribute::device_json, std::span<const char>(h100)).finish();
    } catch (const cudnn::Refusal& refusal) {
      GTEST_SKIP() << "this cuDNN cannot plan for a card that is not there: status " << refusal.status;
    }
    target.properties = &*properties;
  }

  std::optional<cudnn::Object> properties;
  cudnn::Target target;
};

struct Problem {
  long long images, channels, size, filters, filter, stride = 1, padding = 0, groups = 1;
};

ConvArgs args_of(const Problem& p, Scalar type, bool channels_last) {
  ConvArgs args{};
  args.type = type;
  args.images = p.images;
  args.channels = p.channels;
  args.filters = p.filters;
  args.groups = p.groups;
  const long long out = (p.size + 2 * p.padding - p.filter) / p.stride + 1;
  for (int d = 0; d < 2; ++d) {
    args.size[d] = p.size;
    args.filter[d] = p.filter;
    args.stride[d] = p.stride;
    args.dilation[d] = 1;
    args.padding[d] = p.padding;
  }
  const auto tensor = [&](long long c, long long size) {
    void* somewhere = reinterpret_cast<void*>(4096);
    return channels_last ? ConvTensor{somewhere, {c * size * size, 1, size * c, c}}
                         : ConvTensor{somewhere, {c * size * size, size * size, size, 1}};
  };
  args.x = tensor(p.channels, p.size);
  args.w = tensor(p.channels / p.groups, p.filter);
  args.y = tensor(p.filters, out);
  return args;
}

constexpr Problem problems[] = {
    {8, 64, 56, 64, 3, 1, 1}, {32, 3, 224, 64, 7, 2, 3},     {32, 256, 14, 512, 1, 2, 0}, {4, 130, 14, 132, 1, 1, 0},
    {2, 37, 19, 70, 3, 1, 1}, {16, 64, 28, 64, 3, 1, 1, 64}, {1, 8, 9, 8, 3, 1, 1, 2},    {1, 1, 1, 1, 1}};
constexpr ConvPart parts[] = {ConvPart::forward, ConvPart::images, ConvPart::filters};

TEST_F(Cudnn, PlansConvolutionsAndTheirGradients) {
  for (Scalar type : {Scalar::f16, Scalar::bf16, Scalar::f32})
    for (ConvPart part : parts)
      for (bool channels_last : {false, true})
        for (const Problem& p : problems)
          EXPECT_TRUE(cudnn::plan_convolution(target, part, args_of(p, type, channels_last), int64_t(256) << 20))
              << static_cast<int>(type) << " part " << static_cast<int>(part) << ' ' << p.channels << " to "
              << p.filters;
}

TEST_F(Cudnn, RefusesWhatItCannotCount) {
  for (ConvPart part : parts) {
    const auto plan = [&](const Problem& p) {
      return cudnn::plan_convolution(target, part, args_of(p, Scalar::f16, false), int64_t(256) << 20);
    };
    EXPECT_FALSE(plan({0, 8, 8, 8, 3}));
    EXPECT_FALSE(plan({1 << 15, 64, 64, 8, 3}));  // 2^33 elements
    EXPECT_FALSE(plan({1, 1, 1, 1, 1, 1, 1LL << 31}));
  }
}

TEST_F(Cudnn, KeepsWithinTheWorkspace) {
  const ConvArgs args = args_of({8, 64, 56, 64, 3, 1, 1}, Scalar::f16, false);
  for (int64_t most : {int64_t(0), int64_t(1) << 20, int64_t(1) << 30}) {
    const auto plan = cudnn::plan_convolution(target, ConvPart::forward, args, most);
    EXPECT_TRUE(!plan || plan->workspace <= most);
  }
}

// Heads of [batch, rows, heads, width], as a projection gives them.
HeadsArg rows_of_heads(long long heads, long long rows, long long width) {
  return {reinterpret_cast<void*>(4096), {rows * heads * width, width, heads * width, 1}};
}

AttentionArgs attention_of(const AttentionShape& s) {
  return {s,
          rows_of_heads(s.heads, s.queries, s.value_width),
          rows_of_heads(s.heads, s.queries, s.width),
          rows_of_heads(s.kv_heads, s.keys, s.width),
          rows_of_heads(s.kv_heads, s.keys, s.value_width),
          nullptr};
}

AttentionBackwardArgs backward_of(const AttentionShape& s) {
  const AttentionArgs a = attention_of(s);
  return {s, a.q, a.k, a.v, a.y, a.q, a.k, a.v, a.y, nullptr, nullptr};
}

// [batch, heads, queries or keys, width] of queries and keys; compiling a plan takes half a second.
struct AttentionUse {
  Scalar type;
  long long heads, kv_heads, queries, keys, width;
  bool causal;
};
constexpr AttentionUse attention_uses[] = {
    {Scalar::bf16, 12, 12, 1024, 1024, 64, true}, {Scalar::f16, 8, 8, 4096, 4096, 128, true},
    {Scalar::f16, 4, 2, 257, 128, 96, false},     {Scalar::bf16, 4, 1, 5, 300, 32, true},
    {Scalar::bf16, 4, 2, 257, 257, 72, true},     {Scalar::f16, 3, 3, 1, 1, 128, false}};

AttentionShape shape_of(const AttentionUse& use) {
  AttentionShape s{};
  s.type = use.type;
  s.batch = 2;
  s.heads = use.heads;
  s.kv_heads = use.kv_heads;
  s.queries = use.queries;
  s.keys = use.keys;
  s.width = s.value_width = use.width;
  s.causal = use.causal;
  return s;
}

class CudnnAttention : public Cudnn {
 protected:
  void SetUp() override {
    Cudnn::SetUp();
    if (!IsSkipped() && !dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))
      GTEST_SKIP() << "cuDNN compiles attention by the driver's library, which is not installed";
  }
};

TEST_F(CudnnAttention, PlansBothDirections) {
  float lse = 0;
  for (const AttentionUse& use : attention_uses) {
    const AttentionShape s = shape_of(use);
    const std::string what = std::to_string(use.keys) + " keys, width " + std::to_string(use.width);
    AttentionArgs args = attention_of(s);
    EXPECT_TRUE(cudnn::plan_attention(target, args, int64_t(1) << 30)) << what;
    args.lse = &lse;
    EXPECT_TRUE(cudnn::plan_attention(target, args, int64_t(1) << 30)) << what << ", with log-sum-exp";
    const auto backward = cudnn::plan_attention_backward(target, backward_of(s), int64_t(1) << 30);
    EXPECT_TRUE(backward) << what;
    if (use.queries < 512) continue;  // asked for with long rows alone
    AttentionBackwardArgs unordered = backward_of(s);
    unordered.in_any_order = true;
    EXPECT_TRUE(cudnn::plan_attention_backward(target, unordered, int64_t(1) << 30)) << what << ", in any order";
  }
}

TEST_F(CudnnAttention, RefusesWhatItCannotCount) {
  AttentionShape s = shape_of(attention_uses[0]);
  s.keys = 0;
  EXPECT_FALSE(cudnn::plan_attention(target, attention_of(s), int64_t(1) << 30));
  s.keys = 1 << 25;
  EXPECT_FALSE(cudnn::plan_attention_backward(target, backward_of(s), int64_t(1) << 30));
}

TEST(CudnnOutcome, TriesAgainWhatMayPass) {
  cudnn::Outcome outcome;
  int tries = 0;
  const auto fail_with = [&](int status) {
    return [&tries, status]() -> std::optional<cudnn::Plan> {
      ++tries;
      throw cudnn::Refusal{status};
    };
  };
  for (int call = 1; call <= 100; ++call) outcome.settle(fail_with(4003));    // memory of the host is short
  EXPECT_EQ(tries, 7);                                                        // 1, 2, 4, ... 64
  for (int call = 101; call <= 200; ++call) outcome.settle(fail_with(3000));  // not supported
  EXPECT_EQ(tries, 8);
  for (int call = 201; call <= 2000; ++call) outcome.settle(fail_with(3000));
  EXPECT_EQ(tries, 8);
  EXPECT_FALSE(outcome.plan());
}

TEST(Recent, ForgetsTheOldestButNotWhatIsKept) {
  struct Value {
    int number = 0;
    bool kept = false;
  };
  Recent<Value> recent(3);
  int made = 0;
  const auto at = [&](int key) -> Value& {
    return recent.at(bytes_of(key), [&](Value& value) { value.number = 100 * key + made++; });
  };
  for (int key : {1, 2, 3, 1, 4}) at(key);  // 2 is forgotten
  EXPECT_EQ(made, 4);
  EXPECT_EQ(at(1).number, 100);
  EXPECT_EQ(at(2).number, 204);  // and 3
  at(4).kept = at(2).kept = at(1).kept = true;
  for (int key : {5, 6, 7, 4, 2, 1}) at(key);
  EXPECT_EQ(made, 8);
  EXPECT_THROW(recent.at("new", [](Value&) { throw 1; }), int);
  EXPECT_EQ(at(1).number, 100);
  for (int key : {4, 2, 1}) at(key).kept = false;
  made = 0;
  for (int key : {8, 9, 10, 1, 2, 4}) at(key);  // what was kept is forgotten now, too
  EXPECT_EQ(made, 6);
}

}  // namespace
}  // namespace tessera::gpu_kernels
