// Layers of recurrent nets step after step: each is a product with the hidden state, then its cell.
#pragma once
#include "core/kernel.h"
#include "kernels/args/common.h"

namespace tessera::TESSERA_KERNELS {

void lstm_steps(const Call& call, Plan& plan);
void lstm_backward_steps(const Call& call, Plan& plan);
void gru_steps(const Call& call, Plan& plan);
void gru_backward_steps(const Call& call, Plan& plan);
void rnn_steps(const Call& call, Plan& plan);
void rnn_backward_steps(const Call& call, Plan& plan);

}  // namespace tessera::TESSERA_KERNELS
