// Operators that a program registers, and closures as operators: dispatched, differentiated, captured, printed,
// explained.
#include "tessera/custom_op.h"

#include <thread>

#include "ops/call_plan.h"
#include "ops/capture.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "ops/schema.h"
#include "tessera/observer.h"

namespace tessera {
namespace {

using Metas1 = std::vector<TensorMeta>;
Metas1 like_first(std::span<const TensorMeta> in, const Attributes&) { return {in[0]}; }

// y = factor x + shift, by kernels with state of their own; attributes of several kinds.
const Op& affine() {
  static const Op* const op = [] {
    const auto counted = std::make_shared<std::atomic<int>>(0);
    const auto run = [counted](const KernelCall& call) {
      ++*counted;
      const Tensor &x = call.in[0], &shift = call.in[1];
      const double factor = call.attributes.get<double>("factor");
      double* y = call.out[0].data<double>();
      const std::vector<double> values = x.to_vector<double>();
      for (size_t i = 0; i < values.size(); ++i)
        y[i] = factor * values[i] + (shift.defined() ? shift.to_vector<double>()[0] : 0);
    };
    const auto backward = [](const RecordedCall& call, const Tensors& grads) {
      Tensors out(2);
      if (call.needs_input(0)) out[0] = grads[0] * call.attributes.get<double>("factor");
      if (call.needs_input(1)) out[1] = sum(grads[0]);
      return out;
    };
    return &register_op({.name = "test.affine",
                         .inputs = "x, shift?",
                         .outputs = "y",
                         .attributes = {{"factor", 1.0},
                                        {"label", std::string("plain")},
                                        {"dims", IntList{0, 1}},
                                        {"table", tensor<float>({1, 2}, {2})},
                                        {"program", Ref<AttrObject>()}},
                         .infer =
                             [](std::span<const TensorMeta> in, const Attributes&) {
                               if (in[0].dtype != Float64) throw Error("test.affine: x is not f64: " + describe(in[0]));
                               return Metas1{in[0]};
                             },
                         .vjp = backward,
                         .kernels = {{.name = "small",
                                      .run = run,
                                      .supports = [](const KernelCall& call) { return call.in[0].numel() < 4; },
                                      .workspace_bytes = [](const KernelCall&) { return size_t{64}; }},
                                     {.name = "plain", .run = run}},
                         .keeps_inputs = 0,
                         .keeps_outputs = 0,
                         .gives_gradients = true});
  }();
  return *op;
}

TEST(RegisteredOp, WithoutVjpRefusesWhatRequiresAGradient) {
  register_op({.name = "test.no_vjp",
               .inputs = "x",
               .outputs = "y",
               .infer = like_first,
               .compute = [](auto in, const Attributes&) { return Tensors{in[0] * 2.0}; }});
  const Tensor x = ones({3}).set_requires_grad();
  EXPECT_EQ(error_of([&] { call_op("test.no_vjp", {x}); }),
            "test.no_vjp: has no vjp, and input 0 requires a gradient; give it to detach(), or use NoGrad");
  EXPECT_EQ(call_op("test.no_vjp", {x.detach()})[0].to_vector<float>(), std::vector<float>(3, 2.0f));
  const NoGrad guard;
  EXPECT_FALSE(call_op("test.no_vjp", {x})[0].requires_grad());
}

// x², made of operators.
const Op& squared() {
  static const Op* const op = &register_op(
      {.name = "test.squared",
       .inputs = "x",
       .outputs = "y",
       .infer = like_first,
       .vjp = [](const RecordedCall& call, const Tensors& grads) { return Tensors{grads[0] * call.inputs[0] * 2.0}; },
       .compute = [](std::span<const Tensor> in, const Attributes&) { return Tensors{in[0] * in[0]}; }});
  return *op;
}

TEST(RegisteredOp, RunsAndIsDifferentiated) {
  affine();
  squared();
  Tensor x = tensor<double>({1, -2, 3}, {3}).set_requires_grad(), shift = full({}, 0.5, Float64).set_requires_grad();
  const Tensor y = call_op("test.affine", {x, shift}, {{"factor", 2.0}})[0];
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{2.5, -3.5, 6.5}));
  const Tensor z = call_op("test.squared", {y})[0];
  z.sum().backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{10, -14, 26}));
  EXPECT_EQ(shift.grad().item(), 11);
  EXPECT_EQ(call_op("test.affine", {x})[0].to_vector<double>(), x.to_vector<double>());
  EXPECT_EQ(call_op("softmax", {ones({2, 2})}, {{"dim", int64_t{1}}})[0].to_vector<float>(),
            std::vector<float>(4, 0.5f));
  const Tensor first = grad({call_op("test.squared", {x * x})[0].sum()}, {x}, {}, false, true)[0];
  EXPECT_EQ(grad({first.sum()}, {x})[0].to_vector<double>(), (std::vector<double>{12, 48, 108}));
}

TEST(RegisteredOp, IsFoundPrintedAndExplained) {
  EXPECT_EQ(&find_op("test.affine"), &affine());
  EXPECT_EQ(signature(affine()),
            "test.affine(x, shift?, factor: float = 1, label: text = \"plain\", dims: list of ints = [0, 1], table: "
            "tensor = tensor(f32[2], 1, 2), program: object = none) -> y");
  const auto all = registered_ops();
  EXPECT_NE(std::find(all.begin(), all.end(), &affine()), all.end());
  EXPECT_EQ(error_of([] { find_op("test.affin"); }), "unknown operator 'test.affin'; the nearest are test.affine");
  const Tensor in[] = {zeros({5}, Float64), {}};
  const Operand seen[] = {Operand(in[0]), {}}, out[] = {Operand(in[0])};
  EXPECT_EQ(explain({affine(), seen, default_attrs(affine()), out}),
            "   small            does not take these shapes or kinds of inputs\n"
            "-> plain            chosen\n");
  EXPECT_EQ(explain({squared(), seen, default_attrs(squared()), out}),
            "   made of other operators, or by the host: there is no kernel to choose\n");
  const ForceKernel forced("test.affine", "small");
  EXPECT_EQ(error_of([&] { call_op("test.affine", {in[0]}); }),
            "test.affine: kernel 'small', which is forced, does not take these shapes or kinds of inputs: f64[5] on "
            "cpu, undefined");
  EXPECT_EQ(error_of([&] { ForceKernel("test.affine", "large"); }),
            "test.affine: no device has a kernel named 'large'");
}

TEST(RegisteredOp, IsCapturedAndReadBack) {
  affine();
  squared();
  Tensor w = tensor<double>({1, 2}, {2}).set_requires_grad();
  const auto fn = [&](const Tensors& in) {
    const Tensor y = call_op("test.squared", {call_op("test.affine", {in[0] * w}, {{"factor", 3.0}})[0]})[0].sum();
    w.set_grad({});
    y.backward();
    return Tensors{y};
  };
  Program program = capture(fn, {ones({2}, Float64)});
  const std::string text = program.graph->text();
  EXPECT_NE(text.find("%3: f64[2] = test.affine(%2, none) factor=3\n"), std::string::npos) << text;
  const Ref<Graph> again = parse_graph(text);
  EXPECT_EQ(again->text(), text);
  EXPECT_TRUE(again->equals(*program.graph));
  program.graph = again;
  EXPECT_EQ(program({ones({2}, Float64)})[0].item(), 9 + 36);
  EXPECT_EQ(w.grad().to_vector<double>(), (std::vector<double>{18, 36}));
  const auto bad = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return error_of([&] { parse_graph(changed); });
  };
  EXPECT_EQ(bad("factor=3", "factor=x"), "graph, line 3: test.affine: attribute 'factor': 'x' is no float");
  EXPECT_EQ(bad("factor=3", "scale=3"),
            "graph, line 3: test.affine: no attribute 'scale', of: factor, label, dims, table, program");
  EXPECT_EQ(bad("test.affine(%2, none)", "test.affine(%2, none, %2)"),
            "graph, line 3: test.affine takes 2 inputs, not 3");
}

TEST(RegisteredOp, ItsAttributesAreCompared) {
  Attrs a = default_attrs(affine()), b = a;
  EXPECT_TRUE(a == b);
  b.set("label", std::string("other"));
  EXPECT_FALSE(a == b);
  EXPECT_EQ(b.describe(), "label=\"other\"");
  b.set("factor", int64_t{2});
  EXPECT_EQ(std::get<double>(b.get("factor")), 2);
  EXPECT_FALSE(a == default_attrs(squared()));
  EXPECT_EQ(error_of([&] { require_attrs(squared(), a); }), "test.squared: these are attributes of another operator: ");
  EXPECT_EQ(error_of([&] {
              call_op("test.affine", {zeros({1}, Float64)}, {{"factor", std::string("x")}});
            }),
            "test.affine: 'factor' is of kind float, and \"x\" is none it takes");
}

TEST(RegisteredOp, WhatDoesNotFitIsOneClearLine) {
  affine();
  EXPECT_EQ(error_of([] { call_op("test.affine", {}); }), "test.affine: x is absent");
  EXPECT_EQ(error_of([] { call_op("test.affine", {Tensor(), ones({})}); }), "test.affine: x is absent");
  EXPECT_EQ(error_of([] { call_op("test.affine", Tensors(3)); }), "test.affine takes 2 inputs, not 3");
  EXPECT_EQ(error_of([] { call_op("test.affine", {zeros({2})}); }), "test.affine: x is not f64: f32[2] on cpu");
  const auto call = [](OpDefinition d) {
    const std::string name = d.name;
    register_op(std::move(d));
    return error_of([&] { call_op(name, {zeros({2})}); });
  };
  const auto same = [](std::span<const Tensor> in, const Attributes&) { return Tensors{in[0] + 1.0}; };
  EXPECT_EQ(call({.name = "test.two_outputs", .inputs = "x", .outputs = "a, b", .infer = like_first, .compute = same}),
            "test.two_outputs: infer gave 1 outputs for 'a, b'");
  EXPECT_EQ(call({.name = "test.other_shape",
                  .inputs = "x",
                  .outputs = "y",
                  .infer =
                      [](std::span<const TensorMeta>, const Attributes&) {
                        return Metas1{{{3}, Float32, {}}};
                      },
                  .compute = same}),
            "test.other_shape: result 0 is f32[2] on cpu, not f32[3] on cpu");
  EXPECT_EQ(call({.name = "test.reads_other",
                  .inputs = "x",
                  .outputs = "y",
                  .attributes = {{"dim", int64_t{0}}},
                  .infer =
                      [](std::span<const TensorMeta> in, const Attributes& a) {
                        a.get<double>("dim");
                        return Metas1{in[0]};
                      },
                  .compute = same}),
            "attribute 'dim' is of another kind: 0");
}

TEST(RegisteredOp, DefinitionsAreChecked) {
  affine();
  const auto compute = [](std::span<const Tensor> in, const Attributes&) { return Tensors{in[0]}; };
  const OpDefinition good{.name = "test.good", .inputs = "x", .outputs = "y", .infer = like_first, .compute = compute};
  const auto with = [&](auto change) {
    OpDefinition d = good;
    change(d);
    return error_of([&] { register_op(std::move(d)); });
  };
  EXPECT_EQ(with([](OpDefinition& d) { d.name = "test.affine"; }), "op 'test.affine' is registered already");
  EXPECT_EQ(with([](OpDefinition& d) { d.name = "softmax"; }), "op 'softmax' is one of the library's");
  for (const char* name : {"", "2x", "a b", "a(", "a=", ".a", "a."})
    EXPECT_EQ(with([&](OpDefinition& d) { d.name = name; }),
              "'" + std::string(name) + "' is no name of an op: letters, digits, '_' and '.'");
  EXPECT_EQ(with([](OpDefinition& d) { d.name = "test.add_"; }),
            "op 'test.add_' has the name of one that works in place, which cannot be registered");
  EXPECT_EQ(with([](OpDefinition& d) { d.inputs = "x, 2"; }), "op 'test.good' has an input '2', which is no name");
  EXPECT_EQ(with([](OpDefinition& d) { d.inputs = "x, x?"; }), "op 'test.good' has two inputs 'x'");
  EXPECT_EQ(with([](OpDefinition& d) { d.inputs = "x, more..."; }),
            "op 'test.good' has a list of inputs beside others: 'x, more...'");
  EXPECT_EQ(with([](OpDefinition& d) { d.outputs = ""; }), "op 'test.good' has no outputs");
  EXPECT_EQ(with([](OpDefinition& d) {
              d.attributes = {{"a", 1.0}, {"a", 2.0}};
            }),
            "op 'test.good' has two attributes 'a'");
  EXPECT_EQ(with([](OpDefinition& d) {
              d.attributes = {{"a=", 1.0}};
            }),
            "op 'test.good' has an attribute 'a=', which is no name");
  EXPECT_EQ(with([](OpDefinition& d) { d.infer = {}; }), "op 'test.good' has no infer");
  EXPECT_EQ(with([](OpDefinition& d) { d.compute = {}; }), "op 'test.good' needs either compute or kernels");
  EXPECT_EQ(with([](OpDefinition& d) { d.compute = {}, d.kernels = {{.name = "k", .run = {}}}; }),
            "op 'test.good' has a kernel 'k' without name or run");
  EXPECT_EQ(error_of([] { find_op("test.good"); }).substr(0, 29), "unknown operator 'test.good';");
}

TEST(RegisteredOp, OneOfManyThreadsRegistersAName) {
  std::atomic<int> made{0}, refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        const std::string name = "test.raced_" + std::to_string(i);
        try {
          register_op({.name = name,
                       .inputs = "x",
                       .outputs = "y",
                       .infer = like_first,
                       .compute = [](std::span<const Tensor> in, const Attributes&) { return Tensors{in[0] * 2.0}; }});
          ++made;
        } catch (const Error&) {
          ++refused;
        }
        EXPECT_EQ(call_op(name, {ones({1})})[0].item(), 2);
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(made, 20);
  EXPECT_EQ(refused, 60);
}

// ---- custom_function

Tensor straight_through(const Tensor& t) {
  return custom_function(
      "round \"straight\"", {t}, [](const Tensors& in) { return Tensors{round(in[0])}; },
      [](const Tensors&, const Tensors&, const Tensors& grads) { return grads; })[0];
}

TEST(CustomFunction, IsOneOperatorOfAGraph) {
  Tensor w = tensor<double>({1.3, 2.6}, {2}).set_requires_grad();
  const auto fn = [&](const Tensors& in) {
    w.set_grad({});
    const Tensor loss = (straight_through(w * in[0]) * in[0]).sum();
    loss.backward();
    return Tensors{loss};
  };
  const Program program = capture(fn, {ones({2}, Float64)});
  const std::string text = program.graph->text();
  EXPECT_NE(text.find("%3: f64[2] = custom_function(%2) function=closures(\"round \\\"straight\\\"\")\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("= round("), std::string::npos) << text;
  std::vector<std::string> captured, dispatched;
  const Tensor in = ones({2}, Float64);
  for (const GraphNode& node : program.graph->nodes) captured.emplace_back(node.op->name);
  {
    struct : Observer {
      std::vector<std::string> list;
      int depth = 0;  // what an operator calls is a part of it
      void called(const CallSeen& call) override {
        if (depth++ == 0) list.emplace_back(call.op);
      }
      void returned(const CallSeen&) override { --depth; }
    } seen;
    const Observing guard(seen);
    fn({in});
    dispatched = seen.list;
    std::erase(dispatched, "round");  // what the closure does is seen, too
  }
  EXPECT_EQ(captured, dispatched);
  EXPECT_EQ(std::count(captured.begin(), captured.end(), "custom_function"), 2) << "forward and backward";
  for (const double x : {1.0, 2.0}) {
    const Tensor in = full({2}, x, Float64);
    const double want = fn({in})[0].item();
    const std::vector<double> gradient = w.grad().to_vector<double>();
    EXPECT_EQ(program({in})[0].item(), want);
    EXPECT_EQ(w.grad().to_vector<double>(), gradient);
  }
  EXPECT_EQ(error_of([&] { parse_graph(text); }),
            "graph, line 3: custom_function: attribute 'function': an object cannot be read from text: "
            "'closures(\"round \\\"straight\\\"\")'");
  EXPECT_EQ(error_of([&] { parse_graph("graph(%0: f32[1] on cpu) {\n  %1: f32[1] = custom_function(%0)\n"); }),
            "graph, line 2: custom_function: it has no function, which text cannot hold");
}

TEST(CustomFunction, GivesSeveralOutputsAndSomeGradients) {
  Tensor a = tensor<double>({2, 3}, {2}).set_requires_grad(), b = tensor<double>({4, 5}, {2}).set_requires_grad();
  const auto fn = [&] {
    return custom_function(
        "pair", {a, Tensor(), b},
        [](const Tensors& in) {
          return Tensors{in[0] * in[2], cast(in[0], Int64), in[2]};
        },
        [](const Tensors& in, const Tensors& out, const Tensors& grads) {
          EXPECT_EQ(out.size(), 3u);
          EXPECT_FALSE(grads[1].defined());
          return Tensors{grads[0] * in[2], {}, {}};
        });
  };
  const Tensors out = fn();
  EXPECT_FALSE(out[1].requires_grad());
  EXPECT_FALSE(out[2].storage() == b.storage()) << "an input that is passed through is copied";
  out[0].sum().backward();
  EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{4, 5}));
  EXPECT_FALSE(b.grad().defined());
}

TEST(CustomFunction, IsDifferentiatedTwice) {
  Tensor x = tensor<double>({3}, {1}).set_requires_grad();
  const Tensor y = custom_function(
      "cube", {x}, [](const Tensors& in) { return Tensors{in[0] * in[0] * in[0]}; },
      [](const Tensors& in, const Tensors&, const Tensors& grads) {
        return Tensors{grads[0] * in[0] * in[0] * 3.0};
      })[0];
  const Tensor first = grad({y}, {x}, {}, false, true)[0];
  EXPECT_EQ(first.item(), 27);
  EXPECT_EQ(grad({first}, {x})[0].item(), 18);
}

TEST(CustomFunction, WhatDoesNotFitIsOneClearLine) {
  Tensor x = ones({2}).set_requires_grad();
  const auto pass = [](const Tensors& in) { return in; };
  const auto no_gradients = [](const Tensors&, const Tensors&, const Tensors&) { return Tensors{}; };
  EXPECT_EQ(error_of([&] { custom_function("none", {x}, {}, no_gradients); }),
            "custom_function 'none': there is no forward");
  EXPECT_EQ(error_of([&] { custom_function("few", {x}, pass, no_gradients)[0].sum().backward(); }),
            "few: backward gave 0 gradients for 1 inputs");
  EXPECT_EQ(error_of([&] { custom_function("forward only", {x}, pass, {})[0].sum().backward(); }),
            "forward only: it has no backward");
  EXPECT_EQ(error_of([&] {
              custom_function(
                  "undefined", {x}, [](const Tensors&) { return Tensors{Tensor()}; }, no_gradients);
            }),
            "undefined: output 0 is undefined");
  EXPECT_TRUE(custom_function(
                  "nothing", {x}, [](const Tensors&) { return Tensors{}; }, no_gradients)
                  .empty());
  const auto captured = [&](const auto& fn) { return error_of([&] { capture(fn, {ones({2})}); }); };
  EXPECT_EQ(
      captured([&](const Tensors& in) {
        const Tensor inside = in[0] * 2.0;
        return custom_function(
            "closes over", {in[0]}, [&](const Tensors& t) { return Tensors{t[0] * inside}; }, no_gradients);
      }),
      "custom_function 'closes over': capture: f32[2] on meta(cpu) belongs to another captured function, and is no "
      "input of this one");
  EXPECT_EQ(captured([&](const Tensors& in) {
              return custom_function(
                  "reads", {in[0]}, [&](const Tensors& t) { return Tensors{t[0] * t[0].sum().item()}; }, no_gradients);
            }),
            "custom_function 'reads': item: f32[] on meta(cpu) has no memory, so its value cannot be read");
}

}  // namespace
}  // namespace tessera
