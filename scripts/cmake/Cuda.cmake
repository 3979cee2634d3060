# The CUDA flavour: the toolkit, the architectures, and fsdp_cuda_flags(TARGET) for targets with .cu files.
#   TORCH_CUDA_ARCH_LIST   in the environment or the cache, as PyTorch has it: "8.0;9.0a;12.0+PTX". By default 8.0, 9.0,
#                          10.0 and 12.0, as far as the toolkit knows them, and PTX of the last for GPUs to come.
set(cuda_default_architectures 8.0 9.0 10.0 12.0)

find_program(FSDP_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin
             DOC "The compiler of the CUDA toolkit")
if(NOT FSDP_NVCC)
  message(FATAL_ERROR "FSDP_WITH_CUDA: expected nvcc on PATH, in CUDA_HOME or in /usr/local/cuda, and found none; "
                      "install the CUDA 13.0 toolkit, name its nvcc with -DFSDP_NVCC=PATH, or build without CUDA")
endif()
execute_process(COMMAND "${FSDP_NVCC}" --version OUTPUT_VARIABLE nvcc_version ERROR_VARIABLE nvcc_version)
string(REGEX MATCH "release ([0-9]+)\\.([0-9]+)" nvcc_version "${nvcc_version}")
set(nvcc_version "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
if(NOT CMAKE_MATCH_1 STREQUAL "13")
  message(FATAL_ERROR "FSDP_WITH_CUDA: expected the CUDA toolkit 13, which libtorch is built with; found ${nvcc_version} in "
                      "${FSDP_NVCC}; put CUDA 13's nvcc first on PATH, name it with -DFSDP_NVCC=PATH, or build without CUDA")
endif()

# Architectures are given to nvcc by hand: CMake's own list does not know torch's syntax.
set(CMAKE_CUDA_COMPILER "${FSDP_NVCC}")
set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
set(CMAKE_CUDA_ARCHITECTURES OFF)
# libtorch brings the CUDA runtime as a shared library; a second, static one would not know its streams.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
enable_language(CUDA)
# CMake 3.25 does not know nvcc's flag for C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)

execute_process(COMMAND "${FSDP_NVCC}" --list-gpu-arch OUTPUT_VARIABLE nvcc_architectures)
string(REGEX MATCHALL "[0-9]+" nvcc_architectures "${nvcc_architectures}")

set(TORCH_CUDA_ARCH_LIST "$ENV{TORCH_CUDA_ARCH_LIST}" CACHE STRING "GPU architectures, as in \"8.0;9.0a;12.0+PTX\"")
string(REGEX REPLACE "[ ,]+" ";" cuda_architectures "${TORCH_CUDA_ARCH_LIST}")
if(NOT cuda_architectures)
  foreach(architecture IN LISTS cuda_default_architectures)
    string(REPLACE "." "" number "${architecture}")
    if(number IN_LIST nvcc_architectures)
      list(APPEND cuda_architectures ${architecture})
    endif()
  endforeach()
  list(POP_BACK cuda_architectures last)
  list(APPEND cuda_architectures "${last}+PTX")
endif()

set(cuda_architecture_flags "")
foreach(architecture IN LISTS cuda_architectures)
  if(NOT architecture MATCHES "^([0-9]+)\\.([0-9])([af]?)(\\+PTX)?$")
    message(FATAL_ERROR "TORCH_CUDA_ARCH_LIST: expected architectures as in \"8.0;9.0a;12.0+PTX\", found \"${architecture}\"")
  endif()
  set(number "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
  set(name "${number}${CMAKE_MATCH_3}")
  set(with_ptx "${CMAKE_MATCH_4}")
  if(NOT number IN_LIST nvcc_architectures)
    list(JOIN nvcc_architectures ", " known)
    message(FATAL_ERROR "TORCH_CUDA_ARCH_LIST: the CUDA toolkit ${nvcc_version} does not know ${architecture}; it knows ${known} "
                        "(in tenths)")
  endif()
  list(APPEND cuda_architecture_flags "SHELL:-gencode arch=compute_${name},code=sm_${name}")
  if(with_ptx)
    list(APPEND cuda_architecture_flags "SHELL:-gencode arch=compute_${name},code=compute_${name}")
  endif()
endforeach()
list(JOIN cuda_architectures " " text)
message(STATUS "CUDA toolkit ${nvcc_version} for ${text}")

function(fsdp_cuda_flags target)
  list(JOIN FSDP_WARNINGS "," warnings)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extended-lambda;-Xcompiler=${warnings},-fPIC>"
    "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_architecture_flags}>")
endfunction()
