// Batch norms that wait for the call behind them, on the CPU as on a card: what is one operator, and that nobody can
// tell otherwise.
#include <gtest/gtest.h>

#include <thread>

#include "io/temporary_folder.h"
#include "ops/batch_norm.h"
#include "ops/ops_check.h"
#include "tessera/autograd.h"
#include "tessera/io.h"
#include "tessera/nn.h"
#include "tessera/observer.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

class WaitingNorm : public testing::Test {
 protected:
  // Operators that fn() calls, but those of running statistics.
  template <class Fn>
  static std::vector<std::string> ops_of(const Fn& fn) {
    struct PassNames final : Observer {
      void called(const CallSeen& call) override {
        if (call.op != "move_estimates_") all.push_back(std::string(call.op));
      }
      std::vector<std::string> all;
    } names;
    const Observing guard(names);
    fn();
    return names.all;
  }

  Tensor norm(const Tensor& x, bool training = true) {
    return batch_norm(x, weight, bias, running_mean, running_var, training);
  }
  // The same, done at once.
  template <class Fn>
  static auto at_once(const Fn& fn) {
    let_norms_wait_on_cpu(false);
    auto y = fn();
    let_norms_wait_on_cpu(true);
    return y;
  }
  static void expect_same(const Tensor& got, const Tensor& want) { EXPECT_LT(relative_error(got, want), 1e-6); }

  Generator g{7};
  Tensor x = normal64({3, 5, 4, 6}, g).to(Float32), other = normal64({3, 5, 4, 6}, g).to(Float32);
  Tensor weight = uniform64({5}, g).to(Float32), bias = uniform64({5}, g).to(Float32);
  Tensor running_mean = zeros({5}), running_var = ones({5});
};

using PassNames = std::vector<std::string>;

TEST_F(WaitingNorm, TakesInWhatFollows) {
  Tensor y;
  for (const Tensor& t : {x, x.to(ChannelsLast)}) {
    EXPECT_EQ(ops_of([&] { y = relu(norm(t)), y.data_ptr(); }), PassNames{"batch_norm"});
    expect_same(y, at_once([&] { return relu(norm(t)); }));
    const Tensor b = t.is_contiguous() ? other : other.to(ChannelsLast);
    EXPECT_EQ(ops_of([&] { y = relu(norm(t) + b), y.data_ptr(); }), PassNames{"batch_norm_add"});
    expect_same(y, at_once([&] { return relu(norm(t) + b); }));
    EXPECT_EQ(ops_of([&] { y = relu(b + norm(t)), y.data_ptr(); }), PassNames{"batch_norm_add"});
    EXPECT_EQ(ops_of([&] { y = norm(t) + b, y.data_ptr(); }), PassNames{"batch_norm_add"});
    expect_same(y, at_once([&] { return norm(t) + b; }));
    EXPECT_EQ(ops_of([&] { y = norm(t) + b + b, y.data_ptr(); }), (PassNames{"batch_norm_add", "add"}));
    EXPECT_EQ(ops_of([&] { y = clamp(norm(t), 0, 0.5), y.data_ptr(); }), PassNames{"batch_norm"});
    expect_same(y, at_once([&] { return clamp(norm(t), 0, 0.5); }));
    EXPECT_EQ(ops_of([&] { y = clamp(norm(t) + b, 0, 0.5), y.data_ptr(); }), (PassNames{"batch_norm_add", "clamp"}));
    EXPECT_EQ(ops_of([&] { y = clamp(norm(t), -1, 1), y.data_ptr(); }), (PassNames{"batch_norm", "clamp"}));
    NoGrad flat;
    EXPECT_EQ(ops_of([&] { y = relu(norm(t, false) + b), y.data_ptr(); }), PassNames{"batch_norm_inference"});
    expect_same(y, at_once([&] { return relu(norm(t, false) + b); }));
  }
}

TEST_F(WaitingNorm, GradientsAreThoseOfTheCallsOneByOne) {
  for (Tensor* t : {&x, &other, &weight, &bias}) t->set_requires_grad();
  const auto gradients = [&] {
    const Tensor y = relu(norm(x) + other);
    return grad({(y * y).sum()}, {x, other, weight, bias});
  };
  const Tensors joined = gradients(), apart = at_once(gradients);
  for (size_t i = 0; i < joined.size(); ++i) expect_same(joined[i], apart[i]);
}

TEST_F(WaitingNorm, AResultThatIsHeldIsThere) {
  x.set_requires_grad();
  const Tensor y = norm(x);
  EXPECT_TRUE(y.requires_grad());
  EXPECT_EQ(ops_of([&] { relu(y).data_ptr(); }), (PassNames{"batch_norm", "relu"}));
  expect_same(y, at_once([&] { return norm(x); }));
  const Tensor z = norm(x), first = grad({relu(z).sum()}, {z})[0];
  expect_same(first, gt(z, full({}, 0)).to(Float32));
  EXPECT_FALSE(norm(x).is_leaf());
  expect_same(norm(x).detach(), y);
  const Tensor w = norm(x);
  w.register_hook([](const Tensor& t) { return t * 2; });
  expect_same(grad({(w * other).sum()}, {x})[0], at_once([&] { return grad({(norm(x) * other * 2).sum()}, {x})[0]; }));
  Tensor v = norm(x);
  v.backward(other);
  EXPECT_TRUE(x.grad().defined());
}

TEST_F(WaitingNorm, RunsBeforeWhatItReadsChanges) {
  const Tensor want = at_once([&] { return norm(x); });
  Tensor y = norm(x);
  x.fill_(3);
  expect_same(y, want);
  x.copy_(other);
  y = norm(x);
  float* const elements = x.data<float>();  // whoever asks for memory may write to it
  std::fill(elements, elements + x.numel(), 1.f);
  expect_same(y, at_once([&] { return norm(other); }));
  running_mean.zero_();
  norm(x);
  expect_same(running_mean, full({5}, 0.1));  // also where nobody wants the result
}

TEST_F(WaitingNorm, DoesNotWaitForMemoryThatOthersMayWrite) {
  const auto overwrite = [](float* elements, const Tensor& of) {
    for (int64_t i = 0; i < of.numel(); ++i) elements[i] = 3;
  };
  Tensor want = at_once([&] { return norm(x); });
  float* elements = x.data<float>();
  Tensor y = norm(x);
  overwrite(elements, x);
  expect_same(y, want);
  want = at_once([&] { return norm(other) + x; });
  y = norm(other) + x;
  elements[0] = 7;
  expect_same(y, want);
  elements = bias.data<float>();
  want = at_once([&] { return norm(other); });
  y = norm(other);
  overwrite(elements, bias);
  expect_same(y, want);
  std::vector<float> memory(x.numel(), 2.f);
  const Tensor foreign = from_memory(memory.data(), x.shape(), Float32, nullptr);
  want = at_once([&] { return norm(foreign); });
  y = norm(foreign);
  memory[1] = 5;
  expect_same(y, want);
}

// What the library reads for the length of a call is not seen by others.
TEST_F(WaitingNorm, WaitsAlsoAfterItsTensorsWereSaved) {
  const TemporaryFolder folder;
  save_safetensors(folder.path() + "/norm.safetensors",
                   {{"weight", weight}, {"bias", bias}, {"mean", running_mean}, {"var", running_var}});
  EXPECT_EQ(ops_of([&] { relu(norm(x)).data_ptr(); }), PassNames{"batch_norm"});
}

TEST_F(WaitingNorm, KeepsTheStateOfItsCall) {
  x.set_requires_grad();
  const Tensor y = norm(x);
  {
    NoGrad flat;
    EXPECT_FALSE(relu(y).requires_grad());
  }
  EXPECT_FALSE(y.is_leaf());
  Tensor plain;
  {
    NoGrad flat;
    plain = norm(x);
  }
  EXPECT_FALSE((plain + other).requires_grad());
  std::vector<std::string> paths;
  struct Paths final : Observer {
    void called(const CallSeen&) override { all.push_back(scope_path()); }
    std::vector<std::string> all;
  } seen;
  const Observing guard(seen);
  const Tensor named = in_scope("first", [&] { return norm(x); });
  in_scope("second", [&] { named.data_ptr(); });
  EXPECT_EQ(seen.all.front(), "first");
}

TEST_F(WaitingNorm, OtherThreadsFindTheResult) {
  const Tensor want = at_once([&] { return norm(x); });
  for (int i = 0; i < 20; ++i) {
    Tensor y = norm(x), z;
    std::thread([&] { z = y * 1; }).join();
    expect_same(z, want);
  }
}

TEST_F(WaitingNorm, ThreadsMayCallNormsAtTheSameTime) {
  const Tensor want = at_once([&] { return relu(norm(x) + other); });
  std::vector<Tensor> got(40);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = t; i < got.size(); i += 4) got[i] = relu(batch_norm(x, weight, bias, {}, {}, true) + other);
    });
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& y : got) expect_same(y, want);
}

TEST_F(WaitingNorm, WrongArgumentsAreToldAtOnce) {
  EXPECT_THROW(batch_norm(x, zeros({4}), {}, {}, {}, true), Error);
  EXPECT_THROW(batch_norm(x, {}, {}, {}, {}, false), Error);
  EXPECT_THROW(batch_norm(zeros({1, 5, 1, 1}), {}, {}, {}, {}, true), Error);
}

}  // namespace
}  // namespace tessera
