// Which instruction set's kernels run.
#pragma once
#include "kernels/args/peak.h"
#include "kernels/shared/kernel_tables.h"

namespace tessera::cpu_kernels {

enum class Isa { Baseline, Avx2, Avx512 };

/// The best instruction set of this processor, or what TESSERA_ISA (baseline, avx2 or avx512) asks for; read once.
/// Throws Error when TESSERA_ISA names something else, or what the processor lacks.
Isa isa();
const char* isa_name();
const PeakTable& peak_table();

}  // namespace tessera::cpu_kernels
