// Bodies of the attention kernel that keeps all scores.
#pragma once
#include "kernels/shared/attention_problem.h"

namespace tessera::TESSERA_KERNELS {

/// `to` = `from`, of so many elements, without those that the problem's dropout draws. Each side has its own.
void drop_scores(const AttentionProblem& p, Plan& plan, long long elements, const Heads& to, const Heads& from);

/// `to` = start, start + 1, ... of f32 or f64. Each side has its own.
void count_up(Plan& plan, void* to, DType dtype, long long count, double start);

void attention_math(const Call& call, Workspace& workspace);
void attention_math_backward(const Call& call, Workspace& workspace);

}  // namespace tessera::TESSERA_KERNELS
