// Group and batch norm: a translation unit beside that of layer norm.
#pragma once

#include "kernels/args/norm.h"
#include "tile/base.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

void group_norm(const GroupNormArgs& a, Executor& e);
void group_norm_backward(const GroupNormBackwardArgs& a, Executor& e);
long long group_norm_backward_workspace(long long batch, long long channels);
long long plane_parts_workspace(long long sets, long long elements);
long long batch_norm_workspace(long long channels, long long elements);
void batch_norm(const BatchNormArgs& a, Executor& e);
void batch_norm_backward(const BatchNormBackwardArgs& a, Executor& e);
void move_estimates(const EstimatesArgs& a, Executor& e);

}  // namespace tessera::cpu_kernels::TESSERA_ISA
