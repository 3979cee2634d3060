# cmake --install BUILD --prefix P: programs, libraries, headers and the CMake package fsdp.
#   find_package(fsdp 0.1 CONFIG REQUIRED)
#   target_link_libraries(mine PRIVATE fsdp::fsdp)        # or single components: fsdp::shard
# libtorch stays where it is; with --component libtorch it is copied into the prefix, which then stands alone.
include(CMakePackageConfigHelpers)
set(package_dir lib/cmake/fsdp)
set(libtorch_dir lib/fsdp/libtorch)  # below the prefix

# All components at once.
get_property(components GLOBAL PROPERTY FSDP_COMPONENTS)
add_library(fsdp_all INTERFACE)
add_library(fsdp::fsdp ALIAS fsdp_all)
set_target_properties(fsdp_all PROPERTIES EXPORT_NAME fsdp)
target_link_libraries(fsdp_all INTERFACE ${components})
install(TARGETS fsdp_all EXPORT fsdp)

install(TARGETS fsdp_headers EXPORT fsdp FILE_SET public DESTINATION include FILE_SET internal DESTINATION include/fsdp/internal)
install(EXPORT fsdp NAMESPACE fsdp:: FILE fsdpTargets.cmake DESTINATION ${package_dir})

configure_package_config_file("${PROJECT_SOURCE_DIR}/scripts/cmake/fsdpConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/fsdpConfig.cmake" INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/fsdpConfig.cmake" "${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/scripts/cmake/Libtorch.cmake"
              "${PROJECT_SOURCE_DIR}/scripts/cmake/Plugin.cmake" DESTINATION ${package_dir})

# Programs look for libtorch in the prefix first, then where it was when they were built.
get_property(programs DIRECTORY "${PROJECT_SOURCE_DIR}/apps" PROPERTY BUILDSYSTEM_TARGETS)
foreach(program IN LISTS programs)
  get_target_property(type ${program} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${program} PROPERTIES INSTALL_RPATH
      "$ORIGIN/../${libtorch_dir}/torch/lib;$ORIGIN/../${libtorch_dir}/nvidia/cu13/lib;${FSDP_LIBTORCH_DIR}/torch/lib;${FSDP_LIBTORCH_DIR}/nvidia/cu13/lib")
    install(TARGETS ${program} RUNTIME DESTINATION bin)
  endif()
endforeach()

install(DIRECTORY "${FSDP_LIBTORCH_DIR}/" DESTINATION ${libtorch_dir} COMPONENT libtorch EXCLUDE_FROM_ALL
        REGEX "/torch/include$" EXCLUDE)
install(DIRECTORY "${torch_include}" DESTINATION ${libtorch_dir}/torch COMPONENT libtorch EXCLUDE_FROM_ALL)
