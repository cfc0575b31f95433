# The GPU plugins, one source for both vendors: libtessera_cuda.so where nvcc is found, libtessera_hip.so where clang for HIP
# and AMD's device libraries are. The core opens them at run time; nothing links against them.
set(TESSERA_CUDA AUTO CACHE STRING "Build libtessera_cuda.so: ON, OFF, or AUTO where nvcc is found")
set(TESSERA_HIP AUTO CACHE STRING "Build libtessera_hip.so: ON, OFF, or AUTO where clang and AMD's device libraries are found")
set(TESSERA_CUDA_ARCHITECTURES "90-real;80-virtual" CACHE STRING
    "What libtessera_cuda.so holds: machine code (90-real), PTX for other cards (80-virtual), or both (80)")
set(TESSERA_HIP_ARCHITECTURES "gfx90a" CACHE STRING "What libtessera_hip.so holds code for")

file(GLOB_RECURSE gpu_sources CONFIGURE_DEPENDS src/kernels/gpu/device/*.cu)
set(sm90_sources ${gpu_sources})  # what needs instructions of NVIDIA's compute capability 9.0 alone
list(FILTER sm90_sources INCLUDE REGEX "_sm90[a-z_]*\\.cu$")
list(FILTER gpu_sources EXCLUDE REGEX "_sm90[a-z_]*\\.cu$")
if(NOT gpu_sources)  # the tile library alone
  return()
endif()

# Sources of a second or two are compiled together: what a compiler does before it comes to their kernels takes as long.
set(group 0)
foreach(names "attention/attention;indexing/indexing;runtime/plugin;random/random;rows/order;gemm/padded_operands"
              "optim/optim;conv/pool;rows/reduce;runtime/runtime;runtime/activities;runtime/roctracer"
              "indexing/scatter;indexing/lines;recurrent/recurrent")
  math(EXPR group "${group} + 1")
  set(text "// The small sources of the plugins, ${group}.\n")
  foreach(name ${names})
    list(REMOVE_ITEM gpu_sources ${PROJECT_SOURCE_DIR}/src/kernels/gpu/device/${name}.cu)
    string(APPEND text "#include \"kernels/gpu/device/${name}.cu\"\n")
  endforeach()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/small_${group}.cu CONTENT "${text}")
  list(APPEND gpu_sources ${PROJECT_BINARY_DIR}/generated/small_${group}.cu)
endforeach()

# Sources of many kernels for each type are a unit for each.
list(REMOVE_ITEM gpu_sources ${PROJECT_SOURCE_DIR}/src/kernels/gpu/device/rows/reduce_packs.cu)
foreach(type f32 f16 bf16)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/reduce_packs_${type}.cu
       CONTENT "#define TESSERA_PACKS ${type}\n#include \"kernels/gpu/device/rows/reduce_packs.cu\"\n")
  list(APPEND gpu_sources ${PROJECT_BINARY_DIR}/generated/reduce_packs_${type}.cu)
endforeach()

# tessera_plugin(NAME SOURCES-OR-OBJECTS...): what both plugins share.
function(tessera_plugin name)
  add_library(${name} MODULE ${ARGN})
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
endfunction()

# cuda_code(RESULT ARCHITECTURES...): nvcc's option for code of all these architectures from one pass of its front end, for the
# oldest cards that the kernels run on: a pass for each architecture takes twice as long, and its code is the same.
function(cuda_code result)
  foreach(architecture ${ARGN})
    if(NOT architecture MATCHES "^([0-9]+)(-real|-virtual)?$")
      message(FATAL_ERROR "TESSERA_CUDA_ARCHITECTURES: ${architecture} is none of 90, 90-real and 90-virtual")
    endif()
    if(NOT CMAKE_MATCH_2 STREQUAL "-virtual")
      list(APPEND codes sm_${CMAKE_MATCH_1})
    endif()
    if(NOT CMAKE_MATCH_2 STREQUAL "-real")
      list(APPEND codes compute_80)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES codes)
  list(JOIN codes "," codes)
  set(${result} "--generate-code=arch=compute_80,code=[${codes}]" PARENT_SCOPE)
endfunction()

if(TESSERA_CUDA STREQUAL AUTO)
  include(CheckLanguage)
  check_language(CUDA)
  set(build_cuda ${CMAKE_CUDA_COMPILER})
else()
  set(build_cuda ${TESSERA_CUDA})
endif()
if(build_cuda)
  set(CMAKE_CUDA_STANDARD_REQUIRED OFF)  # CMake 3.25 does not know that nvcc 13 has C++20
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13)
    set(too_old "libtessera_cuda.so needs nvcc 13: ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}")
    if(NOT TESSERA_CUDA STREQUAL AUTO)
      message(FATAL_ERROR "${too_old}")
    endif()
    message(WARNING "${too_old}; it is not built")
    set(build_cuda OFF)
  endif()
endif()
if(build_cuda)
  set(CMAKE_CUDA_FLAGS_RELEASE -DNDEBUG)  # nvcc's -O3 is the host's alone, and would win over -O1 below
  find_package(CUDAToolkit REQUIRED)
  # What calls NVIDIA's libraries has no kernels: the compiler of C++ takes a third of nvcc's time.
  file(GLOB vendor_sources CONFIGURE_DEPENDS src/kernels/gpu/device/vendor/*.cpp)
  add_library(tessera_vendor OBJECT ${vendor_sources})
  set_target_properties(tessera_vendor PROPERTIES CXX_VISIBILITY_PRESET hidden)
  target_include_directories(tessera_vendor PRIVATE include src)
  target_compile_definitions(tessera_vendor PRIVATE TESSERA_GPU_KERNELS)
  target_compile_options(tessera_vendor PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(tessera_vendor PRIVATE tessera_flags CUDA::cudart_static)
  tessera_plugin(tessera_cuda ${gpu_sources} ${sm90_sources} $<TARGET_OBJECTS:tessera_vendor>)
  cuda_code(code ${TESSERA_CUDA_ARCHITECTURES})
  set_source_files_properties(${gpu_sources} PROPERTIES COMPILE_OPTIONS "${code}")
  set_source_files_properties(${sm90_sources} PROPERTIES COMPILE_OPTIONS "--generate-code=arch=compute_90a,code=[sm_90a]")
  set_target_properties(tessera_cuda PROPERTIES CUDA_ARCHITECTURES OFF CUDA_VISIBILITY_PRESET hidden)
  target_include_directories(tessera_cuda PRIVATE include src ${PROJECT_BINARY_DIR}/generated)
  if(CUDAToolkit_CUPTI_INCLUDE_DIR)  # in a folder of its own in some toolkits
    target_include_directories(tessera_cuda SYSTEM PRIVATE ${CUDAToolkit_CUPTI_INCLUDE_DIR})
  endif()
  target_compile_definitions(tessera_cuda PRIVATE TESSERA_GPU_KERNELS)
  target_compile_options(tessera_cuda PRIVATE -std=c++20 -Xcompiler=-Wall,-Wextra,-Wno-psabi,-ffp-contract=off
                         -Xcompiler=-O1 --fmad=false)  # on the host there are launches only
  if(TESSERA_WERROR)
    target_compile_options(tessera_cuda PRIVATE -Werror=all-warnings)
  endif()
  target_link_libraries(tessera_cuda PRIVATE CUDA::cudart_static)
endif()

# CMake's own support for HIP wants AMD's packages; Debian's clang needs none of it.
find_program(CLANG_HIP clang++-19)
file(GLOB hip_bitcode /usr/lib/*/amdgcn/bitcode /usr/lib/llvm-*/lib/clang/*/amdgcn/bitcode)  # Debian 12; 13 and Ubuntu 24.04
find_program(HIP_BUNDLER clang-offload-bundler PATHS /usr/lib/llvm-19/bin NO_DEFAULT_PATH)  # of clang-tools-19; clang runs it
find_path(HIP_HEADERS hip/hip_runtime_api.h)
set(build_hip ${TESSERA_HIP})
if(TESSERA_HIP AND NOT (CLANG_HIP AND HIP_BUNDLER AND hip_bitcode AND HIP_HEADERS))
  if(NOT TESSERA_HIP STREQUAL AUTO)
    message(FATAL_ERROR "TESSERA_HIP needs clang-19, clang-tools-19, lld-19, libamdhip64-dev and rocm-device-libs")
  endif()
  set(build_hip OFF)
endif()
if(build_hip)
  list(TRANSFORM TESSERA_HIP_ARCHITECTURES PREPEND --offload-arch= OUTPUT_VARIABLE hip_targets)
  list(JOIN TESSERA_HIP_ARCHITECTURES " " hip_target_names)
  set(hip_definitions -DTESSERA_GPU_KERNELS "-DTESSERA_HIP_TARGETS=\"${hip_target_names}\"")
  set(vector_targets ${TESSERA_HIP_ARCHITECTURES})
  list(FILTER vector_targets EXCLUDE REGEX "^gfx(908|90a|94)")
  if(vector_targets)  # cards without matrix cores need further kernels
    list(APPEND hip_definitions -DTESSERA_VECTOR_TARGETS)
  endif()
  # Code objects of version 4 load from ROCm 4.1 on; those of version 5, clang's default, not with Debian's 5.2.
  set(hip_flags -x hip --rocm-path=/usr --rocm-device-lib-path=${hip_bitcode} -mcode-object-version=4 -std=c++20 -O3 -DNDEBUG
      -fPIC -fvisibility=hidden -Wall -Wextra -ffp-contract=off ${hip_definitions}
      -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_BINARY_DIR}/generated
      -nogpuinc -include ${PROJECT_SOURCE_DIR}/src/kernels/gpu/device/runtime/hip.h)
  if(TESSERA_WERROR)
    list(APPEND hip_flags -Werror)
  endif()
  foreach(source ${gpu_sources})
    cmake_path(GET source STEM stem)
    set(object ${PROJECT_BINARY_DIR}/hip/${stem}.o)
    add_custom_command(OUTPUT ${object} DEPFILE ${object}.d DEPENDS ${source} VERBATIM
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CLANG_HIP} ${hip_flags} ${hip_targets} -MD -MF ${object}.d -c ${source} -o ${object}
      COMMENT "Building HIP object ${stem}.o")
    list(APPEND hip_objects ${object})
  endforeach()
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/hip)
  tessera_plugin(tessera_hip ${hip_objects})
  set_target_properties(tessera_hip PROPERTIES LINKER_LANGUAGE CXX)  # HIP's runtime is the core's to open, of any version
endif()
