// The tables of kernels: of the instruction set that runs, or of the plugin whose device a call is for.
#pragma once

#include "kernels/args/attention.h"
#include "kernels/args/conv.h"
#include "kernels/args/elementwise.h"
#include "kernels/args/gemm.h"
#include "kernels/args/lines.h"
#include "kernels/args/norm.h"
#include "kernels/args/optim.h"
#include "kernels/args/pool.h"
#include "kernels/args/random.h"
#include "kernels/args/recurrent.h"
#include "kernels/args/reduce.h"
#include "kernels/args/softmax.h"

namespace tessera::TESSERA_KERNELS {

#ifdef TESSERA_GPU_KERNELS
/// The stream and device of the call that this thread is dispatching.
Executor& executor();
#endif

const ElementwiseTable& elementwise_table();
const ReduceTable& reduce_table();
const PoolTable& pool_table();
const RandomTable& random_table();
const GemmTable& gemm_table();
const ConvTable& conv_table();
const AttentionTable& attention_table();
const NormTable& norm_table();
const SoftmaxTable& softmax_table();
const OptimTable& optim_table();
const RecurrentTable& recurrent_table();
const LinesTable& lines_table();

}  // namespace tessera::TESSERA_KERNELS
