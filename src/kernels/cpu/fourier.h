// How lengths of Fourier transforms are cut into passes, with the tables that these read.
#pragma once
#include <memory>

#include "kernels/args/fourier.h"

namespace tessera::cpu_kernels {

/// Of f32 or f64, length >= 1. Those of the lengths that came last are kept.
std::shared_ptr<const FourierPlan> fourier_plan(int64_t length, Scalar type);

}  // namespace tessera::cpu_kernels
