# Flags that every target of the project shares. Nothing is contracted to fused multiply-adds by the compiler: kernels say
# fma() where they mean it, so that results do not depend on what the optimiser happens to combine.
add_library(tessera_flags INTERFACE)
target_compile_options(tessera_flags INTERFACE -Wall -Wextra -Wno-psabi -fno-math-errno -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL Clang)  # libstdc++ 12 uses what it deprecates, in std::stable_sort
  target_compile_options(tessera_flags INTERFACE -Wno-deprecated-declarations)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # collects its garbage from 400 MB on, not from 128: a tenth of its time
  target_compile_options(tessera_flags INTERFACE --param=ggc-min-heapsize=400000)
endif()
if(TESSERA_WERROR)
  target_compile_options(tessera_flags INTERFACE -Werror)
endif()
if(TESSERA_SANITIZE)
  list(JOIN TESSERA_SANITIZE "," sanitizers)
  target_compile_options(tessera_flags INTERFACE -fsanitize=${sanitizers} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(tessera_flags INTERFACE -fsanitize=${sanitizers})
endif()
if(TESSERA_FUZZ)  # coverage for every object; only fuzz targets link libFuzzer's main
  target_compile_options(tessera_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(tessera_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Kernels are one inlined function each; under sanitizers two checks would let GCC take minutes for one. Those for null and
# alignment would double its time: a null faults by itself, and vectors are loaded from any address. Of options, the last
# ones count, so targets link this behind tessera_flags.
add_library(tessera_fewer_checks INTERFACE)
set(TESSERA_ISA_LEVEL -O3)
if(TESSERA_SANITIZE)
  set(TESSERA_ISA_LEVEL -O1 -fno-sanitize-address-use-after-scope)
  target_compile_options(tessera_fewer_checks INTERFACE -fno-sanitize=object-size,null,alignment)
endif()

# Integers wrap in kernels, as they do in PyTorch: in results, and in lanes that nobody asked for.
list(APPEND TESSERA_ISA_LEVEL -fwrapv)

# Headers that most files of a target include are parsed once for it. Not under ccache: it keeps such files only with options
# of its own, and without them finds what it has.
if("${CMAKE_CXX_COMPILER_LAUNCHER} ${CMAKE_CXX_COMPILER}" MATCHES "ccache")
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()

# Instruction sets for which CPU kernels are compiled; the best one is chosen at run time.
set(TESSERA_CPU_ISAS baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND TESSERA_CPU_ISAS avx2 avx512)
endif()
set(TESSERA_ISA_FLAGS_baseline "")
set(TESSERA_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi -mbmi2 -mprefer-vector-width=256)
set(TESSERA_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mbmi -mbmi2
    -mprefer-vector-width=512)

# One alone is built where time is short, as for sanitizers in CI. AVX-512's kernels call AVX2's.
if(TESSERA_ONLY_ISA)
  if(NOT TESSERA_ONLY_ISA IN_LIST TESSERA_CPU_ISAS OR TESSERA_ONLY_ISA STREQUAL avx512)
    message(FATAL_ERROR "TESSERA_ONLY_ISA=${TESSERA_ONLY_ISA}: must be baseline or avx2")
  endif()
  set(TESSERA_CPU_ISAS ${TESSERA_ONLY_ISA})
endif()

# Those of all that this machine can execute: tests of the others are built and reported as skipped.
set(TESSERA_HOST_ISAS ${TESSERA_CPU_ISAS})
list(FILTER TESSERA_HOST_ISAS INCLUDE REGEX baseline)
if(NOT CMAKE_CROSSCOMPILING)
  include(CheckCXXSourceRuns)
  set(TESSERA_ISA_FEATURES_avx2 avx2 fma)
  set(TESSERA_ISA_FEATURES_avx512 avx512f avx512bw avx512dq avx512vl)
  foreach(isa avx2 avx512)
    if(isa IN_LIST TESSERA_CPU_ISAS)
      list(TRANSFORM TESSERA_ISA_FEATURES_${isa} REPLACE "(.+)" "__builtin_cpu_supports(\"\\1\")" OUTPUT_VARIABLE checks)
      list(JOIN checks " && " condition)
      check_cxx_source_runs("int main() { return ${condition} ? 0 : 1; }" TESSERA_HOST_HAS_${isa})
      if(TESSERA_HOST_HAS_${isa})
        list(APPEND TESSERA_HOST_ISAS ${isa})
      endif()
    endif()
  endforeach()
endif()
