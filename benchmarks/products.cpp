// Matrix products and convolutions beside OpenBLAS and oneDNN, call by call in turns: medians and the ratio of each
// peer's time to ours. Usage: bench_products [threads...] [filter]; TESSERA_ISA picks the instruction set for us
// and, for avx2, for the peers.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/util/median.h"
#include "kernels/cpu/isa_select.h"
#include "tessera/parallel.h"
#if __has_include(<dnnl.hpp>) && defined(TESSERA_HAS_DNNL)
#include <dnnl.hpp>
#define WITH_DNNL 1
#else
#define WITH_DNNL 0
#endif

namespace {

using namespace tessera::cpu_kernels;
using Work = std::function<void()>;
struct Contender {
  std::string name;
  Work work;
};

double seconds(const Work& work, int times) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / times;
}

/// Median time of each contender, measured in turns.
std::vector<double> in_turns(const std::vector<Contender>& contenders, double budget) {
  std::vector<std::vector<double>> times(contenders.size());
  std::vector<int> repeats;
  for (const auto& c : contenders) {
    seconds(c.work, 1);
    repeats.push_back(std::clamp(static_cast<int>(5e-4 / seconds(c.work, 1)), 1, 200));
  }
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  while (times[0].size() < 7 || elapsed() < budget) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      seconds(contenders[i].work, 1);  // wakes its threads and caches
      times[i].push_back(seconds(contenders[i].work, repeats[i]));
    }
  }
  std::vector<double> medians;
  for (const auto& t : times) medians.push_back(tessera::median(t));
  return medians;
}

void report(const std::string& name, double flop, const std::vector<Contender>& contenders) {
  const auto times = in_turns(contenders, 0.15);
  fmt::print("{:34}", name);
  for (size_t i = 0; i < times.size(); ++i) {
    fmt::print("  {} {:8.3f} ms {:6.1f} GFLOP/s", contenders[i].name, times[i] * 1e3, flop / times[i] * 1e-9);
    if (i > 0) fmt::print(" ({:.2f})", times[i] / times[0]);
  }
  fmt::print("\n");
  std::fflush(stdout);
}

template <class F>
F* symbol(std::initializer_list<const char*> libraries, const char* name) {
  for (const char* file : libraries) {
    if (void* library = dlopen(file, RTLD_NOW | RTLD_GLOBAL)) return reinterpret_cast<F*>(dlsym(library, name));
  }
  return nullptr;
}

using Cblas = void(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
using Dnnl = int(char, char, long, long, long, float, const float*, long, const float*, long, float, float*, long);

std::vector<float> fresh(long long n) {
  static std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> x(n);
  for (float& v : x) v = uniform(random);
  return x;
}

void products(const std::string& filter) {
  static Cblas* cblas = symbol<Cblas>({"libopenblas.so.0"}, "cblas_sgemm");
  static Dnnl* dnnl = symbol<Dnnl>({"libdnnl.so.3", "libdnnl.so.2"}, "dnnl_sgemm");
  struct Case {
    int m, n, k;
    const char* form;  // N or T for a and b, then + for an epilogue
  };
  const Case cases[] = {
      {1024, 1024, 1024, "NN"}, {768, 3072, 768, "NN"},  {768, 3072, 768, "NN+"}, {1, 1024, 1024, "NN"},
      {7, 1024, 1024, "NN"},    {64, 1024, 1024, "NN"},  {100, 1024, 1024, "NN"}, {1024, 1, 1024, "NN"},
      {1024, 7, 1024, "NN"},    {1024, 64, 1024, "NN"},  {1024, 100, 1024, "NN"}, {1, 1024, 1024, "NT"},
      {7, 1024, 1024, "NT"},    {1024, 7, 1024, "TN"},   {768, 128, 128, "NT"},   {768, 384, 128, "NT"},
      {768, 512, 128, "NT"},    {768, 512, 128, "NT+"},  {768, 128, 512, "NT"},   {768, 128, 512, "NN"},
      {512, 128, 768, "TN"},    {128, 128, 768, "TN"},   {1024, 384, 1536, "NT"}, {1024, 1152, 384, "NT"},
      {1024, 1536, 384, "NT"},  {1536, 384, 1024, "TN"}, {64, 64, 64, "NN"},      {256, 256, 64, "NT"}};
  for (const Case& c : cases) {
    const std::string name = fmt::format("{}x{}x{} {} t{}", c.m, c.n, c.k, c.form, tessera::num_threads());
    if (name.find(filter) == std::string::npos) continue;
    const bool ta = c.form[0] == 'T', tb = c.form[1] == 'T', epilogue = c.form[2] == '+';
    auto a = fresh(1LL * c.m * c.k), b = fresh(1LL * c.k * c.n), d = fresh(1LL * c.m * c.n), bias = fresh(c.n);
    std::vector<float> out(1LL * c.m * c.n);
    GemmArgs args{};
    args.m = c.m, args.n = c.n, args.k = c.k;
    args.alpha = args.beta = 1;
    args.a = {a.data(), Scalar::f32, ta ? 1 : c.k, ta ? c.m : 1, {}};
    args.b = {b.data(), Scalar::f32, tb ? 1 : c.n, tb ? c.k : 1, {}};
    args.c = {out.data(), Scalar::f32, c.n, 1, {}};
    GemmArgs full = args;
    full.addend = {d.data(), Scalar::f32, c.n, 1, {}};
    full.bias = {bias.data(), Scalar::f32, 0, 1, {}};
    full.activation = Activation::gelu_tanh;
    std::vector<Contender> contenders{{"ours", [&] { gemm_table().run(epilogue ? full : args, tessera::executor()); }}};
    if (epilogue) contenders.push_back({"plain", [&] { gemm_table().run(args, tessera::executor()); }});
    if (cblas && !epilogue) {
      contenders.push_back({"openblas", [&] {
                              cblas(101, ta ? 112 : 111, tb ? 112 : 111, c.m, c.n, c.k, 1, a.data(), ta ? c.m : c.k,
                                    b.data(), tb ? c.k : c.n, 0, out.data(), c.n);
                            }});
    }
    if (dnnl && !epilogue) {
      contenders.push_back({"onednn", [&] {
                              dnnl(c.form[0], c.form[1], c.m, c.n, c.k, 1, a.data(), ta ? c.m : c.k, b.data(),
                                   tb ? c.k : c.n, 0, out.data(), c.n);
                            }});
    }
    report(name, 2.0 * c.m * c.n * c.k, contenders);
  }
}

struct ConvCase {
  int images, channels, filters, size, filter, stride, padding;
};

#if WITH_DNNL
/// oneDNN's forward convolution in the layout and by the algorithm it likes best.
Work onednn_conv(const ConvCase& c, int out) {
  using namespace dnnl;
  static engine cpu(engine::kind::cpu, 0);
  static stream queue(cpu);
  const auto any = memory::format_tag::any;
  const auto f32 = memory::data_type::f32;
  const convolution_forward::desc desc(
      prop_kind::forward_inference, algorithm::convolution_auto, {{c.images, c.channels, c.size, c.size}, f32, any},
      {{c.filters, c.channels, c.filter, c.filter}, f32, any}, {{c.filters}, f32, memory::format_tag::a},
      {{c.images, c.filters, out, out}, f32, any}, {c.stride, c.stride}, {c.padding, c.padding},
      {c.padding, c.padding});
  const convolution_forward::primitive_desc pd(desc, cpu);
  const convolution_forward primitive(pd);
  const memory x(pd.src_desc(), cpu), w(pd.weights_desc(), cpu), b(pd.bias_desc(), cpu), y(pd.dst_desc(), cpu);
  for (const memory& m : {x, w, b}) std::memset(m.get_data_handle(), 0, m.get_desc().get_size());
  return [=] {
    primitive.execute(queue, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_BIAS, b}, {DNNL_ARG_DST, y}});
    queue.wait();
  };
}
#endif

void convolutions(const std::string& filter) {
  const ConvCase cases[] = {{8, 64, 64, 56, 3, 1, 1},  {8, 128, 128, 28, 3, 1, 1}, {8, 256, 256, 14, 3, 1, 1},
                            {8, 64, 128, 56, 3, 2, 1}, {8, 64, 256, 56, 1, 1, 0},  {4, 3, 64, 224, 7, 2, 3},
                            {100, 16, 16, 32, 3, 1, 1}};
  for (const ConvCase& c : cases) {
    const int out = (c.size + 2 * c.padding - c.filter) / c.stride + 1;
    const std::string name = fmt::format("conv {}x{}->{} {}x{} {}x{}/{} t{}", c.images, c.channels, c.filters, c.size,
                                         c.size, c.filter, c.filter, c.stride, tessera::num_threads());
    if (name.find(filter) == std::string::npos) continue;
    const long long in_plane = 1LL * c.size * c.size, taps = 1LL * c.filter * c.filter, out_plane = 1LL * out * out;
    auto x = fresh(c.images * c.channels * in_plane), w = fresh(c.filters * c.channels * taps);
    auto y = fresh(c.images * c.filters * out_plane), bias = fresh(c.filters);
    ConvArgs args{};
    args.type = Scalar::f32;
    args.images = c.images, args.channels = c.channels, args.filters = c.filters, args.groups = 1;
    for (int d = 0; d < 2; ++d) {
      args.size[d] = c.size, args.filter[d] = c.filter, args.stride[d] = c.stride;
      args.dilation[d] = 1, args.padding[d] = c.padding;
    }
    args.x = {x.data(), {c.channels * in_plane, in_plane, c.size, 1}};
    args.w = {w.data(), {c.channels * taps, taps, c.filter, 1}};
    args.y = {y.data(), {c.filters * out_plane, out_plane, out, 1}};
    args.bias = bias.data();
    const ConvTable& table = conv_table();
    std::vector<char> workspace(std::max({table.forward_workspace(args), table.backward_images_workspace(args),
                                          table.backward_filters_workspace(args), table.winograd_workspace(args)}));
    args.workspace = workspace.data();
    std::vector<Contender> contenders;
    const bool winograd = c.filter == 3 && c.stride == 1;
    if (winograd) contenders.push_back({"winograd", [&] { table.winograd_forward(args, tessera::executor()); }});
    contenders.push_back({"forward", [&] { table.forward(args, tessera::executor()); }});
#if WITH_DNNL
    contenders.push_back({"onednn", onednn_conv(c, out)});
#endif
    if (winograd) {
      contenders.push_back({"winograd d(images)", [&] { table.winograd_backward_images(args, tessera::executor()); }});
    }
    contenders.push_back({"d(images)", [&] { table.backward_images(args, tessera::executor()); }});
    contenders.push_back({"d(filters)", [&] { table.backward_filters(args, tessera::executor()); }});
    report(name, 2.0 * c.images * c.filters * c.channels * taps * out_plane, contenders);
  }
}

void set_peer_threads(int threads) {
  if (auto* set = symbol<void(int)>({"libopenblas.so.0"}, "openblas_set_num_threads")) set(threads);
  if (auto* set = symbol<void(int)>({"libgomp.so.1"}, "omp_set_num_threads")) set(threads);
}

}  // namespace

int main(int argc, char** argv) {
  setenv("OMP_WAIT_POLICY", "passive", 0);  // idle peers must not spin on our cores
  setenv("OPENBLAS_THREAD_TIMEOUT", "4", 0);
  if (isa() != Isa::Avx512) {
    setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 0);
    setenv("OPENBLAS_CORETYPE", "Zen", 0);
  }
  std::string filter;
  std::vector<int> threads;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    word.size() < 4 && std::isdigit(word[0]) ? threads.push_back(std::stoi(word)) : void(filter = word);
  }
  if (threads.empty()) threads = {1, tessera::num_threads()};
  fmt::print("instruction set {}; (ratio) is a peer's time over ours\n", isa_name());
  for (int n : threads) {
    tessera::set_num_threads(n);
    set_peer_threads(n);
    products(filter);
    convolutions(filter);
  }
}
