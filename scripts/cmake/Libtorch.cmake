# libtorch::cpu, the CPU half of libtorch, from the folder into which the wheels were unpacked, or that of an installed PyTorch
# (site-packages, or its folder torch); libtorch::cuda, the other half, and libtorch::cuda_headers with FSDP_WITH_CUDA.
# The wheel's own find_package(Torch) insists on a CUDA toolkit, so the targets are defined here.
if(FSDP_LIBTORCH_DIR MATCHES "^(.+)/torch/?$" AND EXISTS "${CMAKE_MATCH_1}/torch/lib/libtorch_cpu.so")
  set(FSDP_LIBTORCH_DIR "${CMAKE_MATCH_1}")
endif()
set(torch_dir "${FSDP_LIBTORCH_DIR}/torch")
if(NOT EXISTS "${torch_dir}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "libtorch_cpu.so was expected in ${torch_dir}/lib and is not there; "
                      "run scripts/install_dependencies or set FSDP_LIBTORCH_DIR")
endif()
# Of the CUDA flavour a link to the headers of the other: under one name, what is compiled for one serves both (ccache).
file(REAL_PATH "${torch_dir}/include" torch_include)
file(STRINGS "${torch_include}/torch/headeronly/version.h" libtorch_numbers REGEX "^#define TORCH_VERSION_(MAJOR|MINOR) [0-9]+")
string(REGEX REPLACE "[^;]* ([0-9]+)" "\\1" libtorch_numbers "${libtorch_numbers}")
list(JOIN libtorch_numbers "." libtorch_numbers)
set(FSDP_LIBTORCH_MINOR_VERSION "${libtorch_numbers}" CACHE INTERNAL "As in 2.15: what is built needs the same")

# Headers that stand alone, for what must not load the library.
add_library(libtorch::headers INTERFACE IMPORTED GLOBAL)
set_target_properties(libtorch::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${torch_include}")

add_library(libtorch::c10 SHARED IMPORTED GLOBAL)
set_target_properties(libtorch::c10 PROPERTIES IMPORTED_LOCATION "${torch_dir}/lib/libc10.so")

file(GLOB torch_gomp "${torch_dir}/lib/libgomp*.so*")  # some wheels have a hash in its name
add_library(libtorch::cpu SHARED IMPORTED GLOBAL)
set_target_properties(libtorch::cpu PROPERTIES
  IMPORTED_LOCATION "${torch_dir}/lib/libtorch_cpu.so"
  INTERFACE_INCLUDE_DIRECTORIES "${torch_include};${torch_include}/torch/csrc/api/include"
  INTERFACE_COMPILE_DEFINITIONS "USE_C10D_GLOO;USE_DISTRIBUTED"
  # libtorch_cpu needs libcudart and libcupti, which lie in a folder of their own beside torch/.
  INTERFACE_LINK_OPTIONS "-Wl,-rpath-link,${FSDP_LIBTORCH_DIR}/nvidia/cu13/lib"
  # libgomp: the one whose threads libtorch's own kernels run on.
  INTERFACE_LINK_LIBRARIES "libtorch::c10;Threads::Threads;${torch_gomp}")

if(FSDP_WITH_CUDA)
  set(cuda_libraries "${torch_dir}/lib/libtorch_cuda.so" "${torch_dir}/lib/libc10_cuda.so"
                     "${FSDP_LIBTORCH_DIR}/nvidia/cu13/lib/libcudart.so.13"
                     "${FSDP_LIBTORCH_DIR}/nvidia/cu13/lib/libcublasLt.so.13")
  foreach(library IN LISTS cuda_libraries)
    if(NOT EXISTS "${library}")
      message(FATAL_ERROR "${library} was expected and is not there; run scripts/install_dependencies --cuda")
    endif()
  endforeach()
  file(GLOB cuda_library_folders "${FSDP_LIBTORCH_DIR}/nvidia/*/lib")
  list(TRANSFORM cuda_library_folders PREPEND "-Wl,-rpath-link," OUTPUT_VARIABLE cuda_link_paths)
  # Registers its kernels when it is loaded; nothing may refer to its symbols, so the linker must be told to keep it.
  list(JOIN cuda_libraries "," cuda_libraries)
  add_library(libtorch::cuda INTERFACE IMPORTED GLOBAL)
  set_target_properties(libtorch::cuda PROPERTIES
    INTERFACE_LINK_OPTIONS "-Wl,--no-as-needed,${cuda_libraries},--as-needed;${cuda_link_paths}"
    INTERFACE_LINK_LIBRARIES "libtorch::cpu")
  # For what names CUDA's and NCCL's own types; those of a toolkit go before them.
  file(GLOB cuda_include_folders "${FSDP_LIBTORCH_DIR}/nvidia/*/include")
  add_library(libtorch::cuda_headers INTERFACE IMPORTED GLOBAL)
  set_target_properties(libtorch::cuda_headers PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${cuda_include_folders}" INTERFACE_COMPILE_DEFINITIONS "USE_C10D_NCCL")
endif()
list(APPEND CMAKE_BUILD_RPATH "${torch_dir}/lib" "${FSDP_LIBTORCH_DIR}/nvidia/cu13/lib")
