# fsdp_jinja: llama.cpp's engine for chat templates (Jinja), from the folder into which scripts/install_dependencies unpacked it,
# beside libtorch's. Objects, which the component that uses them contains.
cmake_path(GET FSDP_LIBTORCH_DIR PARENT_PATH jinja_parent)
set(FSDP_JINJA_DIR "${jinja_parent}/llama.cpp-jinja-0.3.36" CACHE PATH
    "Folder of llama.cpp's files for Jinja (scripts/install_dependencies makes it)")
if(NOT EXISTS "${FSDP_JINJA_DIR}/common/jinja/runtime.h")
  message(FATAL_ERROR "llama.cpp's engine for chat templates was expected in ${FSDP_JINJA_DIR} and is not there; "
                      "run scripts/install_dependencies or set FSDP_JINJA_DIR")
endif()
# A copy whose conversions of values call lib/data/chat/chat_python.h.
set(jinja_folder "${CMAKE_BINARY_DIR}/jinja")
set(jinja_common "${jinja_folder}/common")
set(jinja_patch "${CMAKE_CURRENT_LIST_DIR}/jinja.patch")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${jinja_patch}")
file(SHA256 "${jinja_patch}" jinja_patch_hash)
if(NOT EXISTS "${jinja_folder}/patched-${jinja_patch_hash}")
  find_package(Git REQUIRED)
  file(REMOVE_RECURSE "${jinja_folder}")
  file(COPY "${FSDP_JINJA_DIR}/common" DESTINATION "${jinja_folder}")
  # Without the ceiling, git would look for the files in the repository around the build folder.
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "GIT_CEILING_DIRECTORIES=${CMAKE_BINARY_DIR}" "${GIT_EXECUTABLE}" apply "${jinja_patch}"
    WORKING_DIRECTORY "${jinja_folder}" RESULT_VARIABLE jinja_failed ERROR_VARIABLE jinja_error)
  if(jinja_failed)
    message(FATAL_ERROR "${jinja_patch} was expected to fit the engine for chat templates in ${FSDP_JINJA_DIR} and does not "
                        "(${jinja_error}); run scripts/install_dependencies for the pinned version")
  endif()
  file(TOUCH "${jinja_folder}/patched-${jinja_patch_hash}")
endif()
# The one thing that its wrapper of JSON takes from ggml.
set(jinja_shim "${jinja_folder}/shim")
file(CONFIGURE OUTPUT "${jinja_shim}/ggml.h" CONTENT "#pragma once\n#include <cassert>\n#define GGML_ASSERT(x) assert(x)\n")
add_library(fsdp_jinja OBJECT
  "${jinja_common}/jinja/lexer.cpp" "${jinja_common}/jinja/parser.cpp" "${jinja_common}/jinja/runtime.cpp"
  "${jinja_common}/jinja/string.cpp" "${jinja_common}/jinja/value.cpp" "${jinja_common}/json.cpp" "${jinja_common}/unicode.cpp")
target_include_directories(fsdp_jinja SYSTEM PUBLIC "${jinja_common}" "${jinja_shim}")
target_include_directories(fsdp_jinja PRIVATE "${PROJECT_SOURCE_DIR}/lib")
set_target_properties(fsdp_jinja PROPERTIES UNITY_BUILD OFF)
fsdp_flags(fsdp_jinja)
target_compile_options(fsdp_jinja PRIVATE -w -Wno-error)
install(FILES "${FSDP_JINJA_DIR}/LICENSE" DESTINATION share/licenses/fsdp-toolkit RENAME llama.cpp COMPONENT programs)
