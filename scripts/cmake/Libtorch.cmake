# libtorch::cpu, the CPU half of libtorch, from the folder into which the wheels were unpacked.
# The wheel's own find_package(Torch) insists on a CUDA toolkit, so the target is defined here.
set(torch_dir "${FSDP_LIBTORCH_DIR}/torch")
if(NOT EXISTS "${torch_dir}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "libtorch_cpu.so was expected in ${torch_dir}/lib and is not there; "
                      "run scripts/install_dependencies or set FSDP_LIBTORCH_DIR")
endif()

# Headers that stand alone, for what must not load the library.
add_library(libtorch::headers INTERFACE IMPORTED)
set_target_properties(libtorch::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${torch_dir}/include")

add_library(libtorch::c10 SHARED IMPORTED)
set_target_properties(libtorch::c10 PROPERTIES IMPORTED_LOCATION "${torch_dir}/lib/libc10.so")

add_library(libtorch::cpu SHARED IMPORTED)
set_target_properties(libtorch::cpu PROPERTIES
  IMPORTED_LOCATION "${torch_dir}/lib/libtorch_cpu.so"
  INTERFACE_INCLUDE_DIRECTORIES "${torch_dir}/include;${torch_dir}/include/torch/csrc/api/include"
  INTERFACE_COMPILE_DEFINITIONS "USE_C10D_GLOO;USE_DISTRIBUTED"
  # libtorch_cpu needs libcudart and libcupti, which lie in a folder of their own beside torch/.
  INTERFACE_LINK_OPTIONS "-Wl,-rpath-link,${FSDP_LIBTORCH_DIR}/nvidia/cu13/lib"
  INTERFACE_LINK_LIBRARIES "libtorch::c10;Threads::Threads")

if(FSDP_CUDA)
  # Registers its kernels when it is loaded; nothing refers to its symbols, so the linker must be told to keep it.
  foreach(library IN ITEMS torch_cuda c10_cuda)
    if(NOT EXISTS "${torch_dir}/lib/lib${library}.so")
      message(FATAL_ERROR "lib${library}.so was expected in ${torch_dir}/lib; run scripts/install_dependencies --cuda")
    endif()
  endforeach()
  file(GLOB cuda_library_folders "${FSDP_LIBTORCH_DIR}/nvidia/*/lib")
  list(TRANSFORM cuda_library_folders PREPEND "-Wl,-rpath-link," OUTPUT_VARIABLE cuda_link_paths)
  set_property(TARGET libtorch::cpu APPEND PROPERTY INTERFACE_LINK_OPTIONS
    "-Wl,--no-as-needed,${torch_dir}/lib/libtorch_cuda.so,${torch_dir}/lib/libc10_cuda.so,--as-needed" ${cuda_link_paths})
endif()
list(APPEND CMAKE_BUILD_RPATH "${torch_dir}/lib" "${FSDP_LIBTORCH_DIR}/nvidia/cu13/lib")
