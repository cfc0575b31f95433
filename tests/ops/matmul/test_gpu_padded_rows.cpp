// Matrices of halves and f32 whose rows are padded to whole 16 bytes on a GPU: nobody sees it but by strides and times.
#include <array>

#include "io/temporary_folder.h"
#include "ops/call_plan.h"
#include "ops/gpu_against_float64.h"
#include "ops/lower_copy.h"
#include "ops/op_table.h"
#include "ops/optim.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

class GpuPaddedRows : public GpuAgainstFloat64 {
 protected:
  /// Of 64 KB and more.
  static std::vector<Shape> shapes() { return {{503, 67}, {2, 16411}, {33, 997}, {3, 251, 65}, {480, 1, 79}}; }
  /// To whole 16 bytes, rows of 1 KB and more that end off those to whole 128.
  static int64_t padded(int64_t length, DType dtype) {
    const auto bytes = static_cast<int64_t>(size_of(dtype));
    const int64_t unit = (length * bytes % 16 == 0 || length * bytes < 1024 ? 16 : 128) / bytes;
    return (length + unit - 1) / unit * unit;
  }
  static bool is_padded(const Tensor& t) {
    Shape shape = t.shape();
    shape.back() = padded(t.size(-1), t.dtype());
    return t.strides() == contiguous_strides(shape) && !t.is_contiguous();
  }
  Tensor there(const Tensor& t, DType dtype = BFloat16) { return t.to(dtype).to(card()); }
};

TEST_F(GpuPaddedRows, AreWhatTheLibraryMakesOfMatrices) {
  for (const Shape& shape : shapes()) {
    const Tensor wide = values(shape, Float16).to(Float32), x = wide.to(Float16).to(card());
    EXPECT_TRUE(is_padded(x)) << to_string(shape);
    EXPECT_TRUE(is_padded(wide.to(card()).to(BFloat16)));
    EXPECT_TRUE(is_padded(gelu(x) * x + 1.0));
    EXPECT_TRUE(is_padded(x.detach()));
    EXPECT_TRUE(x.contiguous().is_contiguous() && x.clone().is_contiguous() && x.to(cpu()).is_contiguous());
    for (DType dtype : {Float16, Float32}) {
      EXPECT_TRUE(is_padded(wide.to(card()).to(dtype)) && is_padded(full(shape, 1, dtype, card())) &&
                  is_padded(rand(shape, generator, dtype, card())));
      EXPECT_TRUE(empty(shape, dtype, card()).is_contiguous() && wide.to(card()).contiguous().is_contiguous());
    }
    EXPECT_TRUE(is_padded(softmax(x, -1)) && is_padded(dropout(x, 0.5, true)) && is_padded(concat({x, x}, 0)));
    Tensor parameter = wide.to(card()).set_requires_grad();
    optim::SGD optimizer({parameter}, {.lr = 0.1});
    {
      const amp::Autocast guard(BFloat16);
      matmul(parameter, transpose(parameter, -2, -1));
    }
    const auto kept = [&] { return find_lower_copy(parameter)->fresh(parameter); };
    ASSERT_EQ(kept().dtype(), BFloat16);
    EXPECT_TRUE(is_padded(kept()));
    parameter.set_grad(full(shape, 0.5, Float32, card()));
    optimizer.step();  // writes the copy, too
    const Tensor copy = kept();
    ASSERT_TRUE(copy.defined());
    EXPECT_EQ(error(copy, parameter.detach().to(cpu()).to(BFloat16).to(Float64)), 0);
  }
  for (const Shape& shape : {Shape{503, 72}, Shape{600, 63}, Shape{40, 67}, Shape{2, 5, 61, 65}, Shape{65537}})
    EXPECT_TRUE(there(values(shape, BFloat16)).is_contiguous()) << to_string(shape);
}

TEST_F(GpuPaddedRows, HoldTheSameElements) {
  NoGrad guard;
  for (DType dtype : {Float16, BFloat16, Float32})
    for (const Shape& shape : shapes()) {
      const Tensor want = values(shape, dtype), x = there(want, dtype);
      const auto same = [&](const Tensor& got, const Tensor& here) {
        ASSERT_EQ(to_string(got.shape()), to_string(here.shape()));
        EXPECT_EQ(error(got, here), 0) << to_string(shape) << " " << name(dtype);
      };
      const int64_t n = shape.back().value();
      same(x, want);
      same(x.clone(), want);
      same(x.reshape({-1}), want.reshape({-1}));
      same(x.reshape({-1, n}), want.reshape({-1, n}));
      same(x.transpose(-2, -1), want.transpose(-2, -1));
      same(x.transpose(-2, -1).contiguous(), want.transpose(-2, -1));
      same(x.slice(-1, 1, n - 1), want.slice(-1, 1, n - 1));
      same(x.slice(0, 0, 1).squeeze(0), want.slice(0, 0, 1).squeeze(0));
      same(x.to(Float32), want);
      same(x.to(Float32).to(dtype == Float16 ? BFloat16 : Float16),
           want.to(Float32).to(dtype == Float16 ? BFloat16 : Float16).to(Float64));
      Tensor dense = full(shape, 7, dtype, card()).contiguous();
      same(dense.copy_(x), want);
      const Tensor here = want.to(dtype), twice = (here + here).to(Float64);
      for (const Tensor& sum : {x + x, x + dense, dense + x, dense + dense}) same(sum, twice);
      for (const Tensor& sum : {x + x.to(Float32), dense.to(Float32) + x}) same(sum, want * 2.0);
      Tensor again = there(values(shape, dtype), dtype);
      same(again.copy_(dense), want);
      Tensor inside = full({503, padded(n, dtype) + 5}, 7, dtype, card());  // whose neighbours nobody may write
      if (shape.rank() == 2 && shape[0].value() == 503) {
        for (int64_t begin : {0, 1, 5}) {
          inside.fill_(7);
          same(inside.slice(1, begin, begin + n).copy_(x), want);
          inside.slice(1, begin, begin + n).mul_(x);
          same(inside.slice(1, begin, begin + n),
               want.to(dtype).to(Float32).mul_(want.to(Float32)).to(dtype).to(Float64));
          EXPECT_EQ(error(inside.slice(1, begin + n, inside.size(1)),
                          full({503, padded(n, dtype) + 5 - n - begin}, 7, Float64)),
                    0);
        }
      }
    }
}

TEST_F(GpuPaddedRows, ComeInPieces) {
  const Tensor want = rand({300'007, 67}, generator), x = want.to(card());
  EXPECT_TRUE(is_padded(x));
  EXPECT_EQ(error(x, want.to(Float64)), 0);
}

TEST_F(GpuPaddedRows, GiveWhatDenseOnesGive) {
  for (DType dtype : {Float16, BFloat16, Float32})
    for (const Shape& shape : {Shape{503, 67}, Shape{3, 251, 65}}) {
      const Tensor a = values(shape, dtype), b = values(shape, dtype), bias = values({shape.back()}, dtype);
      const auto f = [&](const Tensors& in) {
        const Tensor y = gelu_tanh(in[0] + in[2]) * in[1], z = tanh(y) + sigmoid(in[1]);
        return Tensors{y,
                       z,
                       softmax(z, -1),
                       layer_norm(z, in[2], in[2]),
                       exp(z) / 2.0 + in[1].to(Float32),
                       where(gt(in[0], in[1]), y, z),
                       sum(z, {-1}),
                       matmul(z, in[1].transpose(-2, -1)),
                       matmul(z.transpose(-2, -1), in[1])};
      };
      const auto on = [&](bool dense) {
        Tensors in;
        for (const Tensor& t : {a, b, bias}) {
          const Tensor moved = there(t, dtype);
          in.push_back((dense ? moved.contiguous() : moved).detach().set_requires_grad());
        }
        Tensors out = f(in), seeds;
        for (const Tensor& y : out) seeds.push_back(full(y.shape(), 0.125, y.dtype(), card()));
        const Tensors gradients = grad(out, in, seeds);
        out.append(gradients.begin(), gradients.end());
        for (Tensor& t : out) t = t.detach().to(cpu()).to(Float64);
        return out;
      };
      const Tensors got = on(false), want = on(true);
      for (size_t i = 0; i < got.size(); ++i) {  // sums may be added up in another order
        const bool exact = i < 2 || i == 4 || i == 5;
        const double limit = dtype == Float32 ? 1e-5 : dtype == Float16 ? 2e-3 : 1e-2;
        EXPECT_LE(relative_error(got[i], want[i]), exact ? 0 : limit)
            << i << " " << to_string(shape) << " " << name(dtype);
      }
    }
}

// The same kernel gives the same bits for matrices that their user fills up with zeros.
TEST_F(GpuPaddedRows, MultiplyAsThoseWithZeros) {
  NoGrad guard;
  const auto filled = [](const Tensor& t) {
    const int64_t unit = 16 / static_cast<int64_t>(size_of(t.dtype()));
    const auto fill = [unit](int64_t n) { return (unit - n % unit) % unit; };
    return pad(t, {0, 0}, {fill(t.size(0)), fill(t.size(1))}).contiguous();
  };
  const auto bytes = [](const Tensor& t) {
    const Tensor here = t.contiguous().to(cpu());
    return std::string(static_cast<const char*>(here.data_ptr()), here.numel() * size_of(here.dtype()));
  };
  const auto compare = [&](const char* op, Tensor a, Tensor b, bool turn_a, bool turn_b) {
    Tensor wide_a = filled(a), wide_b = filled(b);
    for (Tensor* t : {&a, &wide_a})
      if (turn_a) *t = t->transpose(0, 1);
    for (Tensor* t : {&b, &wide_b})
      if (turn_b) *t = t->transpose(0, 1);
    int taken = 0;
    for (const char* kernel : {"gemm", "sm90", "tf32"}) {
      allow_tf32(kernel == std::string_view("tf32"));
      const ForceKernel forced(op, kernel);
      try {
        const Tensor got = dispatch_one(find_op(op), {a, b}), want = dispatch_one(find_op(op), {wide_a, wide_b});
        EXPECT_TRUE(bytes(got) == bytes(want.slice(0, 0, a.size(0)).slice(1, 0, b.size(1))))
            << op << " by " << kernel << ": " << describe(a) << " x " << describe(b) << turn_a << turn_b;
        ++taken;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("which is forced"), std::string::npos) << error.what();
      }
    }
    allow_tf32(false);
    EXPECT_GE(taken, 1);
  };
  const bool emulated = card().type == DeviceType::HIP;
  for (int64_t n : emulated ? std::vector<int64_t>{131} : std::vector<int64_t>{1001, 4095, 50257})
    for (const auto& [rows, columns, depth] : {std::array<int64_t, 3>{n, 136, 192}, {136, n, 192}, {136, 200, n}})
      for (const auto& [turn_a, turn_b] : {std::pair{false, false}, {false, true}, {true, false}})
        for (DType dtype : {Float16, BFloat16, Float32}) {
          const auto made = [&](Shape shape, bool turned) {
            if (turned) std::swap(shape[0], shape[1]);
            const Tensor wide = randn(shape, generator, Float32, card());
            return dtype == Float32 ? wide : wide.to(dtype);
          };
          const Tensor a = made({rows, depth}, turn_a), b = made({depth, columns}, turn_b);
          compare("matmul", a, b, turn_a, turn_b);
          if (dtype != Float32) compare("matmul_wide", a, b, turn_a, turn_b);
        }
}

TEST_F(GpuPaddedRows, AreSavedTrainedAndLoaded) {
  Generator g(5);
  const TemporaryFolder folder;
  const std::string path = folder / "padded_rows";
  for (DType dtype : {Float32, BFloat16}) {
    nn::Linear near(131, 257, true, g), moved(131, 257, true, g);
    moved.load_state_dict(near.state_dict());
    near.to(dtype);
    moved.to(card());
    moved.to(dtype);
    EXPECT_FALSE(moved.weight.is_contiguous());
    const Tensor x = randn({300, 131}, g).to(dtype);
    for (nn::Linear* m : {&near, &moved}) {
      optim::AdamW optimizer(m->parameters(), {.lr = 1e-2});
      for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        sum(square((*m)(x.to(m->weight.device())).to(Float32))).backward();
        optimizer.step();
      }
    }
    EXPECT_LE(error(moved.weight.detach(), near.weight.detach().to(Float64)), dtype == Float32 ? 1e-4 : 2e-2);
    save_checkpoint(path, {moved.state_dict(), {}});
    nn::Linear loaded(131, 257, true, g);
    loaded.to(card());
    loaded.to(dtype);
    loaded.load_state_dict(load_checkpoint(path).tensors);
    EXPECT_EQ(error(loaded.weight.detach(), moved.weight.detach().to(cpu()).to(Float64)), 0);
  }
}

// Walked by the rows of the states, or densely; the gaps, here a wider tensor's columns, are neither read nor written.
TEST_F(GpuPaddedRows, AreSteppedInAnyLayouts) {
  NoGrad guard;
  for (int64_t length : {5, 67, 68, 1003})
    for (const std::array<int64_t, 4>& gaps : {std::array<int64_t, 4>{5, 5, 5, 5},
                                               {5, 0, 5, 5},
                                               {0, 5, 0, 0},
                                               {5, 5, 0, 0},
                                               {5, 5, 13, 0},
                                               {3, 1, 13, 5},
                                               {0, 0, 5, 5}}) {
      Tensors wides;
      const auto inside = [&](const Tensor& want, DType dtype, int64_t gap) {
        wides.push_back(full({want.size(0), length + gap}, 7, dtype, card()).contiguous());
        return wides.back().slice(1, 0, length).copy_(want.to(dtype).to(card()));
      };
      for (DType dtype : {BFloat16, Float32, Float64}) {
        const DType kept = dtype == Float64 ? Float64 : Float32;
        wides.clear();
        const Shape shape{37, length};
        const Tensor p = values(shape, dtype), g = values(shape, dtype), m = values(shape, Float32),
                     v = square(values(shape, BFloat16));
        const Tensor there[] = {inside(p, dtype, gaps[0]), inside(g, dtype, gaps[1]), inside(m, kept, gaps[2]),
                                inside(v, kept, gaps[3])};
        const auto number = [](double x, Device device) { return full({}, x, Float32, device); };
        const double squares = sum(square(g)).item();
        EXPECT_NEAR(global_norm({there[1]}).to(cpu()).item(), std::sqrt(squares), 1e-5 * std::sqrt(squares));
        for (const bool adam : {true, false}) {
          const OptimAttrs attrs{.weight_decay = 0.1, .momentum = adam ? 0 : 0.9};
          const auto step = [&](const Tensor& p, const Tensor& g, const Tensor& m, const Tensor& v) {
            const StepInputs inputs{number(0.1, p.device()), {}, {}};
            if (adam) adam_({p}, {m}, {v}, number(3, p.device()), {g}, inputs, attrs);
            else sgd_({p}, {m}, number(3, p.device()), {g}, inputs, attrs);
          };
          step(there[0], there[1], there[2], there[3]);
          step(p, g, m, v);
          const double limit = dtype == BFloat16 ? 1e-2 : 1e-5;
          EXPECT_LE(error(there[0], p), limit);
          EXPECT_LE(error(there[2], m), dtype == BFloat16 && !adam ? 1e-3 : 1e-5);
          EXPECT_LE(error(there[3], v), 1e-5);
          EXPECT_EQ(error(there[1], g), 0);
        }
        const Tensor found = full({}, 0, Bool, card());
        unscale_({there[1]}, found, number(0.5, card()));
        EXPECT_EQ(error(there[1], g * 2.0), 0);
        EXPECT_EQ(found.to(cpu()).item(), 0);
        for (const Tensor& wide : wides) {
          const Tensor behind = wide.slice(1, length, wide.size(1));
          EXPECT_TRUE(behind.numel() == 0 || error(behind, full(behind.shape(), 7, Float64)) == 0) << length;
        }
      }
    }
}

// States lie as their parameters do, and are the same tensors to files, to a CPU and to dense ones.
TEST_F(GpuPaddedRows, HaveStatesThatAreSavedAndLoaded) {
  const TemporaryFolder folder;
  const std::string path = folder / "states";
  const Tensor p = values({9, 4099}, BFloat16), g = values({9, 4099}, BFloat16);
  const Tensor brief = there(values({503, 67}, BFloat16)).set_requires_grad();
  for (const auto& [name, state] : optim::AdamW({brief}).state_dict()) EXPECT_TRUE(state.is_contiguous()) << name;
  struct Trained {
    Tensor parameter;
    std::shared_ptr<optim::Optimizer> optimizer;
    void step(const Tensor& gradient) {
      parameter.set_grad(gradient.to(BFloat16).to(parameter.device()));
      optimizer->step();
    }
  };
  for (const bool adam : {true, false}) {
    const auto trained = [&](Device device, bool dense) {
      Tensor t = p.to(BFloat16).to(device);
      t = (dense ? t.contiguous() : t).detach().set_requires_grad();
      if (adam)
        return Trained{t, std::make_shared<optim::AdamW>(std::vector<Tensor>{t}, optim::AdamWOptions{.lr = 0.1})};
      return Trained{
          t, std::make_shared<optim::SGD>(std::vector<Tensor>{t}, optim::SGDOptions{.lr = 0.1, .momentum = 0.9})};
    };
    Trained padded = trained(card(), false), dense = trained(card(), true), near = trained(cpu(), true);
    for (const auto& [name, state] : padded.optimizer->state_dict()) {
      EXPECT_EQ(state.dim() == 2, state.strides() == padded.parameter.strides()) << name;
      EXPECT_TRUE(state.dim() == 0 || error(state, zeros({9, 4099}, Float64)) == 0);
    }
    for (const auto& [name, state] : dense.optimizer->state_dict()) EXPECT_TRUE(state.is_contiguous());
    for (Trained* t : {&padded, &dense, &near})
      for (int i = 0; i < 2; ++i) t->step(g);
    for (Trained* from : {&padded, &dense, &near}) {
      save_checkpoint(path, {from->optimizer->state_dict(), {}});
      for (Trained other : {trained(card(), false), trained(card(), true), trained(cpu(), true)}) {
        other.parameter.detach().copy_(from->parameter.detach());
        other.optimizer->load_state_dict(load_checkpoint(path).tensors);
        const StateDict there = other.optimizer->state_dict();
        for (const auto& [name, state] : from->optimizer->state_dict())
          EXPECT_EQ(error(there.at(name), state.to(cpu()).to(Float64)), 0) << name;
        other.step(g);
        Trained again = trained(cpu(), true);
        again.parameter.detach().copy_(from->parameter.detach());
        again.optimizer->load_state_dict(load_checkpoint(path).tensors);
        again.step(g);
        EXPECT_LE(error(other.parameter.detach(), again.parameter.detach().to(Float64)), 1e-2);
      }
    }
    DeviceGraph graph;  // steps of what is padded are replayed
    Trained eager = trained(card(), false), captured = trained(card(), false);
    for (Trained* t : {&eager, &captured}) t->step(g);
    graph.capture(card(), [&] { captured.optimizer->step(); });
    const Tensor before = captured.parameter.detach().clone();
    for (int i = 0; i < 2; ++i) graph.replay(), eager.optimizer->step();
    EXPECT_EQ(error(captured.parameter.detach(), eager.parameter.detach().to(cpu()).to(Float64)), 0);
    EXPECT_GT(error(captured.parameter.detach(), before.to(cpu()).to(Float64)), 0);
  }
}

TEST_F(GpuPaddedRows, MayBeCaptured) {
  NoGrad guard;
  const Tensor x = values({503, 67}, Float32).to(Float32).to(card());
  Tensor y;
  DeviceGraph graph;
  graph.capture(card(), [&] { y = gelu(x.to(BFloat16)) * 2.0; });
  graph.replay();
  EXPECT_TRUE(is_padded(y));
  EXPECT_EQ(error(y, (gelu(x.to(BFloat16)) * 2.0).to(cpu()).to(Float64)), 0);
}

}  // namespace
}  // namespace tessera
