# The GPU plugins, one source for both vendors: libtessera_cuda.so where nvcc is found, libtessera_hip.so where clang for HIP
# and AMD's device libraries are. The core opens them at run time; nothing links against them.
set(TESSERA_CUDA AUTO CACHE STRING "Build libtessera_cuda.so: ON, OFF, or AUTO where nvcc is found")
set(TESSERA_HIP OFF CACHE STRING "Build libtessera_hip.so: ON, OFF, or AUTO where clang and AMD's device libraries are found")
set(TESSERA_CUDA_ARCHITECTURES "90-real;80-virtual" CACHE STRING "What libtessera_cuda.so holds code for")
set(TESSERA_HIP_ARCHITECTURES "gfx90a" CACHE STRING "What libtessera_hip.so holds code for")

file(GLOB gpu_sources CONFIGURE_DEPENDS src/kernels/gpu/device/*.cu)

if(TESSERA_CUDA STREQUAL AUTO)
  include(CheckLanguage)
  check_language(CUDA)
  set(build_cuda ${CMAKE_CUDA_COMPILER})
else()
  set(build_cuda ${TESSERA_CUDA})
endif()
if(build_cuda)
  set(CMAKE_CUDA_STANDARD_REQUIRED OFF)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  add_library(tessera_cuda MODULE ${gpu_sources})
  set_target_properties(tessera_cuda PROPERTIES CUDA_ARCHITECTURES "${TESSERA_CUDA_ARCHITECTURES}" CUDA_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_include_directories(tessera_cuda PRIVATE include src)
  target_compile_definitions(tessera_cuda PRIVATE TESSERA_GPU_KERNELS)
  target_compile_options(tessera_cuda PRIVATE -std=c++20 -Xcompiler=-Wall,-Wextra,-Wno-psabi,-ffp-contract=off --fmad=false -Werror=all-warnings
                         --expt-relaxed-constexpr)
  target_link_libraries(tessera_cuda PRIVATE CUDA::cudart_static)
  install(TARGETS tessera_cuda DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
