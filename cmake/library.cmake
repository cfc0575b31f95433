# The library, one object target per layer so that each layer sees only the includes below it.
find_package(fmt REQUIRED)
find_package(Threads REQUIRED)

# Headers of tile/ and the thread pool: all that a user of the tile operators needs.
file(GLOB core_sources CONFIGURE_DEPENDS src/core/*.cpp)
add_library(tessera_core STATIC ${core_sources})
target_include_directories(tessera_core PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> PRIVATE src)
target_link_libraries(tessera_core PRIVATE tessera_flags fmt::fmt-header-only PUBLIC Threads::Threads)

# src/kernels/cpu/isa/*.cpp is compiled once per instruction set; everything else once.
if(EXISTS ${CMAKE_SOURCE_DIR}/src/kernels)
  file(GLOB isa_sources CONFIGURE_DEPENDS src/kernels/cpu/isa/*.cpp)
  foreach(isa ${TESSERA_CPU_ISAS})
    if(isa_sources)
      add_library(tessera_isa_${isa} OBJECT ${isa_sources})
      target_include_directories(tessera_isa_${isa} PRIVATE include src)
      target_link_libraries(tessera_isa_${isa} PRIVATE tessera_flags)
      target_compile_options(tessera_isa_${isa} PRIVATE ${TESSERA_ISA_FLAGS_${isa}} -O3 -ffp-contract=fast)
      list(APPEND isa_objects $<TARGET_OBJECTS:tessera_isa_${isa}>)
    endif()
  endforeach()

  file(GLOB_RECURSE library_sources CONFIGURE_DEPENDS
       src/kernels/cpu/*.cpp src/ops/*.cpp src/autograd/*.cpp src/nn/*.cpp src/optim/*.cpp src/data/*.cpp
       src/io/*.cpp src/models/*.cpp src/cases/*.cpp)
  list(FILTER library_sources EXCLUDE REGEX "/isa/")
  if(library_sources)
    find_package(nlohmann_json REQUIRED)
    add_library(tessera STATIC ${library_sources} ${isa_objects})
    target_include_directories(tessera PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> PRIVATE src)
    target_link_libraries(tessera PUBLIC tessera_core PRIVATE tessera_flags fmt::fmt-header-only
                          nlohmann_json::nlohmann_json)
  endif()
endif()
