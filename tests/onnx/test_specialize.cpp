// Runs on inputs of sizes that were seen before: what follows from sizes is not computed again, and all else is.
#include <gtest/gtest.h>

#include <thread>

#include "onnx/model_maker.h"
#include "tessera/observer.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

std::vector<float> floats_of(const Value& value) { return value.tensor().to_vector<float>(); }
std::vector<int64_t> whole(const Value& value) { return value.tensor().to_vector<int64_t>(); }
Tensor counted(int64_t n) { return arange(0, static_cast<double>(n), 1, Float32); }

// y [n, 3 * 2] of x [n, 2, 3] as exporters say it: sizes by Shape, Gather, Unsqueeze, Concat.
ModelMaker flattened() {
  ModelMaker m;
  m.input("x", {-1, 2, 3}).output("y", {-1, 6});
  m.integers("zero", {0}).integers("minus_one", {-1});
  m.add("Shape", {"x"}, {"sizes"});
  m.add("Gather", {"sizes", "zero"}, {"n"});
  m.add("Concat", {"n", "minus_one"}, {"wanted"}).attributes.push_back(attribute("axis", 0));
  m.add("Reshape", {"x", "wanted"}, {"flat"});
  m.add("Relu", {"flat"}, {"y"});
  return m;
}

struct Counter : Observer {
  int calls = 0;
  void returned(const CallSeen&) override { ++calls; }
};
int calls_of(const std::function<void()>& fn) {
  Counter counter;
  const Observing guard(counter);
  fn();
  return counter.calls;
}

TEST(OnnxSizes, AreComputedOnce) {
  const Model model = Model::from_bytes(flattened().bytes());
  const Tensor x = reshape(counted(24), {4, 2, 3});
  const auto run = [&] { EXPECT_EQ(floats_of(model.run({x})[0]), x.to_vector<float>()); };
  const int first = calls_of(run);
  run();
  EXPECT_LE(calls_of(run), 2);  // reshape and relu
  EXPECT_GT(first, 2);
}

TEST(OnnxSizes, MayDifferFromRunToRun) {
  const Model model = Model::from_bytes(flattened().bytes());
  for (int turn = 0; turn < 3; ++turn)
    for (const int64_t n : {1, 2, 3, 4, 5, 6}) {
      const Tensor y = model.run({ones({n, 2, 3})})[0].tensor();
      EXPECT_EQ(y.shape(), (Shape{n, 6}));
    }
}

TEST(OnnxSizes, OfWhatElementsDecideAreNotKept) {
  ModelMaker m;
  m.input("x", {-1}).output("count", {1}, kInt64).output("twice", {-1}, kInt64);
  m.integers("one", {1}).integers("two", {2});
  m.add("NonZero", {"x"}, {"places"});
  m.add("Shape", {"places"}, {"sizes"});
  m.add("Gather", {"sizes", "one"}, {"count"});
  m.add("Mul", {"sizes", "two"}, {"twice"});
  const Model model = Model::from_bytes(m.bytes());
  for (int64_t n = 0; n < 5; ++n) {
    const Values out = model.run({cast(lt(counted(5), full({}, static_cast<double>(n), Float32)), Float32)});
    EXPECT_EQ(whole(out[0]), std::vector<int64_t>{n});
    EXPECT_EQ(whole(out[1]), (std::vector<int64_t>{2, 2 * n}));
  }
}

TEST(OnnxSizes, ThatAreInputsAreNotKept) {
  ModelMaker m;
  m.input("x", {6}).input("sizes", {2}, kInt64).output("y", {-1, -1});
  m.add("Reshape", {"x", "sizes"}, {"y"});
  const Model model = Model::from_bytes(m.bytes());
  for (int64_t rows : {1, 2, 3, 6}) {
    const Values out = model.run({counted(6), tensor(std::vector<int64_t>{rows, 6 / rows}, {2})});
    EXPECT_EQ(out[0].tensor().shape(), (Shape{rows, 6 / rows}));
  }
}

TEST(OnnxSizes, GivenToACallerAreItsOwn) {
  ModelMaker m;
  m.input("x", {-1, -1}).output("sizes", {2}, kInt64).output("doubled", {2}, kInt64);
  m.integers("two", {2});
  m.add("Shape", {"x"}, {"sizes"});
  m.add("Mul", {"sizes", "two"}, {"doubled"});
  const Model model = Model::from_bytes(m.bytes());
  for (int run = 0; run < 4; ++run) {
    const Values out = model.run({zeros({2, 3})});
    EXPECT_EQ(whole(out[0]), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(whole(out[1]), (std::vector<int64_t>{4, 6}));
    for (const Value& value : out) Tensor(value.tensor()).fill_(7);
  }
}

TEST(OnnxSizes, DrawsAreMadeAnew) {
  ModelMaker m;
  m.input("x", {-1}).output("y", {-1});
  m.add("Shape", {"x"}, {"sizes"});
  m.add("ConstantOfShape", {"sizes"}, {"zero"});
  m.add("RandomNormalLike", {"zero"}, {"drawn"});
  m.add("Add", {"x", "drawn"}, {"y"});
  const Model model = Model::from_bytes(m.bytes());
  std::vector<std::vector<float>> all;
  for (int run = 0; run < 4; ++run) all.push_back(floats_of(model.run({zeros({7})})[0]));
  for (size_t i = 1; i < all.size(); ++i) EXPECT_NE(all[i], all[i - 1]);
}

TEST(OnnxSizes, AnInputThatIsLeftOutHasTheValueOfTheFile) {
  ModelMaker m;
  m.input("x", {2}).input("w", {2}).output("y", {2}).weight("w", {2}, {1, 2});
  m.add("Add", {"x", "w"}, {"y"});
  const Model model = Model::from_bytes(m.bytes());
  for (int run = 0; run < 3; ++run) {
    EXPECT_EQ(floats_of(model.run({zeros({2})})[0]), (std::vector<float>{1, 2}));
    EXPECT_EQ(floats_of(model.run({zeros({2}), ones({2})})[0]), (std::vector<float>{1, 1}));
  }
}

TEST(OnnxSizes, ErrorsStay) {
  ModelMaker m;
  m.input("x", {-1}).input("i", {1}, kInt64).output("y", {-1});
  m.add("Gather", {"x", "i"}, {"y"});
  const Model model = Model::from_bytes(m.bytes());
  const auto at = [&](int64_t i) {
    return floats_of(model.run({counted(3), tensor(std::vector<int64_t>{i}, {1})})[0]);
  };
  for (int run = 0; run < 3; ++run) {
    EXPECT_EQ(at(2), std::vector<float>{2});
    EXPECT_THROW(at(3), Error);
  }
}

TEST(OnnxSizes, ThreadsShareAModel) {
  const Model model = Model::from_bytes(flattened().bytes());
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&model, t] {
      for (int64_t run = 0; run < 20; ++run)
        EXPECT_EQ(model.run({ones({1 + (t + run) % 3, 2, 3})})[0].tensor().size(0), 1 + (t + run) % 3);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tessera::onnx
