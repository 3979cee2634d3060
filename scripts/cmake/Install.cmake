# cmake --install BUILD --prefix P: programs, libraries, headers and the CMake package fsdp.
#   find_package(fsdp 0.2 CONFIG REQUIRED)
#   target_link_libraries(mine PRIVATE fsdp::fsdp)        # or single components: fsdp::shard
# libtorch stays where it is, and a link in the prefix names it; with --component libtorch it is copied into the prefix,
# which then stands alone. The components programs, development and mpi are packages (Package.cmake), as are the two parts of libtorch.
include(CMakePackageConfigHelpers)
set(package_dir lib/cmake/fsdp)
set(libtorch_dir lib/fsdp/libtorch)  # below the prefix
set(arrow_install_dir lib/fsdp/arrow)

# All components at once.
get_property(components GLOBAL PROPERTY FSDP_COMPONENTS)
add_library(fsdp_all INTERFACE)
add_library(fsdp::fsdp ALIAS fsdp_all)
set_target_properties(fsdp_all PROPERTIES EXPORT_NAME fsdp)
target_link_libraries(fsdp_all INTERFACE ${components})
install(TARGETS fsdp_all EXPORT fsdp COMPONENT development)

install(TARGETS fsdp_headers EXPORT fsdp COMPONENT development
        FILE_SET public DESTINATION include COMPONENT development
        FILE_SET internal DESTINATION include/fsdp/internal COMPONENT development)
install(EXPORT fsdp NAMESPACE fsdp:: FILE fsdpTargets.cmake DESTINATION ${package_dir} COMPONENT development)

configure_package_config_file("${PROJECT_SOURCE_DIR}/scripts/cmake/fsdpConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/fsdpConfig.cmake" INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/fsdpConfig.cmake" "${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/scripts/cmake/Libtorch.cmake"
              "${PROJECT_SOURCE_DIR}/scripts/cmake/Plugin.cmake" DESTINATION ${package_dir} COMPONENT development)

# Programs look for libtorch in the prefix alone, and those of the build folder by links in the same places: a run path for
# the build that is changed at the installation would be padded by CMake with empty elements, and the loader takes those for
# the current folder.
get_property(programs DIRECTORY "${PROJECT_SOURCE_DIR}/apps" PROPERTY BUILDSYSTEM_TARGETS)
set(build_prefix "${PROJECT_BINARY_DIR}")
if(CMAKE_RUNTIME_OUTPUT_DIRECTORY)
  cmake_path(GET CMAKE_RUNTIME_OUTPUT_DIRECTORY PARENT_PATH build_prefix)
endif()
file(MAKE_DIRECTORY "${build_prefix}/lib/fsdp")
file(CREATE_LINK "${FSDP_LIBTORCH_DIR}" "${build_prefix}/${libtorch_dir}" SYMBOLIC)
file(CREATE_LINK "${arrow_dir}" "${build_prefix}/${arrow_install_dir}" SYMBOLIC)
foreach(program IN LISTS programs)
  get_target_property(type ${program} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${program} PROPERTIES BUILD_WITH_INSTALL_RPATH ON
      INSTALL_RPATH "$ORIGIN/../${libtorch_dir}/torch/lib;$ORIGIN/../${libtorch_dir}/nvidia/cu13/lib;$ORIGIN/../${arrow_install_dir}")
    install(TARGETS ${program} RUNTIME DESTINATION bin COMPONENT programs)
  endif()
endforeach()

# libarrow and libparquet, which fsdp-data and fsdp-train read tables by.
install(PROGRAMS ${arrow_libraries} DESTINATION ${arrow_install_dir} COMPONENT programs)
install(DIRECTORY "${FSDP_ARROW_DIR}/pyarrow-${FSDP_ARROW_VERSION}.dist-info/licenses" DESTINATION ${arrow_install_dir}
        COMPONENT programs)

# The quickstart and what it needs, configs to start from, launchers, pages.
file(WRITE "${PROJECT_BINARY_DIR}/fsdp-quickstart"
     "#!/bin/sh\nexec \"$(dirname \"$(realpath \"$0\")\")/../share/fsdp/scripts/quickstart\" \"$@\"\n")
install(PROGRAMS "${PROJECT_BINARY_DIR}/fsdp-quickstart" DESTINATION bin COMPONENT programs)
install(PROGRAMS "${PROJECT_SOURCE_DIR}/scripts/follow_metrics" DESTINATION bin RENAME fsdp-follow-metrics COMPONENT programs)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/configs" DESTINATION share/fsdp COMPONENT programs)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/scripts" DESTINATION share/fsdp COMPONENT programs USE_SOURCE_PERMISSIONS
        FILES_MATCHING PATTERN "common.sh" PATTERN "libtorch-version" PATTERN "quickstart" PATTERN "*shakespeare*" PATTERN "launch_*"
        PATTERN "chat_example" PATTERN "lm_eval_fsdp.py" PATTERN "grafana_dashboard.json"
        PATTERN "wireguard_pair" PATTERN "jobset.yaml" PATTERN "kubeflow-trainer.yaml" PATTERN "fsdp-train@.service"
        PATTERN "cmake" EXCLUDE PATTERN "wheel" EXCLUDE PATTERN "spack" EXCLUDE)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs/schemas" DESTINATION share/fsdp COMPONENT programs)
if(FSDP_WITH_CUDA)
  file(WRITE "${PROJECT_BINARY_DIR}/fsdp-fetch-libtorch"
       "#!/bin/sh\nexec \"$(dirname \"$(realpath \"$0\")\")/../share/fsdp/scripts/fetch_libtorch\" \"$@\"\n")
  install(PROGRAMS "${PROJECT_BINARY_DIR}/fsdp-fetch-libtorch" DESTINATION bin COMPONENT programs)
  install(PROGRAMS "${PROJECT_SOURCE_DIR}/scripts/fetch_libtorch" DESTINATION share/fsdp/scripts COMPONENT programs)
  install(FILES "${PROJECT_SOURCE_DIR}/scripts/wheels.sh" "${PROJECT_SOURCE_DIR}/scripts/libtorch-cuda.txt"
          DESTINATION share/fsdp/scripts COMPONENT programs)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" DESTINATION share/doc/fsdp-toolkit COMPONENT programs
        FILES_MATCHING PATTERN "*.md")
install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
        DESTINATION share/doc/fsdp-toolkit COMPONENT programs)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples" DESTINATION share/doc/fsdp-toolkit COMPONENT development)

set(place "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${libtorch_dir}")
install(CODE "
  if(NOT EXISTS \"${place}/torch\")
    get_filename_component(folder \"${place}\" DIRECTORY)
    file(MAKE_DIRECTORY \"\${folder}\")
    file(CREATE_LINK \"${FSDP_LIBTORCH_DIR}\" \"${place}\" SYMBOLIC)
  endif()" COMPONENT libtorch_link)
# The copy in two parts for the packages, libtorch_runtime and libtorch_headers.
install(CODE "
  if(IS_SYMLINK \"${place}\")
    file(REMOVE \"${place}\")
  endif()" COMPONENT libtorch EXCLUDE_FROM_ALL)
foreach(component IN ITEMS libtorch libtorch_runtime)
  install(DIRECTORY "${FSDP_LIBTORCH_DIR}/" DESTINATION ${libtorch_dir} COMPONENT ${component} EXCLUDE_FROM_ALL
          REGEX "/torch/include$" EXCLUDE PATTERN "complete" EXCLUDE)
  # Its symbols for debuggers are a fifth of its size. The library for aarch64 has passed through patchelf, and what strip
  # makes of such a file crashes when it is loaded.
  install(CODE "
    if(CMAKE_INSTALL_DO_STRIP AND \"${CMAKE_SYSTEM_PROCESSOR}\" STREQUAL \"x86_64\")
      execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-unneeded \"${place}/torch/lib/libtorch_cpu.so\" COMMAND_ERROR_IS_FATAL ANY)
    endif()" COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
foreach(component IN ITEMS libtorch libtorch_headers)
  install(DIRECTORY "${torch_include}" DESTINATION ${libtorch_dir}/torch COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
