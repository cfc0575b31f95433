#include <fmt/format.h>

#include "cases/cases.h"
#include "core/net_attrs.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

// x, the weight and both states; or what the gradient takes: of the outputs, the weight, the cell state, cells, gates.
Tensors of_layer(int64_t steps, int64_t batch, int64_t hidden, Generator& g) {
  return {uniform64({steps, batch, 4 * hidden}, g), uniform64({4 * hidden, hidden}, g, -0.5, 0.5),
          uniform64({batch, hidden}, g), uniform64({batch, hidden}, g)};
}
Tensors of_gradient(int64_t steps, int64_t batch, int64_t hidden, Generator& g) {
  return {uniform64({steps, batch, hidden}, g),          uniform64({batch, hidden}, g),
          uniform64({4 * hidden, hidden}, g, -0.5, 0.5), uniform64({batch, hidden}, g),
          uniform64({steps, batch, hidden}, g),          uniform64({steps, batch, 4 * hidden}, g, 0.1, 0.9)};
}

struct Size {
  int64_t steps, batch, hidden;
};
constexpr Size kSizes[] = {{3, 2, 5}, {1, 2, 3}, {4, 3, 17}, {5, 1, 40}, {3, 9, 130}};

void add_gru_cases(std::vector<OpCase>& all) {
  const auto of_layer = [](const Size& s, bool bias, Generator& g) {
    const int64_t n = s.hidden;
    return Tensors{uniform64({s.steps, s.batch, 3 * n}, g), uniform64({3 * n, n}, g, -0.5, 0.5),
                   bias ? uniform64({3 * n}, g) : Tensor(), uniform64({s.batch, n}, g)};
  };
  const auto of_gradient = [](const Size& s, Generator& g) {
    const int64_t n = s.hidden;
    return Tensors{uniform64({s.steps, s.batch, n}, g), uniform64({3 * n, n}, g, -0.5, 0.5),
                   uniform64({s.steps, s.batch, n}, g), uniform64({s.batch, n}, g),
                   uniform64({s.steps, s.batch, 4 * n}, g, 0.1, 0.9)};
  };
  for (const Size& s : kSizes)
    for (const bool reverse : {false, true}) {
      const std::string label =
          fmt::format("{}x{}x{}{}", s.steps, s.batch, s.hidden, reverse ? ", reverse, without bias" : "");
      all.push_back({.op = "gru_layer",
                     .label = label,
                     .attrs = RecurrentAttrs{reverse},
                     .inputs = [=](Generator& g) { return of_layer(s, !reverse, g); },
                     .gradients = s.hidden >= 17 ? 0u
                                  : reverse      ? 0b1011u
                                                 : 0b1111u,
                     .symbolic = false});
      all.push_back({.op = "gru_layer_backward",
                     .label = label,
                     .attrs = RecurrentAttrs{reverse},
                     .inputs = [=](Generator& g) { return of_gradient(s, g); },
                     .symbolic = false});
    }
  all.push_back({.op = "gru_layer",
                 .label = "100x32x256",
                 .attrs = RecurrentAttrs{},
                 .inputs =
                     [=](Generator& g) {
                       return of_layer({100, 32, 256}, true, g);
                     },
                 .dtypes = {Float32},
                 .benchmark = true,
                 .flops = 2.0 * 100 * 32 * 768 * 256});
}

void add_rnn_cases(std::vector<OpCase>& all) {
  for (const auto& [steps, batch, hidden] : kSizes)
    for (const bool reverse : {false, true})
      for (const bool relu : {false, true}) {
        const std::string label =
            fmt::format("{}x{}x{}{}{}", steps, batch, hidden, relu ? ", ReLU" : "", reverse ? ", reverse" : "");
        all.push_back({.op = "rnn_layer",
                       .label = label,
                       .attrs = RnnAttrs{reverse, relu},
                       .inputs =
                           [=](Generator& g) {
                             return Tensors{uniform64({steps, batch, hidden}, g),
                                            uniform64({hidden, hidden}, g, -0.5, 0.5), uniform64({batch, hidden}, g)};
                           },
                       .gradients = hidden < 17 ? 0b111u : 0u,
                       .symbolic = false});
        all.push_back({.op = "rnn_layer_backward",
                       .label = label,
                       .attrs = RnnAttrs{reverse, relu},
                       .inputs =
                           [=](Generator& g) {
                             return Tensors{uniform64({steps, batch, hidden}, g),
                                            uniform64({hidden, hidden}, g, -0.5, 0.5),
                                            uniform64({steps, batch, hidden}, g)};
                           },
                       .symbolic = false});
      }
}

// Tests of their own run these where there is a kernel: what is kept for backward is its secret.
void add_net_cases(std::vector<OpCase>& all) {
  all.push_back(
      {.op = "recurrent_net",
       .label = "one layer",
       .attrs = NetAttrs{.biases = false},
       .inputs =
           [](Generator& g) {
             return Tensors{uniform64({3, 2, 5}, g), {}, {}, uniform64({1, 16, 5}, g), uniform64({1, 16, 4}, g)};
           },
       .dtypes = {},
       .symbolic = false});
  all.push_back({.op = "recurrent_net_backward",
                 .label = "one layer",
                 .attrs = NetAttrs{.biases = false},
                 .inputs =
                     [](Generator& g) {
                       return Tensors{
                           uniform64({3, 2, 4}, g), {}, {}, uniform64({3, 2, 5}, g), {}, {}, uniform64({3, 2, 4}, g),
                           zeros({0}, UInt8)};
                     },
                 .dtypes = {},
                 .symbolic = false});
}

}  // namespace

std::vector<OpCase> recurrent_cases() {
  std::vector<OpCase> all;
  for (const auto& [steps, batch, hidden] : kSizes)
    for (const bool reverse : {false, true}) {
      const std::string label = fmt::format("{}x{}x{}{}", steps, batch, hidden, reverse ? ", reverse" : "");
      all.push_back({.op = "lstm_layer",
                     .label = label,
                     .attrs = RecurrentAttrs{reverse},
                     .inputs = [=](Generator& g) { return of_layer(steps, batch, hidden, g); },
                     .gradients = hidden < 17 ? 0b1111u : 0u,
                     .symbolic = false});
      all.push_back({.op = "lstm_layer_backward",
                     .label = label,
                     .attrs = RecurrentAttrs{reverse},
                     .inputs = [=](Generator& g) { return of_gradient(steps, batch, hidden, g); },
                     .symbolic = false});
    }
  add_gru_cases(all);
  add_rnn_cases(all);
  add_net_cases(all);
  all.push_back({.op = "lstm_layer_backward",
                 .label = "of the output alone",
                 .attrs = RecurrentAttrs{},
                 .inputs =
                     [](Generator& g) {
                       Tensors in = of_gradient(3, 2, 5, g);
                       in[1] = {};
                       return in;
                     },
                 .symbolic = false});
  all.push_back({.op = "lstm_layer",
                 .label = "100x32x256",
                 .attrs = RecurrentAttrs{},
                 .inputs = [](Generator& g) { return of_layer(100, 32, 256, g); },
                 .dtypes = {Float32},
                 .benchmark = true,
                 .flops = 2.0 * 100 * 32 * 1024 * 256});
  return all;
}

}  // namespace tessera
