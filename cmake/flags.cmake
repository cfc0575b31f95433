# Flags that every target of the project shares.
add_library(tessera_flags INTERFACE)
target_compile_options(tessera_flags INTERFACE -Wall -Wextra -Werror -fno-math-errno -ffp-contract=off)
if(TESSERA_SANITIZE)
  list(JOIN TESSERA_SANITIZE "," sanitizers)
  target_compile_options(tessera_flags INTERFACE -fsanitize=${sanitizers} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(tessera_flags INTERFACE -fsanitize=${sanitizers})
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
