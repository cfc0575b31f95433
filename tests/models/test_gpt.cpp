#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "core/gpu_check.h"
#include "io/io_check.h"
#include "nn/nn_check.h"
#include "tessera/autograd.h"
#include "tessera/io.h"
#include "tessera/models.h"

namespace tessera {
namespace {

using namespace models;

GPTConfig tiny_gpt() {
  GPTConfig c;
  c.layers = 2;
  c.heads = 2;
  c.width = 12;
  c.block = 7;
  c.vocab = 11;
  return c;
}

Tensor tokens(int64_t batch, int64_t n, int64_t vocab, Generator& g) { return randint(0, vocab, {batch, n}, g); }

TEST(GPT, HasThePublishedNumberOfParameters) {
  // nanoGPT prints "number of parameters: 0.80M" without the 64 * 128 positions.
  GPTConfig c;
  c.layers = c.heads = 4;
  c.width = 128;
  c.block = 64;
  c.vocab = 65;
  c.bias = false;
  EXPECT_EQ(GPT(c).parameter_count(), 795904 + 64 * 128);
  c.tied_head = false;
  EXPECT_EQ(GPT(c).parameter_count(), 795904 + 64 * 128 + 65 * 128);
}

// By slopes in attention in place of positions: what a mask of all pairs gives, whatever the number of heads.
TEST(GPT, LearnsPlacesFromSlopes) {
  GPTConfig c{.layers = 2, .heads = 3, .width = 24, .block = 9, .vocab = 11, .bias = false, .alibi = 8};
  Generator g(3);
  GPT m(c, g);
  EXPECT_EQ(m.parameter_count(), 11 * 24 + 24 + 2 * (12 * 24 * 24 + 2 * 24));
  m.to(Float64);
  const Tensor x = tokens(2, 9, c.vocab, g);
  Tensors planes;
  for (int64_t h = 0; h < 3; ++h)
    planes.push_back((unsqueeze(arange(0, 9, 1, Float64), 0) - unsqueeze(arange(0, 9, 1, Float64), 1)) *
                     alibi_slope(h, 3));
  Tensor h = m.wte(x);
  for (const auto& block : m.blocks) {
    const Tensor qkv = block->attention->qkv(block->norm1(h));
    h = h + block->attention->out(attention_qkv(qkv, 3, {.mask = stack(planes, 0), .causal = true}));
    h = h + block->down(gelu_tanh(block->up(block->norm2(h))));
  }
  EXPECT_LT(distance(m(x), matmul(m.norm(h), m.head.transpose(0, 1))), 1e-12);
  c.alibi = 65;
  EXPECT_EQ(error_of([&] { GPT(c, g); }), "GPT: alibi = 65 is not in [0, 64]");
}

TEST(GPT, CountsTheWorkOfAStep) {
  GPTConfig c{.layers = 4, .heads = 4, .width = 128, .block = 64, .vocab = 65, .bias = false};
  // Weights of 4 blocks (12 * 128^2 each) and of the head; attention: 2 products of on average 32 keys, 3 times.
  const double expected = 6.0 * 768 * (4 * 12 * 128 * 128 + 65 * 128) + 3 * 2 * 2.0 * 768 * 32 * 128 * 4;
  EXPECT_EQ(GPT(c).training_flops(768), expected);
  c.tied_head = false;
  EXPECT_EQ(GPT(c).training_flops(768), expected);
}

TEST(GPT, IsItsBlocksBetweenEmbeddings) {
  Generator g(1);
  for (const bool tied : {false, true}) {
    GPTConfig c = tiny_gpt();
    c.tied_head = tied;
    GPT m(c, g);
    m.to(Float64);
    const Tensor x = tokens(3, 5, c.vocab, g);
    Tensor h = m.wte(x) + m.wpe(arange(0, 5));
    for (const auto& block : m.blocks) h = block(h);
    EXPECT_LT(distance(m(x), matmul(m.norm(h), m.head.transpose(0, 1))), 1e-10);
    EXPECT_EQ(same(m.head, m.wte->weight), tied);
  }
}

TEST(GPT, SeesNoFuture) {
  Generator g(2);
  const GPT m(tiny_gpt(), g);
  const Tensor a = tokens(1, 7, 11, g), b = a.clone();
  b.data<int64_t>()[4] = (b.data<int64_t>()[4] + 1) % 11;
  const Tensor x = m(a), y = m(b);
  EXPECT_LT(distance(x.slice(1, 0, 4), y.slice(1, 0, 4)), 1e-6);
  EXPECT_GT(distance(x.slice(1, 4, 7), y.slice(1, 4, 7)), 1e-3);
}

TEST(GPT, StartsAtTheLossOfAUniformGuess) {
  Generator g(3);
  GPTConfig c = tiny_gpt();
  c.init_std = 0.02;
  const GPT m(c, g);
  const Tensor x = tokens(8, 7, 11, g), y = tokens(8, 7, 11, g);
  EXPECT_NEAR(m.loss(x, y).item(), std::log(11.0), 0.1);
}

TEST(GPT, LossAndBackwardInOne) {
  std::vector<std::pair<Device, DType>> all{{cpu(), Float32}};
  if (card().is_gpu()) all.insert(all.end(), {{card(), Float32}, {card(), BFloat16}});
  for (const auto& [device, dtype] : all) {
    Generator g(6);
    GPTConfig c = tiny_gpt();
    c.vocab = device.is_gpu() ? 4099 : 11;  // long enough for one pass
    GPT m(c, g);
    m.to(device);
    const Tensor x = tokens(8, 7, c.vocab, g).to(device);
    Tensor y = tokens(8, 7, c.vocab, g);
    for (int64_t i = 0; i < 22; ++i) y.data<int64_t>()[i] = -100;  // targets that do not count, all of a part's
    y = y.to(device);
    const auto gradients = [&](bool at_once, double weight, bool by_tensor = false, int64_t most_bytes = 1 << 30) {
      for (const Tensor& p : m.parameters()) p.set_grad({});
      std::optional<amp::Autocast> region;
      if (dtype != Float32) region.emplace(dtype);
      double value;
      if (at_once) {
        const Tensor loss = by_tensor ? m.loss_and_backward(x, y, full({}, weight, Float32, device), most_bytes)
                                      : m.loss_and_backward(x, y, weight);
        EXPECT_FALSE(loss.requires_grad());
        value = loss.item();
      } else {
        const Tensor loss = m.loss(x, y);
        (loss * weight).backward();
        value = loss.item();
      }
      std::vector<double> all{value};
      for (const Tensor& p : m.parameters()) {
        const auto v = p.grad().to(cpu()).to_vector<double>();
        all.insert(all.end(), v.begin(), v.end());
      }
      return all;
    };
    for (const double weight : {1.0, 0.025}) {
      const auto want = gradients(false, weight), got = gradients(true, weight);
      const auto expect_near = [&](const std::vector<double>& values) {
        double difference = 0, size = 0;
        for (size_t i = 1; i < want.size(); ++i) {
          difference += std::pow(values[i] - want[i], 2);
          size += std::pow(want[i], 2);
        }
        EXPECT_NEAR(values[0], want[0], 1e-5);
        EXPECT_LT(std::sqrt(difference / size), dtype == Float32 ? 1e-6 : 1e-2) << name(dtype);
      };
      expect_near(got);
      EXPECT_EQ(gradients(true, weight, true), got);
      for (int64_t rows : {5, 20, 55}) expect_near(gradients(true, weight, true, rows * c.vocab * 4));
    }
  }
}

TEST(GPT, RefusesWhatMakesNoModel) {
  GPTConfig c = tiny_gpt();
  c.heads = 5;
  EXPECT_EQ(error_of([&] { GPT{c}; }), "GPT: 2 layers, 5 heads, width 12, block 7, vocabulary 11 make no model");
  Generator g(4);
  const GPT m(tiny_gpt(), g);
  EXPECT_EQ(error_of([&] { m(tokens(1, 8, 11, g)); }), "GPT: takes [batch, at most 7] tokens, not [1, 8]");
  EXPECT_THROW(m(tensor<int64_t>({11}, {1, 1})), Error);
}

TEST(Generate, IsDecidedByItsSeed) {
  Generator g(5);
  const GPT m(tiny_gpt(), g);
  EXPECT_EQ(generate(m, {1, 2}, 40, {.seed = 7}), generate(m, {1, 2}, 40, {.seed = 7}));
  EXPECT_NE(generate(m, {1, 2}, 40, {.seed = 7}), generate(m, {1, 2}, 40, {.seed = 8}));
  EXPECT_EQ(generate(m, {}, 10, {.temperature = 0}), generate(m, {0}, 10, {.top_k = 1, .seed = 3}));
  EXPECT_EQ(generate(m, {1}, 0).size(), 0u);
  const std::vector<int32_t> longer(20, 3), end(longer.end() - 7, longer.end());  // only the last block counts
  EXPECT_EQ(generate(m, longer, 9, {.temperature = 0}), generate(m, end, 9, {.temperature = 0}));
}

TEST(Generate, DrawsAmongTheMostProbable) {
  Generator g(6);
  const GPT m(tiny_gpt(), g);
  NoGrad guard;
  const std::vector<int64_t> best = topk(m(tensor<int64_t>({3}, {1, 1})).reshape({11}), 3).second.to_vector<int64_t>();
  std::set<int64_t> seen;
  for (uint64_t seed = 0; seed < 60; ++seed) seen.insert(generate(m, {3}, 1, {.top_k = 3, .seed = seed})[0]);
  EXPECT_EQ(seen, std::set<int64_t>(best.begin(), best.end()));
}

TEST(Generate, StopsWhenTold) {
  Generator g(7);
  GPT m(tiny_gpt(), g);
  int calls = 0;
  EXPECT_EQ(generate(m, {1}, 10, {}, [&](int32_t) { return ++calls < 3; }).size(), 3u);
  EXPECT_TRUE(m.training());
  EXPECT_THROW(generate(m, {1}, 10, {.temperature = -1}), Error);
  EXPECT_THROW(generate(m, {1}, 10, {.top_k = -1}), Error);
  EXPECT_THROW(generate(m, {11}, 1), Error);
}

// The model's weights in Hugging Face's names and layout.
StateDict as_hugging_face(const GPT& m, const std::string& prefix) {
  const std::pair<std::string, std::string> names[] = {{"norm1", "ln_1"},
                                                       {"attention.qkv", "attn.c_attn"},
                                                       {"attention.out", "attn.c_proj"},
                                                       {"norm2", "ln_2"},
                                                       {"up", "mlp.c_fc"},
                                                       {"down", "mlp.c_proj"}};
  StateDict out;
  for (const auto& [name, t] : m.state_dict()) {
    std::string to = name;
    Tensor value = t;
    if (to.starts_with("h.")) {
      for (const auto& [ours, theirs] : names)
        if (size_t at = to.find("." + ours + "."); at != std::string::npos) to.replace(at + 1, ours.size(), theirs);
      if (t.dim() == 2) value = t.transpose(0, 1).clone();
    } else if (to.starts_with("norm.")) {
      to = "ln_f." + to.substr(5);
    } else if (to == "head.weight") {
      to = m.config.tied_head ? "wte.weight" : "lm_head.weight";
    }
    out[(to == "lm_head.weight" ? "" : prefix) + to] = value;
  }
  for (int64_t i = 0; i < m.config.layers; ++i)
    out[prefix + "h." + std::to_string(i) + ".attn.bias"] = ones({1, 1, 7, 7});
  return out;
}

TEST(GPT2, LoadsHuggingFaceNames) {
  TemporaryFolder folder;
  Generator g(8);
  const GPT from(tiny_gpt(), g);
  const Tensor x = tokens(2, 7, 11, g);
  for (const char* prefix : {"", "transformer."}) {
    StateDict file = as_hugging_face(from, prefix);
    if (*prefix) file["lm_head.weight"] = from.head.detach();
    save_safetensors(folder / "gpt2", file);
    const StateDict loaded = load_safetensors(folder / "gpt2");
    GPTConfig c = gpt2_config(loaded);
    EXPECT_EQ(c.heads, 1);  // 64 wide each, by default
    c.heads = 2;
    EXPECT_EQ(c, tiny_gpt());
    GPT to(c, g);
    to.load_state_dict(convert_gpt2(loaded, c.block));
    EXPECT_EQ(to(x).to_vector<float>(), from(x).to_vector<float>());
    c.block = 4;
    GPT cut(c, g);
    cut.load_state_dict(convert_gpt2(loaded, c.block));
    EXPECT_LT(distance(cut(x.slice(1, 0, 4)), from(x).slice(1, 0, 4)), 1e-6);
  }
}

TEST(MPT, LoadsHuggingFaceNames) {
  GPTConfig c{.layers = 2, .heads = 1, .width = 16, .block = 2048, .vocab = 11, .bias = false};
  c.activation = Activation::GeluErf;
  c.alibi = 8;
  Generator g(8);
  const GPT from(c, g);
  const Tensor x = tokens(2, 7, 11, g);
  StateDict file;
  for (const auto& [name, value] : from.state_dict()) {
    std::string to = name;
    for (const auto& [ours, theirs] : {std::pair{"h.", "blocks."},
                                       {"attention.qkv", "attn.Wqkv"},
                                       {"attention.out", "attn.out_proj"},
                                       {"norm1", "norm_1"},
                                       {"norm2", "norm_2"},
                                       {"up", "ffn.up_proj"},
                                       {"down", "ffn.down_proj"}})
      if (const size_t at = to.find(ours); at != to.npos) to.replace(at, std::string_view(ours).size(), theirs);
    if (to.starts_with("norm.")) to = "norm_f." + to.substr(5);
    file["transformer." + (to == "head.weight" ? "wte.weight" : to)] = value;
  }
  EXPECT_TRUE(is_mpt(file));
  EXPECT_FALSE(is_mpt(from.state_dict()));
  EXPECT_EQ(mpt_config(file), c);
  GPT to(mpt_config(file), g);
  to.load_state_dict(convert_mpt(file));
  EXPECT_EQ(to(x).to_vector<float>(), from(x).to_vector<float>());
  file["transformer.blocks.1.attn.rotary"] = zeros({1});
  file.erase("transformer.norm_f.weight");
  EXPECT_EQ(error_of([&] { to.load_state_dict(convert_mpt(file)); }),
            "load_state_dict: missing: norm.weight; unexpected: blocks.1.attn.rotary");
  EXPECT_EQ(error_of([] {
              mpt_config({{"transformer.wte.weight", zeros({3, 2})}});
            }),
            "no MPT weights in Hugging Face's names (transformer.wte.weight, transformer.blocks.0...)");
}

TEST(GPT2, NamesWhatDoesNotFit) {
  Generator g(9);
  GPT m(tiny_gpt(), g);
  StateDict file = as_hugging_face(m, "");
  EXPECT_EQ(error_of([&] {
              gpt2_config({{"wte.weight", zeros({3, 2})}});
            }),
            "no GPT-2 weights in Hugging Face's names (wte.weight, wpe.weight, h.0...)");
  file["h.0.attn.c_attn.weight"] = zeros({12, 35});
  file["h.1.attn.rotary"] = zeros({1});
  file.erase("ln_f.bias");
  EXPECT_EQ(error_of([&] { m.load_state_dict(convert_gpt2(file, 7)); }),
            "load_state_dict: missing: norm.bias; unexpected: h.1.attn.rotary; mismatched: h.0.attention.qkv.weight is "
            "f32[36, 12] here and f32[35, 12] there");
  file["lm_head.weight"] = zeros({11, 12});
  EXPECT_NE(error_of([&] { m.load_state_dict(convert_gpt2(file, 7)); }).find("are tied here and differ there"),
            std::string::npos);
}

TEST(GPT, DrawsOnlyWhatTheTokenizerKnows) {
  Generator g(4);
  const GPT m(tiny_gpt(), g);
  for (const int32_t token : generate(m, {}, 200, {.vocab = 3})) EXPECT_LT(token, 3);
  EXPECT_EQ(error_of([&] { generate(m, {}, 1, {.vocab = 12}); }), "generate: 12 tokens are not in a vocabulary of 11");
}

TEST(GPT, RefusesWhatNoMachineHolds) {
  GPTConfig c;
  c.layers = 1000000000;
  EXPECT_THROW(GPT m(c), OutOfMemoryError);
}

TEST(GPT, StartsWithTheSpreadOfItsWidth) {
  GPTConfig c{.layers = 2, .heads = 4, .width = 192, .block = 64, .vocab = 300};
  auto spread = [](const Tensor& weight) {
    const Tensor w = weight.detach().to(Float64);
    return std::sqrt((w * w).mean().item());
  };
  const GPT by_width(c);
  EXPECT_NEAR(spread(by_width.wte->weight), 0.04, 0.001);               // 0.02 sqrt(768 / 192)
  EXPECT_NEAR(spread(by_width.blocks[1]->down->weight), 0.02, 0.0005);  // the same / sqrt(2 * 2)
  c.init_std = 0.3;
  EXPECT_NEAR(spread(GPT(c).wte->weight), 0.3, 0.01);
  c.init_std = -1;
  EXPECT_EQ(error_of([&] { GPT m(c); }), "GPT: a standard deviation of -1 makes no initial weights");
}

}  // namespace
}  // namespace tessera
