// Functions captured as graphs: recorded without computing, printed, read back, run with eager's bits.
#include "ops/capture.h"

#include <cstring>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/autocast.h"
#include "tessera/autograd.h"
#include "tessera/models.h"
#include "tessera/observer.h"
#include "tessera/ops.h"
#include "tessera/optim.h"

namespace tessera {
namespace {

bool equal_bits(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  const Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(), static_cast<size_t>(x.numel()) * size_of(x.dtype())) == 0;
}

TEST(Meta, TensorsFlowThroughFunctionsWithoutMemory) {
  const Device device = meta(cpu());
  const Tensor x = empty({1 << 20, 1 << 20}, Float32, device), y = softmax(matmul(x, x) + 1.0, 1);
  EXPECT_EQ(describe(y), "f32[1048576, 1048576] on meta(cpu)");
  EXPECT_EQ(error_of([&] { y.sum().item(); }), "item: f32[] on meta(cpu) has no memory, so its value cannot be read");
  EXPECT_EQ(error_of([&] { y.data<float>(); }), "data: f32[1048576, 1048576] on meta(cpu) has no memory");
  EXPECT_EQ(error_of([&] { y + ones({1}); }),
            "add: inputs on different devices: f32[1048576, 1048576] on meta(cpu) and f32[1] on cpu");
  EXPECT_EQ(to_string(x.to(meta(cuda(0))).device()), "meta(cuda:0)");
}

TEST(Meta, DevicesReadBack) {
  for (const char* text : {"cpu", "cuda:3", "meta(cpu)", "meta(hip:1)", "cuda:sm90", "hip:gfx90a"})
    EXPECT_EQ(to_string(parse_device(text)), text);
  EXPECT_TRUE(parse_device("cuda:sm90").meta);
  for (const char* text :
       {"meta(", "meta(meta(cpu))", "cuda:gfx90a", "hip:sm90", "cpu:sm90", "meta(cuda:sm90)", "cuda:"})
    EXPECT_NE(error_of([&] { parse_device(text); }), "no error") << text;
}

TEST(Meta, RowsLieAsOnTheDevice) {
  const Device card = parse_device("cuda:sm90");
  const Tensor a = empty({512, 64}, BFloat16, card), b = empty({64, 50257}, BFloat16, card);
  EXPECT_EQ(matmul(a, b).stride(0), 50304);  // rows begin at whole 128 bytes there
  EXPECT_EQ(matmul(a.to(meta(cpu())), b.to(meta(cpu()))).stride(0), 50257);
}

TEST(Meta, MemoryIsCounted) {
  const Device device = meta(cpu());
  reset_peak_memory(device);
  const int64_t before = memory_stats(device).allocated;
  { const Tensor x = empty({1024}, Float32, device), y = x + x; }
  EXPECT_EQ(memory_stats(device).allocated, before);
  EXPECT_EQ(memory_stats(device).peak_allocated - before, 8192);
}

TEST(Capture, RecordsWhatIsDispatched) {
  const Program program =
      capture([](const Tensors& in) { return Tensors{softmax(in[0] * 2.0, 1).sum()}; }, {ones({2, 3})});
  EXPECT_EQ(program.graph->text(),
            "graph(%0: f32[2, 3] on cpu) {\n"
            "  %1: f32[2, 3] = mul_scalar(%0) value=2\n"
            "  %2: f32[2, 3] = softmax(%1) dim=1\n"
            "  %3: f32[] = sum(%2)\n"
            "  return %3\n"
            "}\n");
  EXPECT_FLOAT_EQ(program({ones({2, 3})})[0].item<float>(), 2);
}

TEST(Capture, ClosesOverWhatHasMemoryByReference) {
  Tensor weight = ones({3}), count = zeros({});
  const Program program = capture(
      [&](const Tensors& in) {
        count.add_(ones({}));
        return Tensors{in[0] * weight};
      },
      {ones({2, 3})});
  EXPECT_EQ(count.item(), 0);  // nothing ran
  EXPECT_EQ(program.closed_over.size(), 2u);
  weight.mul_(3.0);
  EXPECT_EQ(program({ones({2, 3})})[0].to_vector<float>(), std::vector<float>(6, 3));
  program({ones({2, 3})});
  EXPECT_EQ(count.item(), 2);
}

TEST(Capture, ViewsAndWritesThroughThemAreKept) {
  const auto fn = [](const Tensors& in) {
    Tensor x = in[0].clone();
    x.select(0, 1).fill_(7);
    return Tensors{x.transpose(0, 1), x.sum()};
  };
  const Tensor x = arange(0, 6).to(Float32).reshape({2, 3});
  const Tensors eager = fn({x}), ran = capture(fn, {zeros({2, 3})})({x});
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(equal_bits(eager[i], ran[i])) << i;
  EXPECT_EQ(ran[0].stride(0), eager[0].stride(0));
}

TEST(Capture, DrawsAnewInEachRun) {
  const Program program = capture([](const Tensors& in) { return Tensors{dropout(in[0], 0.5)}; }, {ones({64})});
  manual_seed(5);
  const Tensors runs{program({ones({64})})[0], program({ones({64})})[0]};
  manual_seed(5);
  for (const Tensor& t : runs) EXPECT_TRUE(equal_bits(t, dropout(ones({64}), 0.5)));
  Generator own(3);
  const Program other = capture([&](const Tensors&) { return Tensors{randn({9}, own)}; }, {});
  const Tensor drawn = other({})[0];
  Generator same(3);
  EXPECT_TRUE(equal_bits(drawn, randn({9}, same)));
}

TEST(Capture, BackwardIsCapturedAndLeavesGradients) {
  Tensor w = full({3}, 2.0).set_requires_grad();
  const Program program = capture(
      [&](const Tensors& in) {
        const Tensor loss = square(in[0] * w).sum();
        loss.backward();
        return Tensors{loss};
      },
      {ones({2, 3})});
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(program({ones({2, 3})})[0].item(), 24);
  EXPECT_EQ(w.grad().to_vector<float>(), std::vector<float>(3, 8));
}

TEST(Capture, WhatCannotBeCapturedIsOneClearLine) {
  const auto captured = [](const auto& fn) { return error_of([&] { capture(fn, {ones({2})}); }); };
  EXPECT_EQ(captured([](const Tensors& in) { return Tensors{full({}, in[0].sum().item())}; }),
            "item: f32[] on meta(cpu) has no memory, so its value cannot be read");
  EXPECT_EQ(captured([](const Tensors& in) {
              capture([](const Tensors& inner) { return inner; }, {in[0]});
              return in;
            }),
            "capture: a function is being captured already");
  Tensor w = ones({2}).set_requires_grad();
  w.sum().backward();
  EXPECT_EQ(captured([&](const Tensors& in) {
              (in[0] * w).sum().backward();
              return Tensors{};
            }),
            "capture: a leaf has a gradient already, to which each run would add; call zero_grad() first");
  EXPECT_EQ(w.grad().to_vector<float>(), std::vector<float>(2, 1));
}

TEST(Capture, RunsOnWhatItWasCapturedFor) {
  const Program program = capture([](const Tensors& in) { return Tensors{in[0] + in[1]}; }, {ones({2}), ones({2})});
  EXPECT_EQ(error_of([&] { program({ones({2})}); }), "run: 1 inputs for a function of 2");
  EXPECT_EQ(error_of([&] { program({ones({2}), ones({3})}); }), "run: input 1 is f32[3] on cpu, not f32[2] on cpu");
  EXPECT_EQ(error_of([&] { program({ones({2}), Tensor()}); }), "run: input 1 is undefined");
  EXPECT_EQ(error_of([&] { run(*program.graph, {ones({2})}); }), "run: 1 inputs for a graph of 2");
}

// A training step, optimizer included: captured, printed, read back, run, with eager's bits.
TEST(Capture, ATrainingStepOfAGptEndsWithEagersBits) {
  const models::GPTConfig config{.layers = 2, .heads = 2, .width = 16, .block = 8, .vocab = 33, .dropout = 0.1};
  const auto train = [&](bool captured, int steps) {
    manual_seed(11);
    Generator generator(3), data(4);
    models::GPT model(config, generator);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    const auto step = [&](const Tensors& in) {
      optimizer.zero_grad();
      const Tensor loss = model.loss_and_backward(in[0], in[1]);
      optim::clip_grad_norm_(model.parameters(), 1.0);
      optimizer.step();
      return Tensors{loss};
    };
    const auto batch = [&] { return Tensors{randint(0, 33, {3, 8}, data), randint(0, 33, {3, 8}, data)}; };
    Tensors results;
    Program program;
    if (captured) {
      program = capture(step, {zeros({3, 8}, Int64), zeros({3, 8}, Int64)});
      const std::string text = program.graph->text();
      const Ref<Graph> again = parse_graph(text);
      EXPECT_EQ(again->text(), text);
      EXPECT_TRUE(again->equals(*program.graph));
      program.graph = again;
    }
    for (int i = 0; i < steps; ++i) results.push_back(captured ? program(batch())[0] : step(batch())[0]);
    for (const Tensor& p : model.parameters()) {
      results.push_back(p.detach());
      results.push_back(p.grad());
    }
    for (const auto& [name, t] : optimizer.state_dict()) results.push_back(t);
    return results;
  };
  const Tensors eager = train(false, 3), ran = train(true, 3);
  ASSERT_EQ(eager.size(), ran.size());
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(equal_bits(eager[i], ran[i])) << i;
}

// "name attributes" of every operator but those of a graph that are no operators of a call: memory that is made, and
// random numbers' places.
bool is_counted(const Op& op) { return op.name != "empty" && op.name != "draw"; }
std::vector<std::string> operators_of(const std::function<void()>& run) {
  struct : Observer {
    std::vector<std::string> list;
    int depth = 0;  // what an operator calls is a part of it
    void called(const CallSeen& call) override {
      if (depth++ == 0 && is_counted(find_op(call.op)))
        list.push_back(std::string(call.op) + " " + call.attrs.describe());
    }
    void returned(const CallSeen&) override { --depth; }
  } seen;
  const Observing guard(seen);
  run();
  return seen.list;
}
std::vector<std::string> operators_of(const Graph& graph) {
  std::vector<std::string> list;
  for (const GraphNode& node : graph.nodes)
    if (is_counted(*node.op)) list.push_back(std::string(node.op->name) + " " + node.attrs.describe());
  return list;
}

// Two steps of a training run as they are, and one that is captured; `watched`: with everything held that a step makes.
// None has gradients of maps, which run as one operator and are recorded as those that it consists of.
using Step = std::function<Tensors(const Tensors&)>;
void expect_the_same_operators(const std::function<Step()>& begin, const Tensors& batch,
                               const std::vector<std::string>& in_place) {
  const Step eager = begin(), captured = begin();
  const auto first = operators_of([&] { eager(batch); });
  Tensors held;
  const auto second = operators_of([&] {
    for (const Tensor& t : eager(batch)) held.push_back(t);
  });
  const auto recorded = operators_of(*capture(captured, batch).graph);
  EXPECT_EQ(first, second);
  EXPECT_EQ(first, recorded);
  for (const std::string& op : in_place)
    EXPECT_TRUE(std::any_of(recorded.begin(), recorded.end(), [&](const std::string& s) { return s.starts_with(op); }))
        << op;
}

TEST(Capture, RecordsTheOperatorsThatAGptRuns) {
  const Tensors batch{randint(0, 33, {3, 8}, default_generator()), randint(0, 33, {3, 8}, default_generator())};
  for (const bool lower : {false, true})
    for (const int form : {0, 1, 2}) {  // the loss, then backward; both in one; so in parts of the rows
      const auto begin = [=]() -> Step {
        Generator generator(3);
        const models::GPTConfig config{.layers = 2, .heads = 2, .width = 16, .block = 8, .vocab = 33, .dropout = 0.1};
        auto model = std::make_shared<models::GPT>(config, generator);
        auto optimizer = std::make_shared<optim::AdamW>(model->parameters(), optim::AdamWOptions{.lr = 1e-2});
        return [=](const Tensors& in) {
          optimizer->zero_grad();
          std::optional<amp::Autocast> half;
          if (lower) half.emplace(BFloat16);
          Tensor loss;
          if (form == 0) (loss = model->loss(in[0], in[1])).backward();
          else loss = model->loss_and_backward(in[0], in[1], full({}, 1.0), form == 1 ? 1 << 20 : 7 * 33 * 4);
          half.reset();
          optim::clip_grad_norm_(model->parameters(), 1.0);
          optimizer->step();
          return Tensors{loss};
        };
      };
      SCOPED_TRACE(lower ? "bf16" : "f32");
      const char* loss = form == 0 ? "cross_entropy_backward_ " : "cross_entropy_and_gradient_ ";
      expect_the_same_operators(begin, batch, {loss, "embedding_backward_ "});
    }
}

TEST(Capture, RecordsTheOperatorsThatAConvModelRuns) {
  const Tensors batch{randn({2, 2, 6, 5}, default_generator()), randn({2, 1, 6, 5}, default_generator())};
  const auto begin = []() -> Step {
    Generator generator(3);
    auto model = std::make_shared<models::ConvModel>(3, 8, generator);
    auto optimizer = std::make_shared<optim::AdamW>(model->parameters(), optim::AdamWOptions{.lr = 1e-2});
    return [=](const Tensors& in) {
      optimizer->zero_grad();
      const Tensor loss = sum((*model)(in[0]) * in[1]);
      loss.backward();
      optimizer->step();
      return Tensors{loss};
    };
  };
  expect_the_same_operators(begin, batch, {});
}

// Slopes are multiplied into the gradient that came, and what arrives at a tensor twice is added up in place.
TEST(Capture, RecordsWhatBackwardOverwrites) {
  const auto begin = []() -> Step {
    const Tensor w = randn({5, 5}, default_generator()).set_requires_grad();
    return [=](const Tensors& in) {
      w.set_grad({});
      const Tensor h = linear_act(in[0], w, {}, Activation::Tanh);
      const Tensor y = linear_act(h, w, {}, Activation::Tanh);
      (y.sum() + (h * h).sum()).backward();
      return Tensors{y, h, w.grad()};
    };
  };
  expect_the_same_operators(begin, {randn({3, 5}, default_generator())}, {"mul_ ", "add_ "});
}

TEST(GraphText, IsChecked) {
  const std::string good = "graph(%0: f32[2, 3] on cpu) {\n  %1: f32[2, 3] = mul_scalar(%0) value=2\n  return %1\n}\n";
  EXPECT_EQ(parse_graph(good)->text(), good);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return error_of([&] { parse_graph(text); });
  };
  EXPECT_EQ(with("mul_scalar", "mul_scaler"),
            "graph, line 2: unknown operator 'mul_scaler'; the nearest are mul_scalar, mul_scalar_");
  EXPECT_EQ(with("(%0) value", "(%1) value"), "graph, line 2: %1 is not there yet");
  EXPECT_EQ(with("value=2", "factor=2"), "graph, line 2: mul_scalar: no attribute 'factor', of: value");
  EXPECT_EQ(with("value=2", "value=two"), "graph, line 2: mul_scalar: attribute 'value': 'two' is no float");
  EXPECT_EQ(with("%1: f32[2, 3]", "%1: f32[3, 2]"), "graph, line 2: mul_scalar gives f32[2, 3], not f32[3, 2]");
  EXPECT_EQ(with("%1: f32", "%2: f32"), "graph, line 2: '%2: f32[2, 3]' does not declare %1");
  EXPECT_EQ(with("(%0) value", "(%0, %0) value"), "graph, line 2: mul_scalar takes 1 inputs, not 2");
  EXPECT_EQ(with("(%0) value", "(none) value"), "graph, line 2: mul_scalar: x is absent");
  EXPECT_EQ(with("return %1\n", ""), "graph, line 3: '}' is no operation");
  EXPECT_EQ(with("}\n", ""), "graph, line 3: the text ends within the graph");
  EXPECT_EQ(with("}\n", "}\nmore\n"), "graph, line 4: something follows the graph");
  for (size_t cut = 0; cut < good.size() - 2; ++cut)
    EXPECT_NE(error_of([&] { parse_graph(good.substr(0, cut)); }), "no error") << cut;
}

TEST(Capture, KnowsWhereEachNodeWasCalled) {
  const auto fn = [](const Tensors& in) {
    const Tensor y = in_scope("outer", [&] { return in_scope("inner", [&] { return exp(in[0]); }) + in[0]; });
    return Tensors{relu(y)};
  };
  const Program program = capture(fn, {zeros({2, 3}, Float32, meta(cpu()))});
  EXPECT_EQ(program.graph->nodes.size(), 3u);
  EXPECT_EQ(program.paths, (std::vector<std::string>{"outer.inner", "outer", ""}));
  EXPECT_EQ(program.views, std::vector<bool>(3, false));
}

// Of open sizes as of known ones.
TEST(Capture, KnowsWhichNodesGiveViews) {
  const auto fn = [](const Tensors& in) {
    const Tensor turned = in[0].transpose(1, 2), heads = turned.reshape({turned.shape()[0], 2, 3, turned.shape()[2]});
    return Tensors{exp(heads.select(1, 0)), turned.reshape({turned.shape()[0], -1})};
  };
  const Dim n = Dim::symbol("n", 1), tokens = Dim::symbol("tokens", 1);
  for (const Shape& shape : {Shape{Dim(2), Dim(5), Dim(6)}, Shape{n, tokens, Dim(6)}})
    EXPECT_EQ(capture(fn, {zeros(shape, Float32, meta(cpu()))}).views,
              (std::vector<bool>{true, true, true, false, false}));
}

}  // namespace
}  // namespace tessera
