# fsdp_component(NAME [TENSORS | FUNCTIONS | MODULES] [COLD] [CUDA] [INTERNAL] [LINK targets...]): one folder of a zone of lib/ as the static library
# fsdp::NAME. Its LINK names every component that its files include, and no other.
# TENSORS, FUNCTIONS, MODULES: shares the precompiled header of that name (lib/base/tensor/*_precompiled.h), the least that most files need.
# COLD: no time of a training step is spent in it, so it is compiled in half the time, with -Og.
# Each component is installed (Install.cmake), except those that are INTERNAL, of our programs alone.
# What only the CUDA flavour has of a CUDA component lies in its cuda/ (.cu and .cpp); cuda_absent.cpp beside it stands in
# for that in the other flavour. All else is the same object in both: no macro tells them apart.
# fsdp_program(NAME SOURCES [TENSORS | FUNCTIONS | MODULES] [PLUGINS] [LINK targets...]) and fsdp_component_test(COMPONENT ...) use the same flags.
set(FSDP_WARNINGS -Wall -Wextra)
# -Og runs too little of the optimizer for GCC to tell what is initialized: it would suspect std::regex.
set(FSDP_QUICK_COMPILATION "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-Og;-Wno-maybe-uninitialized>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  # Of std::vector<bool> in libtorch's templates GCC 13 and 14 say, wrongly, that it writes past its end.
  list(APPEND FSDP_WARNINGS -Wno-error=array-bounds)
endif()

# fsdp::headers: the public headers (include/fsdp), which name what is internal (lib/) by the components' folders.
file(GLOB public_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/fsdp/*.h")
file(GLOB internal_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/lib/*/*/*.h" "${PROJECT_SOURCE_DIR}/lib/shard/engine/reduce/*.h")
list(FILTER internal_headers EXCLUDE REGEX "_precompiled\\.h$")
add_library(fsdp_headers INTERFACE)
add_library(fsdp::headers ALIAS fsdp_headers)
set_target_properties(fsdp_headers PROPERTIES EXPORT_NAME headers)
target_compile_features(fsdp_headers INTERFACE cxx_std_20)  # for projects that embed the library and set no standard
target_sources(fsdp_headers
  INTERFACE FILE_SET internal TYPE HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/lib" FILES ${internal_headers}
  INTERFACE FILE_SET public TYPE HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include" FILES ${public_headers})

function(fsdp_flags target)
  # -fPIC everywhere, programs included: the precompiled header is compiled once, with one set of flags.
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:C,CXX>:${FSDP_WARNINGS};-fPIC>")
  # GCC collects its garbage all the time in 128 MB; with 1 GB, a tenth of the time is saved.
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>")
  # Messages name sources from the top of the checkout, wherever it is; so objects are the same in each (ccache).
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:C,CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>")
  if(FSDP_SANITIZE)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${FSDP_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=undefined>")
    target_link_options(${target} PUBLIC -fsanitize=${FSDP_SANITIZE})
  endif()
endfunction()

# fsdp_precompile(WHAT): makes the precompiled header lib/base/tensor/WHAT_precompiled.h, for fsdp_use_torch_header().
function(fsdp_precompile what)
  set(target fsdp_${what}_precompiled)
  set(header "${PROJECT_SOURCE_DIR}/lib/base/tensor/${what}_precompiled.h")
  file(CONFIGURE OUTPUT ${target}.cpp CONTENT "")
  add_library(${target} OBJECT "${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp")
  target_link_libraries(${target} PRIVATE fsdp::headers libtorch::cpu)
  fsdp_flags(${target})
  target_precompile_headers(${target} PRIVATE "${header}")
  # What ccache takes for the compiled header (CCACHE_PCH_EXTSUM), which itself has the path of the checkout in it.
  file(GLOB parts CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/lib/base/tensor/*_precompiled.h")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${parts})
  set(sums ${what} ${CMAKE_CXX_COMPILER_VERSION})
  foreach(part IN LISTS parts ITEMS "${torch_include}/torch/headeronly/version.h")
    file(SHA256 "${part}" sum)
    list(APPEND sums ${sum})
  endforeach()
  file(GENERATE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir/cmake_pch.hxx.gch.sum" CONTENT "${sums}\n")
endfunction()

function(fsdp_use_torch_header target)
  foreach(what IN ITEMS tensors functions modules)
    string(TOUPPER ${what} flag)
    if(${flag} IN_LIST ARGN)
      target_precompile_headers(${target} REUSE_FROM fsdp_${what}_precompiled)
      return()
    endif()
  endforeach()
endfunction()

# Notes a component for its zone, the folder around it, and for fsdp::fsdp (Install.cmake).
function(fsdp_join_zone name)
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR PARENT_PATH zone)
  cmake_path(GET zone FILENAME zone)
  set_property(GLOBAL APPEND PROPERTY FSDP_COMPONENTS fsdp::${name})
  set_property(GLOBAL APPEND PROPERTY FSDP_ZONE_${zone} fsdp::${name})
endfunction()

# fsdp_zone(NAME [LINK targets...]): fsdp::NAME for those who link all components of a zone, and what they need with them.
function(fsdp_zone name)
  cmake_parse_arguments(ZONE "" "" "LINK" ${ARGN})
  get_property(components GLOBAL PROPERTY FSDP_ZONE_${name})
  add_library(fsdp_${name} INTERFACE)
  add_library(fsdp::${name} ALIAS fsdp_${name})
  set_target_properties(fsdp_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(fsdp_${name} INTERFACE ${components} ${ZONE_LINK})
  install(TARGETS fsdp_${name} EXPORT fsdp COMPONENT development)
endfunction()

function(fsdp_component name)
  cmake_parse_arguments(ROOM "TENSORS;FUNCTIONS;MODULES;COLD;CUDA;INTERNAL" "" "LINK;SOURCES" ${ARGN})
  if(NOT ROOM_SOURCES)
    file(GLOB ROOM_SOURCES CONFIGURE_DEPENDS *.cpp)
  endif()
  if(ROOM_CUDA AND FSDP_WITH_CUDA)
    file(GLOB cuda_sources CONFIGURE_DEPENDS cuda/*.cu cuda/*.cpp)
    list(FILTER ROOM_SOURCES EXCLUDE REGEX "(^|/)cuda_absent\\.cpp$")
  endif()
  add_library(fsdp_${name} STATIC ${ROOM_SOURCES})
  add_library(fsdp::${name} ALIAS fsdp_${name})
  set_target_properties(fsdp_${name} PROPERTIES EXPORT_NAME ${name})
  if(NOT ROOM_INTERNAL)
    install(TARGETS fsdp_${name} EXPORT fsdp ARCHIVE DESTINATION lib COMPONENT development)
    fsdp_join_zone(${name})
  endif()
  target_link_libraries(fsdp_${name} PUBLIC fsdp::headers ${ROOM_LINK})
  fsdp_flags(fsdp_${name})
  if(ROOM_COLD)
    target_compile_options(fsdp_${name} PRIVATE ${FSDP_QUICK_COMPILATION})
  endif()
  fsdp_use_torch_header(fsdp_${name} ${ARGN})
  if(cuda_sources)
    # A target of its own, because only these files see CUDA's headers.
    add_library(fsdp_${name}_cuda OBJECT ${cuda_sources})
    target_include_directories(fsdp_${name}_cuda PRIVATE "${PROJECT_SOURCE_DIR}/lib")
    target_link_libraries(fsdp_${name}_cuda PRIVATE ${ROOM_LINK} libtorch::cuda libtorch::cuda_headers)
    fsdp_flags(fsdp_${name}_cuda)
    fsdp_cuda_flags(fsdp_${name}_cuda)
    target_sources(fsdp_${name} PRIVATE $<TARGET_OBJECTS:fsdp_${name}_cuda>)
    set_target_properties(fsdp_${name} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_libraries(fsdp_${name} PUBLIC libtorch::cuda)
  endif()
endfunction()

# fsdp_options(NAME [LINK targets...]): a component of headers alone.
function(fsdp_options name)
  cmake_parse_arguments(OPTIONS "" "" "LINK" ${ARGN})
  add_library(fsdp_${name} INTERFACE)
  add_library(fsdp::${name} ALIAS fsdp_${name})
  target_link_libraries(fsdp_${name} INTERFACE fsdp::headers ${OPTIONS_LINK})
  set_target_properties(fsdp_${name} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS fsdp_${name} EXPORT fsdp COMPONENT development)
  fsdp_join_zone(${name})
endfunction()

# fsdp::plugin_interface: what a plug-in compiles against (fsdp_add_plugin() of the CMake package). It takes symbols from the
# program that loads it.
add_library(fsdp_plugin_interface INTERFACE)
add_library(fsdp::plugin_interface ALIAS fsdp_plugin_interface)
set_target_properties(fsdp_plugin_interface PROPERTIES EXPORT_NAME plugin_interface)
target_link_libraries(fsdp_plugin_interface INTERFACE fsdp::headers libtorch::cpu nlohmann_json::nlohmann_json)
target_compile_definitions(fsdp_plugin_interface INTERFACE FSDP_VERSION="${PROJECT_VERSION}")
install(TARGETS fsdp_plugin_interface EXPORT fsdp COMPONENT development)

# PLUGINS: a program that loads plug-ins. They take symbols from it, so it has all of the components that they build on.
function(fsdp_program name sources)
  cmake_parse_arguments(PROGRAM "TENSORS;FUNCTIONS;MODULES;PLUGINS" "" "LINK" ${ARGN})
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${PROGRAM_LINK})
  if(PROGRAM_PLUGINS)
    set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
    set(whole "")
    foreach(component IN ITEMS plugin nn parallel kernels optim loading tokens tokenizers data_options groups families config tensor dtype util)
      target_link_libraries(${name} PRIVATE fsdp::${component})
      list(APPEND whole "$<TARGET_FILE:fsdp_${component}>")
    endforeach()
    list(JOIN whole "," whole)
    target_link_options(${name} PRIVATE "LINKER:--whole-archive,${whole},--no-whole-archive")
  endif()
  fsdp_flags(${name})
  target_compile_options(${name} PRIVATE ${FSDP_QUICK_COMPILATION})  # what they call is optimized
  fsdp_use_torch_header(${name} ${ARGN})
endfunction()

# Tests of the CUDA flavour are called cuda/..., so that one run of ctest can have those of both.
if(FSDP_WITH_CUDA)
  set(FSDP_TEST_PREFIX cuda/)
endif()

function(fsdp_test_program name sources)
  fsdp_program(${name} "${sources}" ${ARGN})
  target_link_libraries(${name} PRIVATE GTest::gmock fsdp_source_folder)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
endfunction()

# Where there are GPUs, tests that do not ask for them must find what they find elsewhere: those without one of the labels gpu
# and standin see none. A property of tests.
set(FSDP_WITHOUT_GPUS ENVIRONMENT_MODIFICATION CUDA_VISIBLE_DEVICES=set:)

# fsdp_gtest(NAME TARGET [PARTS COUNT] [PROPERTY VALUE]...): one ctest entry for all tests of a binary: loading libtorch once
# a component keeps the suite short. PARTS: several entries, NAME.1 and so on, which run at once. With FSDP_DISCOVER_TESTS one
# for each test, as NAME.SUITE.TEST, which IDEs can list and start; ctest asks the binaries for them before it runs.
# The limit is some ten times what the longest takes on an idle machine.
function(fsdp_gtest name target)
  cmake_parse_arguments(GTEST "" "PARTS" "" ${ARGN})
  set(properties TIMEOUT 1800 ${FSDP_WITHOUT_GPUS} ${GTEST_UNPARSED_ARGUMENTS})
  if(FSDP_DISCOVER_TESTS)
    gtest_discover_tests(${target} TEST_PREFIX ${FSDP_TEST_PREFIX}${name}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                         PROPERTIES ${properties})
    return()
  endif()
  if(NOT GTEST_PARTS)
    add_test(NAME ${FSDP_TEST_PREFIX}${name} COMMAND ${target})
    set_tests_properties(${FSDP_TEST_PREFIX}${name} PROPERTIES ${properties})
    return()
  endif()
  foreach(part RANGE 1 ${GTEST_PARTS})
    set(test ${FSDP_TEST_PREFIX}${name}.${part})
    math(EXPR index "${part} - 1")
    add_test(NAME ${test} COMMAND ${target})
    set_tests_properties(${test} PROPERTIES ${properties})
    set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT GTEST_TOTAL_SHARDS=${GTEST_PARTS} GTEST_SHARD_INDEX=${index})
  endforeach()
endfunction()

# fsdp_component_test(NAME [FOLDERS folder...] [LABEL LABEL] [PARTS COUNT] ...): every *_test.cpp of these folders of tests/, or of
# tests/NAME, in one binary. Those of their folders cuda/, in the CUDA flavour, are a binary of their own, which is skipped where
# there is no GPU.
function(fsdp_component_test component)
  cmake_parse_arguments(TEST "TENSORS;FUNCTIONS;MODULES" "LABEL;PARTS" "FOLDERS;LINK" ${ARGN})
  if(NOT TEST_FOLDERS)
    set(TEST_FOLDERS ${component})
  endif()
  set(flags LINK ${TEST_LINK})
  foreach(header IN ITEMS TENSORS FUNCTIONS MODULES)
    if(TEST_${header})
      list(PREPEND flags ${header})
    endif()
  endforeach()
  if(NOT TEST_LABEL)
    set(TEST_LABEL unit)
  endif()
  list(TRANSFORM TEST_FOLDERS PREPEND "${PROJECT_SOURCE_DIR}/tests/")
  list(TRANSFORM TEST_FOLDERS APPEND "/*_test.cpp" OUTPUT_VARIABLE patterns)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  fsdp_test_program(${component}_test "${sources}" ${flags})
  target_link_libraries(${component}_test PRIVATE GTest::gtest_main)
  # The longest start first.
  set(properties LABELS ${TEST_LABEL} COST $<IF:$<STREQUAL:${TEST_LABEL},processes>,1000,0>)
  if(TEST_PARTS)
    set(properties PARTS ${TEST_PARTS} LABELS ${TEST_LABEL} COST 1000)
  endif()
  fsdp_gtest(${component} ${component}_test ${properties})

  list(TRANSFORM TEST_FOLDERS APPEND "/cuda/*_test.cpp" OUTPUT_VARIABLE patterns)
  file(GLOB gpu_sources CONFIGURE_DEPENDS ${patterns})
  if(FSDP_WITH_CUDA AND gpu_sources)
    fsdp_test_program(${component}_gpu_test "${gpu_sources};${PROJECT_SOURCE_DIR}/tests/support/gpu_main.cpp" ${flags})
    target_link_libraries(${component}_gpu_test PRIVATE GTest::gtest fsdp::device libtorch::cuda libtorch::cuda_headers)
    add_test(NAME ${FSDP_TEST_PREFIX}${component}_gpu COMMAND ${component}_gpu_test)
    # One at a time: each measures memory that it takes to be its own.
    set_tests_properties(${FSDP_TEST_PREFIX}${component}_gpu PROPERTIES TIMEOUT 1800 LABELS "unit;gpu" SKIP_RETURN_CODE 77
                                                                  RESOURCE_LOCK gpu)
  endif()
endfunction()
