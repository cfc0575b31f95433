// What observers see, and that nobody pays for them or is disturbed by them.
#include "tessera/observer.h"

#include <algorithm>
#include <set>
#include <thread>

#include "core/fake_runtime.h"
#include "core/gpu/backend.h"
#include "core/util/observers.h"
#include "ops/capture.h"
#include "ops/ops_check.h"
#include "tessera/autocast.h"
#include "tessera/models.h"
#include "tessera/optim.h"

using tessera::Tensor;

// Outside of the library's namespace, as a program's functions are.
[[gnu::noinline]] Tensor a_function_of_the_program(const Tensor& x) {
  Tensor y = tessera::add(x, x);
  return tessera::relu(y);
}

namespace tessera {
namespace {

struct Recorder : Observer {
  std::vector<std::string> calls, begun, kernels, scopes, sites;
  int64_t held = 0, without_memory = 0, allocations = 0;

  void called(const CallSeen& call) override {
    begun.emplace_back(call.op);
    sites.push_back(call_site(call));
  }
  void returned(const CallSeen& call) override { calls.push_back(describe(call)); }
  void allocated(const MemorySeen& m) override {
    const auto [device, bytes, address] = m;
    ++allocations;
    EXPECT_EQ(device.type, DeviceType::CPU);
    (device.meta ? without_memory : held) += static_cast<int64_t>(bytes);
  }
  void released(const MemorySeen& m) override {
    const auto [device, bytes, address] = m;
    (device.meta ? without_memory : held) -= static_cast<int64_t>(bytes);
  }
  void launched(const LaunchSeen& launch) override {
    kernels.push_back(std::string(launch.op) + ":" + std::string(launch.kernel));
  }
  void entered(const std::string& path) override { scopes.push_back("+" + path); }
  void left(const std::string& path) override { scopes.push_back("-" + path); }
  bool is_empty() const {
    return calls.empty() && begun.empty() && kernels.empty() && scopes.empty() && allocations == 0 && held == 0;
  }
};

using Lines = std::vector<std::string>;

TEST(Observers, SeeEachOperatorOfATrainingStep) {
  Tensor w = ones({4, 3}).set_requires_grad(), b = zeros({4}).set_requires_grad();
  const Tensor x = ones({2, 3});
  optim::SGD optimizer({w, b}, {.lr = 0.5});
  grad({sum(square(w))}, {w});  // the gradient of square is traced once
  Recorder seen;
  {
    const Observing guard(seen);
    sum(square(linear(x, w, b))).backward();
    optimizer.step();
  }
  ones({2}) + ones({2});  // nobody looks
  const Lines want = {
      "linear(f32[2, 3] on cpu, f32[4, 3] on cpu, f32[4] on cpu, none) -> f32[2, 4] on cpu",
      "square(f32[2, 4] on cpu) -> f32[2, 4] on cpu",
      "sum(f32[2, 4] on cpu) -> f32[] on cpu",
      "full() a=1 -> f32[] on cpu",
      "reshape(f32[] on cpu) shape=[1, 1] -> f32[1, 1] on cpu",
      "expand(f32[1, 1] on cpu) shape=[2, 4] -> f32[2, 4] on cpu",
      "map_graph(f32[2, 4] on cpu, f32[2, 4] on cpu) function=maps(\"mul, mul_scalar\") -> f32[2, 4] on cpu",
      "permute(f32[2, 4] on cpu) dims=[1, 0] -> f32[4, 2] on cpu",
      "matmul(f32[4, 2] on cpu, f32[2, 3] on cpu) -> f32[4, 3] on cpu",
      "sum(f32[2, 4] on cpu) dims=[0], keepdim=true -> f32[1, 4] on cpu",
      "reshape(f32[1, 4] on cpu) shape=[4] -> f32[4] on cpu",
      "sgd_(f32[4, 3] on cpu, f32[4] on cpu, f32[] on cpu, f32[4, 3] on cpu, f32[4] on cpu, f32[] on "
      "cpu, none, none) -> f32[4, 3] on cpu, f32[4] on cpu, f32[] on cpu"};
  EXPECT_EQ(seen.calls, want);
  EXPECT_EQ(seen.begun.size(), seen.calls.size());
  EXPECT_GE(seen.kernels.size(), 6u);
  EXPECT_EQ(seen.kernels.front().substr(0, 7), "linear:");
  EXPECT_EQ(seen.kernels.back(), "sgd_:multi_tensor");
}

TEST(Observers, SeeCastsAndOperatorsOfGraphsAndCaptures) {
  const Tensor x = ones({2, 3}), w = ones({4, 3});
  Recorder seen;
  const Observing guard(seen);
  {
    const amp::Autocast region(BFloat16);
    linear(x, w);
  }
  EXPECT_EQ(seen.begun, (Lines{"cast", "cast", "linear"}));
  seen = {};
  const Program program = capture([](const Tensors& in) { return Tensors{relu(in[0])}; }, {x});
  EXPECT_EQ(seen.begun, Lines{"relu"});
  EXPECT_TRUE(seen.kernels.empty());
  seen = {};
  program({x});
  EXPECT_EQ(seen.calls, Lines{"relu(f32[2, 3] on cpu) -> f32[2, 3] on cpu"});
  EXPECT_EQ(seen.kernels.size(), 1u);
}

TEST(Observers, SeeMemoryComeAndGo) {
  Recorder seen;
  {
    const Observing guard(seen);
    const int64_t before = memory_stats().allocated;
    const Tensor x = empty({100});
    EXPECT_EQ(seen.held, 400);
    EXPECT_EQ(seen.held, memory_stats().allocated - before);
    sum(square(x.clone().set_requires_grad())).backward();
    EXPECT_EQ(seen.held, memory_stats().allocated - before);
    const int64_t count = seen.allocations;
    const Tensor none = zeros({5}, Float32, meta(cpu()));
    EXPECT_EQ(seen.without_memory, 20);  // what it would take
    EXPECT_EQ(seen.allocations, count + 1);
    EXPECT_EQ(seen.held, memory_stats().allocated - before);
  }
  EXPECT_EQ(seen.without_memory, 0);
  EXPECT_GT(seen.allocations, 3);
  EXPECT_EQ(seen.held, 0);
}

TEST(Observers, SeeMemoryAndReplaysOfAGpu) {
  struct Seen : Observer {
    int64_t held = 0;
    Lines launches;
    void allocated(const MemorySeen& m) override {
      const auto [device, bytes, address] = m;
      EXPECT_EQ(device, hip(0));
      held += static_cast<int64_t>(bytes);
    }
    void released(const MemorySeen& m) override { held -= static_cast<int64_t>(m.bytes); }
    void launched(const LaunchSeen& launch) override {
      EXPECT_EQ(launch.device, hip(0));
      launches.emplace_back(launch.kernel);
    }
  } seen;
  gpu::install(DeviceType::HIP, plugin_of(*new FakeRuntime));
  {
    const Observing guard(seen);
    const Tensor x = empty({100}, Float32, hip(0));
    EXPECT_EQ(seen.held, 400);
    DeviceGraph graph;
    graph.capture(hip(0), [] {});
    graph.replay();
    graph.replay();
  }
  EXPECT_EQ(seen.held, 0);
  EXPECT_EQ(seen.launches, (Lines{"graph", "graph"}));
  gpu::install(DeviceType::HIP, nullptr);
}

TEST(Observers, AreToldOfFailures) {
  Recorder seen;
  const Observing guard(seen);
  EXPECT_EQ(error_of([] { linear(ones({2, 3}), ones({4, 5})); }).substr(0, 7), "linear:");
  ASSERT_FALSE(seen.calls.empty());
  EXPECT_EQ(seen.calls.back(), "linear(f32[2, 3] on cpu, f32[4, 5] on cpu, none, none) failed");
}

TEST(Observers, CostNothingWhereThereAreNone) {
  EXPECT_FALSE(observers::exist());
  Recorder seen;
  {
    const Observing one(seen), two(seen, {.all_threads = true, .call_sites = true});
    EXPECT_TRUE(observers::exist());
  }
  EXPECT_FALSE(observers::exist());
  seen = {};
  const NamedScope scope("unseen");
  relu(ones({3}));
  EXPECT_TRUE(seen.is_empty());
}

TEST(Observers, AreNotSeenThemselves) {
  struct Computing : Observer {
    int calls = 0;
    std::string fault;
    void returned(const CallSeen&) override {
      ++calls;
      relu(ones({3}));
      fault = error_of([&] { Observing another(*this); });
    }
  } observer;
  const Observing guard(observer);
  relu(empty({3}));
  EXPECT_EQ(observer.calls, 1);
  EXPECT_EQ(observer.fault, "Observing: a function of an observer registers another");
}

TEST(Observers, MayStopACallButNotARelease) {
  struct Throwing : Observer {
    void called(const CallSeen& call) override {
      if (call.op == "relu") throw Error("no relu here");
    }
    void returned(const CallSeen& call) override {
      if (call.failed) throw Error("never seen");
    }
    void released(const MemorySeen&) override { throw Error("never seen"); }
    void left(const std::string&) override { throw Error("never seen"); }
  } observer;
  const Tensor x = ones({3});
  const Observing guard(observer);
  EXPECT_EQ(error_of([&] { relu(x); }), "no relu here");
  EXPECT_EQ(error_of([&] { matmul(x, ones({4})); }).substr(0, 7), "matmul:");
  EXPECT_EQ(error_of([&] {
              const NamedScope scope("a");
              gelu(x);
            }),
            "no error");
}

TEST(Observers, SeeTheirThreadOrAll) {
  Recorder mine, all;
  {
    const Observing of_this(mine), of_all(all, {.all_threads = true});
    relu(ones({2}));
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([] {
        Recorder own;
        const Observing guard(own);
        const NamedScope scope("worker");
        for (int n = 0; n < 200; ++n) relu(ones({2}));
        EXPECT_EQ(own.calls.size(), 400u);
        EXPECT_EQ(own.scopes, Lines{"+worker"});
      });
    for (std::thread& t : threads) t.join();
  }
  EXPECT_EQ(mine.begun, (Lines{"full", "relu"}));
  EXPECT_EQ(all.calls.size(), 802u);
  EXPECT_EQ(std::count(all.scopes.begin(), all.scopes.end(), "-worker"), 2);
  EXPECT_EQ(all.held, 0);
}

// ---- scopes

TEST(NamedScopes, GiveAPathAlsoAfterExceptions) {
  EXPECT_EQ(scope_path(), "");
  Recorder seen;
  const Observing guard(seen);
  {
    const NamedScope outer("layers", 3);
    try {
      const NamedScope inner("attention");
      EXPECT_EQ(scope_path(), "layers.3.attention");
      linear(ones({2, 3}), ones({4, 5}));
    } catch (const Error&) {
    }
    EXPECT_EQ(scope_path(), "layers.3");
    EXPECT_EQ(in_scope("norm", [] { return scope_path(); }), "layers.3.norm");
    std::thread([] { EXPECT_EQ(scope_path(), ""); }).join();
  }
  EXPECT_EQ(scope_path(), "");
  EXPECT_EQ(seen.scopes, (Lines{"+layers.3", "+layers.3.attention", "-layers.3.attention", "+layers.3.norm",
                                "-layers.3.norm", "-layers.3"}));
}

// Which are the names of their parameters.
TEST(NamedScopes, AreThoseOfAGptsModules) {
  struct Places : Observer {
    std::vector<std::string> of_products;
    void called(const CallSeen& call) override {
      if (call.op == "linear" || call.op == "mlp") of_products.push_back(scope_path());
    }
  } seen;
  Generator generator(3);
  models::GPT model({.layers = 2, .heads = 2, .width = 16, .block = 8, .vocab = 33}, generator);
  for (const bool wide : {false, true}) {
    seen.of_products.clear();
    const Observing guard(seen);
    const amp::Autocast region(BFloat16, {.enabled = wide});
    model(zeros({1, 8}, Int64));
    const Lines layer = {"attention.qkv", "attention.out", "mlp"};
    Lines want;
    for (const char* h : {"h.0.", "h.1."})
      for (const std::string& name : layer) want.push_back(h + name);
    want.emplace_back("head");
    EXPECT_EQ(seen.of_products, want) << wide;
  }
  std::set<std::string> names;
  for (const auto& [name, t] : model.named_parameters()) names.insert(name);
  EXPECT_TRUE(names.contains("h.1.attention.qkv.weight"));
}

// Backward's calls are within those of what they belong to.
TEST(NamedScopes, AreFoundAgainInBackward) {
  struct Places : Observer {
    std::set<std::string> products, others;
    void called(const CallSeen& call) override {
      (call.op.starts_with("matmul") || call.op == "adam_" ? products : others).insert(scope_path());
    }
  } seen;
  Generator generator(3);
  models::GPT model({.layers = 1, .heads = 2, .width = 16, .block = 8, .vocab = 33}, generator);
  optim::Adam optimizer(model.parameters());
  const Observing guard(seen);
  model.loss_and_backward(zeros({1, 8}, Int64), zeros({1, 8}, Int64));
  optimizer.step();
  EXPECT_EQ(seen.products, (std::set<std::string>{"backward.h.0.attention.qkv", "backward.h.0.attention.out",
                                                  "backward.h.0.mlp", "backward.head", "optimizer"}));
  EXPECT_TRUE(seen.others.contains("head") && seen.others.contains("backward.h.0.norm2"));
  EXPECT_EQ(scope_path(), "");
}

TEST(Observers, SeeWhatACallKeepsForBackward) {
  struct Hidden : Observer {
    std::vector<std::string> kept;
    void returned(const CallSeen& call) override {
      for (const Tensor& t : call.hidden) kept.push_back(std::string(call.op) + ": " + describe(t));
    }
  } seen;
  const Tensor x = ones({2, 3}), w = ones({4, 3}).set_requires_grad();
  const Observing guard(seen);
  linear_act(x, w, {}, Activation::Silu);
  linear_act(x, w.detach(), {}, Activation::Silu);
  EXPECT_EQ(seen.kept, (Lines{"linear: f32[2, 4] on cpu", "linear: undefined"}));
}

// ---- call sites

TEST(CallSites, NameTheCallerOutsideOfTheLibrary) {
  const Tensor x = ones({3});
  Recorder seen;
  {
    const Observing guard(seen, {.call_sites = true});
    a_function_of_the_program(x);
  }
  ASSERT_EQ(seen.sites.size(), 2u);
  for (const std::string& site : seen.sites)
    EXPECT_EQ(site.substr(0, site.find('+')), "a_function_of_the_program(tessera::Tensor const&) at test_ops");
  EXPECT_NE(seen.sites[0], seen.sites[1]);
  Recorder without;
  const Observing guard(without);
  a_function_of_the_program(x);
  EXPECT_EQ(without.sites, (Lines{"", ""}));
}

}  // namespace
}  // namespace tessera
