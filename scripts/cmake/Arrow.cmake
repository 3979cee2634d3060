# arrow::parquet: libparquet and libarrow from the folder into which their wheel was unpacked, beside libtorch's.
set(FSDP_ARROW_VERSION 24.0.0)
cmake_path(GET FSDP_LIBTORCH_DIR PARENT_PATH arrow_parent)
set(FSDP_ARROW_DIR "${arrow_parent}/arrow-${FSDP_ARROW_VERSION}" CACHE PATH
    "Folder of the unpacked pyarrow wheel (scripts/install_dependencies makes it)")
set(arrow_dir "${FSDP_ARROW_DIR}/pyarrow")
file(GLOB arrow_libraries "${arrow_dir}/libparquet.so.*" "${arrow_dir}/libarrow.so.*")
list(LENGTH arrow_libraries number)
if(NOT number EQUAL 2)
  message(FATAL_ERROR "libparquet.so and libarrow.so of pyarrow ${FSDP_ARROW_VERSION} were expected in ${arrow_dir} and are not there; "
                      "run scripts/install_dependencies or set FSDP_ARROW_DIR")
endif()
add_library(arrow::parquet INTERFACE IMPORTED GLOBAL)
set_target_properties(arrow::parquet PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${arrow_dir}/include" INTERFACE_LINK_LIBRARIES "${arrow_libraries}")
