// The tables of the instruction set that runs, and the CPU's kernel lists.
#include "kernels/shared/tables.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <string_view>
#include <vector>

#include "kernels/args/bits.h"
#include "kernels/args/fourier.h"
#include "kernels/args/map_program.h"
#include "kernels/args/planes.h"
#include "kernels/args/sample.h"
#include "kernels/cpu/isa_select.h"
#include "tessera/error.h"

namespace tessera::cpu_kernels {
namespace {

bool processor_has(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && processor_has(Isa::Avx2);
  }
  if (isa == Isa::Avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return isa == Isa::Baseline;
}

constexpr std::string_view names[] = {"baseline", "avx2", "avx512"};

#if defined(TESSERA_ONLY_ISA)  // a build whose kernels are of one instruction set
#define TESSERA_TEXT(name) #name
#define TESSERA_TEXT_OF(macro) TESSERA_TEXT(macro)
constexpr std::string_view only = TESSERA_TEXT_OF(TESSERA_ONLY_ISA);
#else
constexpr std::string_view only = "";
#endif

constexpr std::string_view name_of(Isa isa) { return names[static_cast<int>(isa)]; }

Isa choose() {
  const char* wish = std::getenv("TESSERA_ISA");
  if (!wish || !*wish) {
    for (Isa isa : {Isa::Avx512, Isa::Avx2, Isa::Baseline}) {
      if (processor_has(isa) && (only.empty() || only == name_of(isa))) return isa;
    }
    throw Error(fmt::format("this build has kernels for {} alone, which this processor does not have", only));
  }
  for (Isa isa : {Isa::Baseline, Isa::Avx2, Isa::Avx512}) {
    if (name_of(isa) != wish) continue;
    if (!only.empty() && only != wish) throw Error(fmt::format("TESSERA_ISA={}: this build has only {}", wish, only));
    if (!processor_has(isa)) throw Error(fmt::format("TESSERA_ISA={}: this processor does not have it", wish));
    return isa;
  }
  throw Error(fmt::format("TESSERA_ISA={}: must be baseline, avx2 or avx512", wish));
}

}  // namespace

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

const char* isa_name() { return name_of(isa()).data(); }

#if defined(TESSERA_ONLY_ISA)
#define TESSERA_TABLE(Type, name) \
  const Type& name() { return isa(), TESSERA_ONLY_ISA::name; }
#elif defined(__x86_64__)
#define TESSERA_TABLE(Type, name) \
  const Type& name() {            \
    switch (isa()) {              \
      case Isa::Avx512:           \
        return avx512::name;      \
      case Isa::Avx2:             \
        return avx2::name;        \
      default:                    \
        return baseline::name;    \
    }                             \
  }
#else
#define TESSERA_TABLE(Type, name) \
  const Type& name() { return baseline::name; }
#endif
TESSERA_TABLE(ElementwiseTable, elementwise_table)
TESSERA_TABLE(MapProgramTable, map_program_table)
TESSERA_TABLE(BitsTable, bits_table)
TESSERA_TABLE(ReduceTable, reduce_table)
TESSERA_TABLE(PoolTable, pool_table)
TESSERA_TABLE(RecurrentTable, recurrent_table)
TESSERA_TABLE(LinesTable, lines_table)
TESSERA_TABLE(PlaneTable, planes_table)
TESSERA_TABLE(SampleTable, sample_table)
TESSERA_TABLE(FourierTable, fourier_table)
TESSERA_TABLE(RandomTable, random_table)
TESSERA_TABLE(GemmTable, gemm_table)
TESSERA_TABLE(ConvTable, conv_table)
TESSERA_TABLE(AttentionTable, attention_table)
TESSERA_TABLE(NormTable, norm_table)
TESSERA_TABLE(SoftmaxTable, softmax_table)
TESSERA_TABLE(PeakTable, peak_table)
TESSERA_TABLE(OptimTable, optim_table)
#undef TESSERA_TABLE

}  // namespace tessera::cpu_kernels

namespace tessera {

std::string cpu_description() {
  std::string text = cpu_kernels::isa_name() + (", " + std::to_string(num_threads())) + " threads", line;
  std::ifstream processors("/proc/cpuinfo");
  while (std::getline(processors, line))
    if (line.starts_with("model name") && line.find(": ") != line.npos)
      return text + ", " + line.substr(line.find(": ") + 2);
  return text;
}

void* cpu_executor() { return &executor(); }

std::span<const KernelTableEntry> cpu_kernel_table() {
  using namespace cpu_kernels;
  static const std::vector<KernelTableEntry> table = [] {
    std::vector<KernelTableEntry> all;
    for (auto family :
         {creation_kernels(), elementwise_kernels(), map_graph_kernels(), reduction_kernels(), shape_kernels(),
          indexing_kernels(), bit_kernels(),         recurrent_kernels(), line_kernels(),      plane_kernels(),
          sample_kernels(),   matmul_kernels(),      conv_kernels(),      pool_kernels(),      norm_kernels(),
          softmax_kernels(),  loss_kernels(),        attention_kernels(), random_kernels(),    optim_kernels()})
      all.insert(all.end(), family.begin(), family.end());
    return all;
  }();
  return table;
}

}  // namespace tessera
