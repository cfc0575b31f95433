# Installation: libraries, headers, the command, the CMake package; and the target `uninstall`.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)

# Runs before anything is installed: notes which directories are there already, so that `uninstall` keeps them.
configure_file(cmake/note_directories.cmake.in ${PROJECT_BINARY_DIR}/note_directories.cmake @ONLY)
install(SCRIPT ${PROJECT_BINARY_DIR}/note_directories.cmake)

set_target_properties(tessera_core PROPERTIES EXPORT_NAME tile)
foreach(target tessera_core tessera tessera_cli)
  if(TARGET ${target})
    install(TARGETS ${target} EXPORT tessera)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  endif()
endforeach()
foreach(target tessera_core tessera)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES
      VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  endif()
endforeach()

foreach(plugin tessera_cuda tessera_hip tessera_mpi tessera_gloo)
  if(TARGET ${plugin})
    install(TARGETS ${plugin} DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()

install(DIRECTORY include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} PATTERN tile EXCLUDE)
install(DIRECTORY src/tile/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera/tile FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/include/tessera/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT tessera FILE tessera-targets.cmake NAMESPACE tessera:: DESTINATION ${package_dir})
configure_package_config_file(cmake/tessera-config.cmake.in ${PROJECT_BINARY_DIR}/tessera-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tessera-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tessera-config.cmake ${PROJECT_BINARY_DIR}/tessera-config-version.cmake
        DESTINATION ${package_dir})

if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -D BUILD=${PROJECT_BINARY_DIR} -P
                    ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake VERBATIM USES_TERMINAL)
endif()
