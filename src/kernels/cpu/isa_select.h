// Which instruction set's kernels run, and their tables; for GPUs those of the plugin whose device a call is for.
#pragma once

#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/isa/conv.h"
#include "kernels/cpu/isa/elementwise.h"
#include "kernels/cpu/isa/gemm.h"
#include "kernels/cpu/isa/norm.h"
#include "kernels/cpu/isa/optim.h"
#include "kernels/cpu/isa/peak.h"
#include "kernels/cpu/isa/pool.h"
#include "kernels/cpu/isa/random.h"
#include "kernels/cpu/isa/reduce.h"
#include "kernels/cpu/isa/softmax.h"

namespace tessera::TESSERA_KERNELS {

#ifndef TESSERA_GPU_KERNELS
enum class Isa { Baseline, Avx2, Avx512 };

/// The best instruction set of this processor, or what TESSERA_ISA (baseline, avx2 or avx512) asks for; read once.
/// Throws Error when TESSERA_ISA names something else, or what the processor lacks.
Isa isa();
const char* isa_name();
const PeakTable& peak_table();
#else
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

}  // namespace tessera::TESSERA_KERNELS
