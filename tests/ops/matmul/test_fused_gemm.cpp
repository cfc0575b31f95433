// Products whose epilogue is text: what the host asks of a card that is made up, and what the vendors' compilers make
// of it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>

#include "core/fake_runtime.h"
#include "io/temporary_folder.h"
#include "kernels/gpu/fused_program.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "ops/schema.h"
#include "tessera/fused_gemm.h"
#include "tile/arch/gpu/fused_gemm.h"

namespace tessera {
namespace {

using tile::Arch;
using tile::FusedGemmArgs;

/// The test's own cache folder.
class FusedGemmTest : public testing::Test {
 protected:
  FusedGemmTest() { setenv("TESSERA_CACHE_DIR", folder.c_str(), 1); }
  ~FusedGemmTest() override { unsetenv("TESSERA_CACHE_DIR"); }
  TemporaryFolder own;
  std::filesystem::path folder = own / "cache";
  Generator generator{17};
};

// ---- the host's side, on a made-up card of which "kernels" are this function of the host

double element(const FusedGemmArgs::Matrix& m, int i, int j) {
  return static_cast<const float*>(m.data)[i * m.row + j * m.column];
}
/// acc * d0 + d1 in f32
void product(void** arguments) {
  const auto& args = *static_cast<const FusedGemmArgs*>(arguments[0]);
  for (int i = 0; i < args.m; ++i)
    for (int j = 0; j < args.n; ++j) {
      double sum = 0;
      for (int k = 0; k < args.k; ++k) sum += element(args.a, i, k) * element(args.b, k, j);
      float* y = static_cast<float*>(const_cast<void*>(args.y.data)) + i * args.y.row + j * args.y.column;
      *y = static_cast<float>(sum * element(args.d[0], i, j) + element(args.d[1], i, j));
    }
}

class Source : public gpu::Compiler {
 public:
  std::string name() const override { return "made up"; }
  std::string compile(const std::string& source, const std::string&, const std::vector<std::string>&) override {
    last = source;
    if (source.find("nonsense") != source.npos) throw gpu::CompileError("epilogue(1): unknown nonsense", "");
    return "fused_gemm";
  }
  std::string last;
};

class FusedGemmHost : public FusedGemmTest {
 protected:
  FusedGemmHost() {
    gpu::install(DeviceType::HIP, new gpu::Plugin{0, &runtime, nullptr});
    gpu::install(DeviceType::HIP, &compiler);
  }
  ~FusedGemmHost() override {
    gpu::install(DeviceType::HIP, static_cast<gpu::Compiler*>(nullptr));
    gpu::install(DeviceType::HIP, static_cast<const gpu::Plugin*>(nullptr));
  }
  Tensor make(const Shape& shape, DType dtype = Float32) { return randn(shape, generator).to(dtype).to(hip()); }
  FakeRuntime& runtime = *new FakeRuntime;
  Source compiler;
};

TEST_F(FusedGemmHost, PassesWhereThingsLie) {
  runtime.kernel_body = [&](const gpu::Grid& grid, void** arguments) {
    EXPECT_EQ(grid.blocks, 4);  // of 64 x 64: the made-up card has 104 multiprocessors
    EXPECT_EQ(grid.threads, 256);
    EXPECT_EQ(grid.shared_bytes, 0u);
    product(arguments);
  };
  // The same views of the same numbers, here and there.
  const Tensor bases[] = {randn({29, 67}, generator), randn({29, 200}, generator), randn({65}, generator),
                          randn({67, 1}, generator)};
  const auto views = [&](Device device) {
    const auto base = [&](int i) { return bases[i].to(device); };
    return Tensors{base(0).transpose(0, 1), base(1).slice(1, 3, 196, 3), base(2), base(3)};
  };
  const Tensors there = views(hip()), here = views(cpu());
  Tensor y = fused_gemm(there[0], there[1], "acc * load(d0) + load(d1)", {there[2], there[3]});
  const auto wide = [&](int i) { return here[i].to(Float64); };
  EXPECT_LE(relative_error(y.to(cpu()), matmul(wide(0), wide(1)) * wide(2) + wide(3)), 1e-6);
  EXPECT_NE(compiler.last.find("d0 = result_matrix<const float, 0, 1, 1>"), std::string::npos) << compiler.last;
  EXPECT_NE(compiler.last.find("d1 = result_matrix<const float, 1, 0, 1>"), std::string::npos) << compiler.last;
}

TEST_F(FusedGemmHost, ChoosesWidthAndOrientation) {
  Tensor a = make({128, 64}, Float16), b = make({64, 72}, Float16);
  const auto has = [&](const char* text) { return compiler.last.find(text) != std::string::npos; };
  fused_gemm(a, b, "acc");
  EXPECT_TRUE(has("cdna::Gemm") && has("Choice<64, 64, 32, 4, 2>")) << compiler.last;
  EXPECT_TRUE(has("matrix<Element, 8, false>(args.a") && has("matrix<Element, 8, false>(args.b")) << compiler.last;
  fused_gemm(a, b, "acc", {}, GemmConfig{.tile_m = 128});  // the rest as this card takes it
  EXPECT_TRUE(has("Choice<128, 64, 32, 4, 2>")) << compiler.last;
  fused_gemm(b.transpose(0, 1), a.transpose(0, 1), "acc", {}, GemmConfig{128, 64, 32, 4, 2});
  EXPECT_TRUE(has("Choice<128, 64, 32, 4, 2>")) << compiler.last;
  EXPECT_TRUE(has("matrix<Element, 8, true>(args.a") && has("matrix<Element, 8, true>(args.b")) << compiler.last;
  fused_gemm(a.slice(1, 1, 64), b.slice(0, 1, 64), "acc");  // neither aligned nor whole
  EXPECT_TRUE(has("matrix<Element, 1, false>(args.a") && has("matrix<Element, 8, false>(args.b")) << compiler.last;
  for (const Shape& shape : {Shape{0, 64}, Shape{5, 64}, Shape{1, 64}}) {
    Tensor y = fused_gemm(make(shape, Float16), b, "acc");
    EXPECT_EQ(y.size(0), shape[0].value());
  }
  EXPECT_EQ(fused_gemm(make({3, 0}, Float16), make({0, 4}, Float16), "acc").numel(), 12);
}

TEST_F(FusedGemmHost, SaysWhatDoesNotFit) {
  Tensor a = make({8, 16}), b = make({16, 8}), half = make({8, 16}, Float16), d = make({8});
  const auto error = [&](auto&&... x) { return error_of([&] { fused_gemm(x...); }); };
  EXPECT_EQ(error(a, a, "acc"), "fused_gemm: inner dimensions differ: [8, 16] x [8, 16]");
  EXPECT_EQ(error(half, b, "acc"), "fused_gemm: operands differ in type: f16[8, 16] on hip:0 and f32[16, 8] on hip:0");
  EXPECT_EQ(error(d, b, "acc"), "fused_gemm: operands are matrices, not f32[8] on hip:0 and f32[16, 8] on hip:0");
  EXPECT_EQ(error(a, ones({16, 8}), "acc"),
            "fused_gemm: needs all tensors on one GPU: f32[8, 16] on hip:0 and f32[16, 8] on cpu");
  EXPECT_EQ(error(ones({8, 16}), ones({16, 8}), "acc"),
            "fused_gemm: needs all tensors on one GPU: f32[8, 16] on cpu and f32[8, 16] on cpu");
  EXPECT_EQ(error(a, b, "acc", Tensors{ones({8}).to(Int64).to(hip())}),
            "fused_gemm: takes f16, bf16 and f32, not i64[8] on hip:0");
  EXPECT_NE(error(a, b, "acc", Tensors{make({7})}).find("expand"), std::string::npos);
  EXPECT_EQ(error(a, b, "acc", Tensors(17, d)), "fused_gemm: takes at most 16 addends, not 17");
  const Tensor tall = make({1, 16}).expand({int64_t{1} << 31, 16});
  EXPECT_EQ(error(tall, b, "acc"), "fused_gemm: 2147483648 x 16 x 8 is too large: sizes are below 2^31");
  EXPECT_EQ(error(a, b, " "), "fused_gemm: the epilogue is empty");
  EXPECT_EQ(error(a, b, "acc\n#define x"), "fused_gemm: the epilogue must be one line");
  EXPECT_EQ(error(a, b, "nonsense"), "fused_gemm: epilogue nonsense: epilogue(1): unknown nonsense");
  EXPECT_EQ(error(a, b, "acc", Tensors{}, GemmConfig{128, 64, 16, 8, 2}).substr(0, 66),
            "fused_gemm: config 128x64x16, 8 warps, 2 stages: tile_m and tile_n");
  for (GemmConfig wrong : {GemmConfig{.stages = 4}, GemmConfig{1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30},
                           GemmConfig{-64, 64, 32, 4, 2}, GemmConfig{128, 128, 32, 4, 4}})
    EXPECT_EQ(error(half, half.transpose(0, 1), "acc", Tensors{}, wrong).substr(0, 19), "fused_gemm: config ");
  Tensor learning = make({8, 16}).set_requires_grad();
  EXPECT_EQ(error(learning, b, "acc"), "fused_gemm: has no gradient: call it under NoGrad, or with detached tensors");
  NoGrad guard;
  EXPECT_EQ(error(learning, b, "acc"), "no error");
}

// ---- the vendors' compilers; neither needs a card

struct Target {
  DeviceType type;
  Arch matrix_cores;
  const char* architecture;
};
constexpr Target targets[] = {{DeviceType::CUDA, Arch::sm80, "sm_90"}, {DeviceType::HIP, Arch::cdna, "gfx90a"}};

class FusedGemmCompiled : public FusedGemmTest, public testing::WithParamInterface<Target> {
 protected:
  void SetUp() override {
    try {
      gpu::vendor_compiler(GetParam().type);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  std::string compile(std::string_view epilogue, DType dtype = Float16, int width = 8, bool transposed = false) {
    const Target& target = GetParam();
    const bool nvidia = target.type == DeviceType::CUDA;
    FusedGemm gemm{};
    gemm.arch = dtype == Float32 ? Arch::simt : target.matrix_cores;
    gemm.config = dtype == Float32 ? tile::Config{64, 64, 16, 8, 2} : tile::Config{64, 64, 32, 4, nvidia ? 4 : 2};
    gemm.dtype = dtype;
    gemm.a = gemm.b = {transposed, width};
    gemm.addends = {{Float32, {0, 1}}, {BFloat16, {tile::any_stride, 1}}};
    gemm.lanes = dtype == Float32 || width == 1 ? 1 : 4;
    gemm.epilogue = epilogue;
    return gpu::machine_code(program_of(gemm), target.type, target.architecture);
  }
  int files() const {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder / "kernels"), {}));
  }
};

TEST_P(FusedGemmCompiled, EveryKindOfEpilogue) {
  int kinds = 0;
  for (const char* epilogue :
       {"relu(acc)", "gelu_tanh(acc + load(d0) + load(d1))", "silu(acc) * load(d1)", "gelu_erf(acc) - load(d0) / 3",
        "sigmoid(acc) + tanh(acc * 0.5) + exp(acc) + log(abs(acc) + 1)",
        "max(min(acc, load(d0)), -1.0f) * rsqrt(square(acc) + sqrt(load(d1)))",
        "apply([](auto x, auto y) { return select(x > y, x, y * y); }, acc, load(d0))  // of one's own"}) {
    EXPECT_GT(compile(epilogue).size(), 1000u) << epilogue;
    EXPECT_EQ(files(), ++kinds);
  }
  EXPECT_EQ(compile("relu(acc)"), compile("relu(acc)"));
  EXPECT_EQ(files(), kinds);
}

TEST_P(FusedGemmCompiled, EveryTypeAndOrientation) {
  const char* epilogue = "gelu_tanh(acc + load(d0) + load(d1))";
  EXPECT_GT(compile(epilogue, Float16, 1, true).size(), 1000u);
  EXPECT_GT(compile(epilogue, BFloat16, 8, true).size(), 1000u);
  EXPECT_GT(compile(epilogue, BFloat16, 1, false).size(), 1000u);
  EXPECT_GT(compile(epilogue, Float32).size(), 1000u);
  EXPECT_EQ(files(), 4);
}

TEST_P(FusedGemmCompiled, ErrorsAreALineOfTheExpression) {
  const auto error = [&](const char* epilogue) { return error_of([&] { compile(epilogue); }); };
  for (const char* wrong : {"gelu_tnah(acc)", "acc + load(d2)", "acc +", "acc; acc", "\"text\" + acc"}) {
    const std::string what = error(wrong);
    EXPECT_NE(what.find(": epilogue(1): "), std::string::npos) << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    EXPECT_LT(what.size(), 200u) << what;
  }
  EXPECT_NE(error("gelu_tnah(acc)").find("gelu_tnah"), std::string::npos);
}

// ---- Hopper's pipeline

class FusedGemmOnHopper : public FusedGemmTest {
 protected:
  using Way = HopperGemm::Way;
  void SetUp() override {
    try {
      gpu::vendor_compiler(DeviceType::CUDA);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  std::string compile(std::string_view epilogue, bool transposed = false, int once = 0) {
    HopperGemm gemm{};
    gemm.plan.rows = 128, gemm.plan.width = 192, gemm.plan.stages = 4, gemm.plan.boxes = 4;
    gemm.plan.ping_pong = true;
    if (once) gemm.plan.one_wave = true, gemm.plan.width = once;
    gemm.plan.transposed_a = transposed, gemm.plan.transposed_b = !transposed;
    gemm.plan.threads = 384;
    gemm.dtype = transposed ? BFloat16 : Float16;
    gemm.addends = {{Float16, Way::Boxed}, {Float32, Way::PerColumn}, {BFloat16, Way::Anywhere}};
    gemm.epilogue = epilogue;
    return gpu::machine_code(program_of(gemm), DeviceType::CUDA, "sm_90");
  }
};

TEST_F(FusedGemmOnHopper, EveryKindOfEpilogue) {
  for (const char* epilogue :
       {"gelu_tanh(acc + load(d0) + load(d1))", "silu(acc) * load(d2) + gelu_erf(acc) - load(d0) / 3 + relu(acc)",
        "sigmoid(acc) + tanh(acc * 0.5) + exp(acc) + log(abs(acc) + 1)  // one's own",
        "max(min(acc, load(d0)), -1.0f) * rsqrt(square(acc) + sqrt(load(d1)))"})
    for (int once : {0, 96}) EXPECT_GT(compile(epilogue, false, once).size(), 1000u) << epilogue;
  for (int once : {0, 64, 96, 128}) EXPECT_GT(compile("acc", true, once).size(), 1000u) << once;
}

/// What only the kernel for all cards compiles.
TEST_F(FusedGemmOnHopper, RefusesWhatIsNoFunctionOfElements) {
  EXPECT_THROW(compile("apply([](auto x) { return x; }, acc)"), gpu::CompileError);
  EXPECT_THROW(compile("nonsense(acc)"), gpu::CompileError);
}

// Not of products, but what fusions of elementwise maps are made of compiles at run time, too.
TEST_P(FusedGemmCompiled, ExpressionsOfMaps) {
  std::set<std::string> numbers;
  std::string body;
  for (const Op* op : elementwise_ops()) {
    body += fmt::format("  sum += static_cast<V>({});\n", scalar_expression(*op));
    const Attrs attrs = op->attrs();
    for (const AttrField& f : attrs.type().fields) numbers.insert(std::string(f.name));
  }
  for (const std::string& number : numbers) body = fmt::format("  const double {} = p[4];\n", number) + body;
  std::string source =
      "#include <tessera/tile/arch/gpu/block.h>\n#include <tessera/tile/kernels/functors.h>\n"
      "namespace tessera::tile::op {\n";
  for (const char* type : {"float", "double"})
    source += fmt::format(
        "extern \"C\" TESSERA_KERNEL(256) void all_{0}({0}* p) {{\n  using V = {0};\n  V& sum = "
        "p[thread_in_block()];\n  const V x = p[256], a = p[257], b = p[258], c = p[259];\n{1}}}\n",
        type, body);
  const Target& target = GetParam();
  EXPECT_GT(gpu::machine_code({source + "}\n", {"all_float", "all_double"}}, target.type, target.architecture).size(),
            1000u);
}

INSTANTIATE_TEST_SUITE_P(Vendors, FusedGemmCompiled, testing::ValuesIn(targets),
                         [](const auto& target) { return target.param.type == DeviceType::CUDA ? "nvrtc" : "hiprtc"; });

// ---- on a card

/// Passes on to the vendor's compiler, and counts.
class CountingCompiler : public gpu::Compiler {
 public:
  CountingCompiler() { gpu::install(DeviceType::CUDA, this); }
  ~CountingCompiler() override { gpu::install(DeviceType::CUDA, static_cast<gpu::Compiler*>(nullptr)); }
  std::string name() const override { return vendor_.name(); }
  std::string compile(const std::string& source, const std::string& architecture,
                      const std::vector<std::string>& options) override {
    ++count;
    return vendor_.compile(source, architecture, options);
  }
  std::atomic<int> count = 0;

 private:
  gpu::Compiler& vendor_ = gpu::vendor_compiler(DeviceType::CUDA);
};

/// What does not compile for Hopper's pipeline is tried there once.
TEST_F(FusedGemmTest, RefusedEpiloguesAreNotCompiledAgain) {
  if (const std::string why = why_unavailable(cuda()); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  const Tensor a = randn({256, 128}, generator).to(Float16).to(cuda());
  const Tensor b = randn({128, 256}, generator).to(Float16).to(cuda());
  std::optional<CountingCompiler> compiler;
  if (const std::string why = error_of([&] { compiler.emplace(); }); !compiler) GTEST_SKIP() << why;
  const std::string text = "apply([](auto x) { return x * x + x; }, acc)";
  fused_gemm(a, b, text);
  const int first = compiler->count;
  EXPECT_GE(first, 1);
  fused_gemm(a, b, text);
  EXPECT_EQ(compiler->count, first);
}

}  // namespace
}  // namespace tessera
