// Recurrent layers against PyTorch's.
#include "tessera/nn_recurrent.h"

#include <gtest/gtest.h>

#include "io/io_check.h"
#include "models/fixture.h"

namespace tessera {
namespace {

using nn::RecurrentConfig;

const RecurrentConfig kTwoLayers{.in = 7, .hidden = 5, .layers = 2, .bidirectional = true};

TEST(Recurrent, AgreesWithPyTorch) {
  const auto unchanged = [](const StateDict& file) { return file; };
  const std::pair<const char*, std::shared_ptr<nn::Module>> all[] = {
      {"rnn", std::make_shared<nn::RNN>(kTwoLayers, true)},
      {"gru", std::make_shared<nn::GRU>(kTwoLayers)},
      {"lstm", std::make_shared<nn::LSTM>(kTwoLayers)}};
  for (const auto& [name, layer] : all) {
    SCOPED_TRACE(name);
    expect_agrees(*layer, small_fixture(name), unchanged);
  }
}

TEST(Recurrent, StartsAsPyTorchDoes) {
  Generator g(1);
  const nn::GRU gru({.in = 30, .hidden = 16}, g);
  EXPECT_EQ(gru.parameter_count(), 3 * 16 * (30 + 16 + 2));
  for (const auto& [name, t] : gru.named_parameters()) {
    EXPECT_LE(amax(abs(t)).item(), 0.25) << name;  // 1 / sqrt(16)
    EXPECT_GT(amax(abs(t)).item(), 0.2) << name;
  }
  const nn::LSTM plain({.in = 3, .hidden = 2, .bias = false});
  EXPECT_EQ(plain.state_dict().size(), 2u);
  EXPECT_TRUE(plain.state_dict().contains("weight_hh_l0"));
}

TEST(Recurrent, BatchFirstExchangesTheOutersDims) {
  Generator a(2), b(2), g(3);
  RecurrentConfig c = kTwoLayers;
  const nn::LSTM steps_first(c, a);
  c.batch_first = true;
  const nn::LSTM batch_first(c, b);
  const Tensor x = randn({4, 3, 7}, g);
  const Tensors want = steps_first(Tensors{x}), got = batch_first(Tensors{x.transpose(0, 1)});
  EXPECT_EQ(to_string(got[0].shape()), "[3, 4, 10]");
  EXPECT_EQ(got[0].transpose(0, 1).to_vector<float>(), want[0].to_vector<float>());
  for (size_t i : {1, 2}) EXPECT_EQ(got[i].to_vector<float>(), want[i].to_vector<float>());
}

TEST(Recurrent, DropsBetweenLayersInTraining) {
  Generator a(4), b(4), g(5);
  RecurrentConfig c{.in = 7, .hidden = 64, .layers = 2};
  const nn::LSTM plain(c, a);
  c.dropout = 0.5;
  nn::LSTM drops(c, b);
  const Tensor x = randn({4, 3, 7}, g), hidden = randn({2, 3, 64}, g), cell = randn({2, 3, 64}, g);
  const Tensors want = plain(Tensors{x, hidden, cell}), other = drops(Tensors{x, hidden, cell});
  EXPECT_EQ(to_string(other[1].shape()), "[2, 3, 64]");
  EXPECT_EQ(to_string(other[2].shape()), "[2, 3, 64]");
  // The first layer is the same, what it gives to the second is not.
  for (size_t i : {1, 2}) {
    EXPECT_EQ(other[i].select(0, 0).to_vector<float>(), want[i].select(0, 0).to_vector<float>());
    EXPECT_GT(distance(other[i].select(0, 1), want[i].select(0, 1)), 0.01);
  }
  drops.eval();
  EXPECT_EQ(drops(Tensors{x, hidden, cell})[0].to_vector<float>(), want[0].to_vector<float>());
}

TEST(Recurrent, RefusesWhatMakesNoLayer) {
  EXPECT_EQ(error_of([] { nn::LSTM({.in = 3, .hidden = 0}); }),
            "LSTM: 3 to 0 features, 1 layers, dropout 0 make no layer");
  EXPECT_THROW(nn::GRU({.in = 3, .hidden = 2, .dropout = 1}), Error);
  const nn::RNN rnn({.in = 3, .hidden = 2});
  EXPECT_THROW(rnn(Tensors{zeros({4, 2, 5})}), Error);  // 5 features
  EXPECT_THROW(rnn(Tensors{zeros({4, 2, 3}), zeros({1, 2, 3})}), Error);
  EXPECT_THROW(rnn(Tensors{zeros({4, 2, 3}), zeros({1, 2, 2}), zeros({1, 2, 2})}), Error);  // no cell
}

}  // namespace
}  // namespace tessera
