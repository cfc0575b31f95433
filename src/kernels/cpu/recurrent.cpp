// Recurrent layers on the CPU.
#include "kernels/shared/recurrent.h"

#include "kernels/shared/tables.h"

namespace tessera::cpu_kernels {
namespace {

constexpr Kernel lstm_kernels[] = {{.name = "steps", .plan = lstm_steps}};
constexpr Kernel lstm_backward_kernels[] = {{.name = "steps", .plan = lstm_backward_steps}};
constexpr Kernel gru_kernels[] = {{.name = "steps", .plan = gru_steps}};
constexpr Kernel gru_backward_kernels[] = {{.name = "steps", .plan = gru_backward_steps}};
constexpr Kernel rnn_kernels[] = {{.name = "steps", .plan = rnn_steps}};
constexpr Kernel rnn_backward_kernels[] = {{.name = "steps", .plan = rnn_backward_steps}};

}  // namespace

std::span<const KernelTableEntry> recurrent_kernels() {
  static constexpr KernelTableEntry entries[] = {
      {"lstm_layer", lstm_kernels}, {"lstm_layer_backward", lstm_backward_kernels},
      {"gru_layer", gru_kernels},   {"gru_layer_backward", gru_backward_kernels},
      {"rnn_layer", rnn_kernels},   {"rnn_layer_backward", rnn_backward_kernels}};
  return entries;
}

}  // namespace tessera::cpu_kernels
