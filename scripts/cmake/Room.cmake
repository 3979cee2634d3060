# fsdp_room(NAME [TORCH] [LINK targets...]): one folder of lib/ as the static library fsdp::NAME.
# TORCH rooms share one precompiled header of libtorch. Each is installed with its headers (Install.cmake).
# fsdp_program(NAME SOURCES LINK targets...) and fsdp_room_test(ROOM [LINK targets...]) use the same flags.
set(FSDP_WARNINGS -Wall -Wextra)

function(fsdp_flags target)
  # -fPIC everywhere, programs included: the precompiled header is compiled once, with one set of flags.
  target_compile_options(${target} PRIVATE ${FSDP_WARNINGS} -fPIC)
  if(FSDP_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${FSDP_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=undefined)
    target_link_options(${target} PUBLIC -fsanitize=${FSDP_SANITIZE})
  endif()
endfunction()

function(fsdp_use_torch_header target)
  if(target STREQUAL "fsdp_tensor")
    target_precompile_headers(${target} PRIVATE "${PROJECT_SOURCE_DIR}/lib/util/torch_precompiled.h")
  else()
    target_precompile_headers(${target} REUSE_FROM fsdp_tensor)
  endif()
endfunction()

function(fsdp_room name)
  cmake_parse_arguments(ROOM "TORCH" "" "LINK;SOURCES" ${ARGN})
  if(NOT ROOM_SOURCES)
    file(GLOB ROOM_SOURCES CONFIGURE_DEPENDS *.cpp)
  endif()
  add_library(fsdp_${name} STATIC ${ROOM_SOURCES})
  add_library(fsdp::${name} ALIAS fsdp_${name})
  target_include_directories(fsdp_${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/lib>"
                                                 "$<INSTALL_INTERFACE:include/fsdp>")
  set_target_properties(fsdp_${name} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS fsdp_${name} EXPORT fsdp ARCHIVE DESTINATION lib)
  set_property(GLOBAL APPEND PROPERTY FSDP_ROOMS fsdp::${name})
  target_link_libraries(fsdp_${name} PUBLIC ${ROOM_LINK})
  fsdp_flags(fsdp_${name})
  if(ROOM_TORCH)
    fsdp_use_torch_header(fsdp_${name})
  endif()
endfunction()

function(fsdp_program name sources)
  cmake_parse_arguments(PROGRAM "TORCH" "" "LINK" ${ARGN})
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${PROGRAM_LINK})
  fsdp_flags(${name})
endfunction()

# Every *_test.cpp of tests/ROOM in one binary, one ctest entry: loading libtorch once a room keeps the suite short.
function(fsdp_room_test room)
  cmake_parse_arguments(TEST "TORCH" "" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${room}/*_test.cpp)
  add_executable(${room}_test ${sources})
  target_link_libraries(${room}_test PRIVATE ${TEST_LINK} GTest::gtest_main GTest::gmock)
  target_include_directories(${room}_test PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  fsdp_flags(${room}_test)
  if(TEST_TORCH)
    fsdp_use_torch_header(${room}_test)
  endif()
  add_test(NAME ${room} COMMAND ${room}_test)
  set_tests_properties(${room} PROPERTIES TIMEOUT 600 LABELS unit)
endfunction()
