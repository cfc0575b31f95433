# The libraries: tessera_core for users of the tile operators, tessera for everything.
find_package(fmt REQUIRED)
find_package(Threads REQUIRED)
configure_file(cmake/version.h.in ${PROJECT_BINARY_DIR}/include/tessera/version.h @ONLY)

# A plugin of other tables or tiles than the library's would be called wrongly: both know what these headers were.
file(GLOB_RECURSE table_headers CONFIGURE_DEPENDS src/kernels/args/*.h)
list(APPEND table_headers ${PROJECT_SOURCE_DIR}/src/core/gpu/runtime.h)
file(GLOB_RECURSE shared_tile_headers CONFIGURE_DEPENDS src/tile/arch/*.h)
list(APPEND table_headers ${shared_tile_headers})
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table_headers})
foreach(header ${table_headers})
  file(SHA256 ${header} hash)
  string(APPEND hashes ${hash})
endforeach()
string(SHA256 plugin_version "${hashes}")
string(SUBSTRING ${plugin_version} 0 7 plugin_version)
configure_file(cmake/plugin_version.h.in ${PROJECT_BINARY_DIR}/generated/core/gpu/plugin_version.h @ONLY)

# What most of the library includes is parsed once for all of it, a second of each unit, and once for each other level of
# optimisation: GCC 13 refuses what was made with another.
set(common_headers <algorithm> <cmath> <fmt/format.h> src/core/op.h)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/headers.cpp CONTENT "")
add_library(tessera_headers OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/headers.cpp)
target_include_directories(tessera_headers PRIVATE src include ${PROJECT_BINARY_DIR}/include)
target_link_libraries(tessera_headers PRIVATE tessera_flags fmt::fmt)
target_compile_options(tessera_headers PRIVATE $<$<CONFIG:Release>:-O2>)
target_precompile_headers(tessera_headers PRIVATE ${common_headers})

# Headers of tile/ and the thread pool: all that a user of the tile operators needs.
file(GLOB_RECURSE core_sources CONFIGURE_DEPENDS src/core/*.cpp)

# tessera_isa(NAME ISA SOURCES...): kernels for processors of an instruction set.
function(tessera_isa name isa)
  add_library(${name} OBJECT ${ARGN})
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)  # each takes seconds
  target_link_libraries(${name} PRIVATE tessera_flags tessera_fewer_checks)
  target_compile_options(${name} PRIVATE ${TESSERA_ISA_FLAGS_${isa}} ${TESSERA_ISA_LEVEL})
  if(isa STREQUAL baseline AND "avx2" IN_LIST TESSERA_CPU_ISAS AND NOT TESSERA_SANITIZE)
    target_compile_options(${name} PRIVATE -O1)  # processors of before 2013; half the time of -O3
  endif()
endfunction()

# What products share is compiled here once, instead of in each unit that multiplies.
file(GLOB microkernel_sources CONFIGURE_DEPENDS src/tile/arch/cpu/*.cpp)
foreach(isa ${TESSERA_CPU_ISAS})
  tessera_isa(tessera_microkernel_${isa} ${isa} ${microkernel_sources})
  list(APPEND microkernels $<TARGET_OBJECTS:tessera_microkernel_${isa}>)
endforeach()
add_library(tessera_core ${core_sources} ${microkernels})
target_compile_features(tessera_core PUBLIC cxx_std_20)
target_include_directories(tessera_core PRIVATE src ${PROJECT_BINARY_DIR}/generated PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(tessera_core PRIVATE $<BUILD_INTERFACE:tessera_flags> fmt::fmt ${CMAKE_DL_LIBS}
                      PUBLIC Threads::Threads)
target_compile_options(tessera_core PRIVATE $<$<CONFIG:Release>:-O2>)
target_precompile_headers(tessera_core REUSE_FROM tessera_headers)
target_compile_definitions(tessera_core PRIVATE TESSERA_LIBDIR="${CMAKE_INSTALL_LIBDIR}")
add_library(tessera::tile ALIAS tessera_core)

# src/kernels/cpu/isa/*.cpp is compiled once per instruction set; everything else once.
if(EXISTS ${PROJECT_SOURCE_DIR}/src/kernels)
  file(GLOB isa_sources CONFIGURE_DEPENDS src/kernels/cpu/isa/*.cpp)
  if(NOT TESSERA_SANITIZE)  # types that few models compute in: four fifths of the time of -O3; -O1 below is meant for all
    set(rare_sources ${isa_sources})
    list(FILTER rare_sources INCLUDE REGEX "_(f64|mixed)_isa\\.cpp$")
    set_source_files_properties(${rare_sources} PROPERTIES COMPILE_OPTIONS
      "$<$<AND:$<CONFIG:Release>,$<NOT:$<STREQUAL:$<TARGET_PROPERTY:NAME>,tessera_isa_baseline>>>:-O2>")
  endif()
  foreach(isa ${TESSERA_CPU_ISAS})
    if(isa_sources)
      set(sources ${isa_sources})
      if(isa STREQUAL avx512)
        list(FILTER sources EXCLUDE REGEX "/(attention|conv)_f64_isa\\.cpp$")  # AVX2's are enough
      endif()
      tessera_isa(tessera_isa_${isa} ${isa} ${sources})
      target_include_directories(tessera_isa_${isa} PRIVATE include src)
      target_precompile_headers(tessera_isa_${isa} PRIVATE src/kernels/cpu/isa/internal.h)  # <immintrin.h> takes 0.4 s
      if(isa STREQUAL avx512 AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
        # GCC 12 warns about its own _mm512_undefined where it is precompiled; AVX2's copy keeps the warnings.
        target_compile_options(tessera_isa_${isa} PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized)
      endif()
      list(APPEND isa_objects $<TARGET_OBJECTS:tessera_isa_${isa}>)
    endif()
  endforeach()

  # tessera_objects(NAME LEVEL SOURCES...): a part of the library, at -O<LEVEL> in a release.
  function(tessera_objects name level)
    add_library(${name} OBJECT ${ARGN})
    target_include_directories(${name} PRIVATE src include ${PROJECT_BINARY_DIR}/include)
    target_link_libraries(${name} PRIVATE tessera_flags fmt::fmt)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O${level}>)
    if(level EQUAL 2)
      target_precompile_headers(${name} REUSE_FROM tessera_headers)
    else()
      target_precompile_headers(${name} PRIVATE ${common_headers})
    endif()
  endfunction()

  # The lists of kernels that are the same for GPUs are compiled twice, each time with other tables behind them.
  file(GLOB shared_lists CONFIGURE_DEPENDS src/kernels/shared/*.cpp)
  file(GLOB gpu_lists CONFIGURE_DEPENDS src/kernels/gpu/*.cpp)
  tessera_objects(tessera_gpu_lists 2 ${gpu_lists} ${shared_lists})
  target_compile_definitions(tessera_gpu_lists PRIVATE TESSERA_GPU_KERNELS)

  # What compiles kernels while a program runs has the tile headers within it.
  file(GLOB_RECURSE tile_headers CONFIGURE_DEPENDS src/tile/*.h)
  set(embedded ${PROJECT_BINARY_DIR}/embedded_headers.cpp)
  add_custom_command(OUTPUT ${embedded} DEPENDS ${tile_headers} cmake/embed.cmake VERBATIM COMMENT "Embedding the tile headers"
    COMMAND ${CMAKE_COMMAND} -D FOLDER=${PROJECT_SOURCE_DIR}/src/tile -D PATTERN=*.h -D PREFIX=tessera/tile/
            -D HEADER=kernels/gpu/rtc/embedded.h -D FUNCTION=tessera::gpu::embedded_headers -D OUT=${embedded}
            -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake)

  file(GLOB library_sources CONFIGURE_DEPENDS
       src/kernels/cpu/*.cpp src/kernels/gpu/rtc/*.cpp src/ops/*.cpp src/autograd/*.cpp src/amp/*.cpp src/optim/*.cpp src/data/*.cpp
       src/dist/*.cpp)
  list(FILTER library_sources EXCLUDE REGEX "/(mpi|gloo)_plugin\\.cpp$")  # see mpi.cmake, gloo.cmake
  file(GLOB waiting_sources CONFIGURE_DEPENDS  # for kernels, or for the disk
       src/nn/*.cpp src/io/*.cpp src/onnx/*.cpp src/onnx/handlers/*.cpp src/onnx/optimize/*.cpp src/onnx/writers/*.cpp
       src/profiler/*.cpp src/train/*.cpp src/models/*.cpp src/cases/*.cpp)
  file(GLOB handler_sources CONFIGURE_DEPENDS  # each with names of its own
       src/onnx/handlers/*.cpp src/onnx/optimize/*.cpp src/onnx/writers/*.cpp)
  set_source_files_properties(${handler_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_source_files_properties(src/dist/combine.cpp src/ops/fold_on_host.cpp src/ops/losses_on_host.cpp PROPERTIES  # loops
    SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>")
  if(library_sources)
    find_package(nlohmann_json REQUIRED)
    find_package(ZLIB REQUIRED)
    find_package(zstd REQUIRED)
    find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
    file(GLOB page_parts CONFIGURE_DEPENDS src/profiler/report_page/*)
    set(embedded_page ${PROJECT_BINARY_DIR}/embedded_page.cpp)
    add_custom_command(OUTPUT ${embedded_page} DEPENDS ${page_parts} cmake/embed.cmake VERBATIM COMMENT "Embedding the profiler's page"
      COMMAND ${CMAKE_COMMAND} -D FOLDER=${PROJECT_SOURCE_DIR}/src/profiler/report_page -D PATTERN=* -D PREFIX=
              -D HEADER=profiler/report_page.h -D FUNCTION=tessera::profiler::report_page_files -D OUT=${embedded_page}
              -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake)
    tessera_objects(tessera_waiting 1 ${waiting_sources} ${embedded_page})
    target_link_libraries(tessera_waiting PRIVATE nlohmann_json::nlohmann_json ZLIB::ZLIB)
    add_library(tessera ${library_sources} ${shared_lists} ${embedded} ${isa_objects} $<TARGET_OBJECTS:tessera_gpu_lists> $<TARGET_OBJECTS:tessera_waiting>)
    target_include_directories(tessera PRIVATE src)
    if(TESSERA_ONLY_ISA)
      target_compile_definitions(tessera PRIVATE TESSERA_ONLY_ISA=${TESSERA_ONLY_ISA})
    endif()
    target_link_libraries(tessera PUBLIC tessera_core PRIVATE $<BUILD_INTERFACE:tessera_flags> fmt::fmt ZLIB::ZLIB zstd::libzstd_shared
                          $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
    target_include_directories(tessera PRIVATE ${XXHASH_INCLUDE})
    target_compile_options(tessera PRIVATE $<$<CONFIG:Release>:-O2>)  # no loops here that -O3 would make faster
    target_precompile_headers(tessera REUSE_FROM tessera_headers)
    add_library(tessera::tessera ALIAS tessera)
  endif()
endif()
