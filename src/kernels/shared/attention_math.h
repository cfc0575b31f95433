// Bodies of the attention kernel that keeps all scores.
#pragma once
#include "kernels/shared/attention_problem.h"

namespace tessera::TESSERA_KERNELS {

void attention_math(const Call& call, Workspace& workspace);
void attention_math_backward(const Call& call, Workspace& workspace);

}  // namespace tessera::TESSERA_KERNELS
