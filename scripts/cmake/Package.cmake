# Debian packages by CPack, which scripts/package runs: fsdp-toolkit has the programs, fsdp-toolkit-dev the static libraries,
# headers and the CMake package, fsdp-libtorch and fsdp-libtorch-dev the libtorch that both were built with; where there was an MPI,
# fsdp-toolkit-mpi has the module of comm.backend = "mpi", so that the programs need none.
# The CUDA flavour is one package, fsdp-toolkit-cuda, since libtorch for GPUs is 3 GB: its fsdp-fetch-libtorch fetches that.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME fsdp)
set(CPACK_PACKAGE_CONTACT "fsdp maintainers <maintainers@fsdp.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL programs)
if(NOT FSDP_WITH_CUDA)
  list(APPEND CPACK_COMPONENTS_ALL development libtorch_runtime libtorch_headers)
endif()
if(TARGET fsdp_mpi AND NOT FSDP_WITH_CUDA)
  list(APPEND CPACK_COMPONENTS_ALL mpi)
  set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SUGGESTS "fsdp-toolkit-mpi, ")
endif()
string(APPEND CPACK_DEBIAN_PROGRAMS_PACKAGE_SUGGESTS "python3 (>= 3.11)")  # of fsdp-follow-metrics
set(CPACK_COMPONENT_PROGRAMS_DESCRIPTION "train language models with fully sharded data parallelism
Programs that train transformer language models on CPUs, on one host or many,
and convert, verify and sample what was trained. fsdp-quickstart trains a small one.")
if(FSDP_WITH_CUDA)
  string(REPLACE "on CPUs" "on NVIDIA GPUs and CPUs" CPACK_COMPONENT_PROGRAMS_DESCRIPTION "${CPACK_COMPONENT_PROGRAMS_DESCRIPTION}")
endif()
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "libraries and headers to embed fsdp in C++ programs
find_package(fsdp) gives the static libraries of fsdp-toolkit as CMake targets.")
set(CPACK_COMPONENT_LIBTORCH_RUNTIME_DESCRIPTION "libtorch ${FSDP_LIBTORCH_MINOR_VERSION} for fsdp-toolkit
The CPU half of PyTorch's C++ library, in a folder of its own.")
set(CPACK_COMPONENT_LIBTORCH_HEADERS_DESCRIPTION "headers of libtorch ${FSDP_LIBTORCH_MINOR_VERSION} for fsdp-toolkit-dev
The headers of PyTorch's C++ library, in a folder of its own.")
set(CPACK_COMPONENT_MPI_DESCRIPTION "communication over MPI for fsdp-toolkit
The module of comm.backend = mpi, for the MPI that this package depends on.")
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME fsdp-toolkit)
if(FSDP_WITH_CUDA)
  set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME fsdp-toolkit-cuda)
  set(CPACK_DEBIAN_PROGRAMS_PACKAGE_CONFLICTS fsdp-toolkit)
  set(CPACK_DEBIAN_PROGRAMS_PACKAGE_DEPENDS "python3-pip, unzip")
  foreach(script IN ITEMS postinst postrm)
    list(APPEND CPACK_DEBIAN_PROGRAMS_PACKAGE_CONTROL_EXTRA "${PROJECT_SOURCE_DIR}/scripts/cmake/cuda_package/${script}")
  endforeach()
endif()
set(CPACK_DEBIAN_MPI_PACKAGE_NAME fsdp-toolkit-mpi)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_RECOMMENDS "libcurl4 | libcurl4t64 | libcurl3-gnutls")  # https:// and hf://, loaded when named
set(CPACK_DEBIAN_MPI_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME fsdp-toolkit-dev)
set(CPACK_DEBIAN_LIBTORCH_RUNTIME_PACKAGE_NAME fsdp-libtorch)
set(CPACK_DEBIAN_LIBTORCH_HEADERS_PACKAGE_NAME fsdp-libtorch-dev)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBTORCH_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBTORCH_HEADERS_PACKAGE_SECTION libdevel)

# What the programs link, by dpkg-shlibdeps; what a program that embeds the library needs, as find_package(fsdp) looks for it.
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_MPI_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${FSDP_LIBTORCH_DIR}/torch/lib" "${FSDP_LIBTORCH_DIR}/nvidia/cu13/lib" "${arrow_dir}")
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
if(NOT FSDP_WITH_CUDA)
  set(CPACK_COMPONENT_PROGRAMS_DEPENDS libtorch_runtime)
endif()
set(CPACK_COMPONENT_MPI_DEPENDS programs)
set(CPACK_COMPONENT_DEVELOPMENT_DEPENDS libtorch_headers)
set(CPACK_COMPONENT_LIBTORCH_HEADERS_DEPENDS libtorch_runtime)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "libspdlog-dev, libcli11-dev, libtoml11-dev, nlohmann-json3-dev, libhdf5-dev, libxxhash-dev, libgloo-dev, libpcre2-dev, libutf8proc-dev, libsentencepiece-dev")
set(CPACK_DEBIAN_LIBTORCH_RUNTIME_PACKAGE_DEPENDS "libc6 (>= 2.28), libgcc-s1, libstdc++6")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
# Unpacks ten times as fast as xz.
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
include(CPack)
