# fsdp_jinja: llama.cpp's engine for chat templates (Jinja), from the folder into which scripts/install_dependencies unpacked it,
# beside libtorch's. Objects, which the component that uses them contains.
cmake_path(GET FSDP_LIBTORCH_DIR PARENT_PATH jinja_parent)
set(FSDP_JINJA_DIR "${jinja_parent}/llama.cpp-jinja-0.3.36" CACHE PATH
    "Folder of llama.cpp's files for Jinja (scripts/install_dependencies makes it)")
if(NOT EXISTS "${FSDP_JINJA_DIR}/common/jinja/runtime.h")
  message(FATAL_ERROR "llama.cpp's engine for chat templates was expected in ${FSDP_JINJA_DIR} and is not there; "
                      "run scripts/install_dependencies or set FSDP_JINJA_DIR")
endif()
set(jinja_common "${FSDP_JINJA_DIR}/common")
# The one thing that its wrapper of JSON takes from ggml.
set(jinja_shim "${CMAKE_BINARY_DIR}/jinja")
file(CONFIGURE OUTPUT "${jinja_shim}/ggml.h" CONTENT "#pragma once\n#include <cassert>\n#define GGML_ASSERT(x) assert(x)\n")
add_library(fsdp_jinja OBJECT
  "${jinja_common}/jinja/lexer.cpp" "${jinja_common}/jinja/parser.cpp" "${jinja_common}/jinja/runtime.cpp"
  "${jinja_common}/jinja/string.cpp" "${jinja_common}/jinja/value.cpp" "${jinja_common}/json.cpp" "${jinja_common}/unicode.cpp")
target_include_directories(fsdp_jinja SYSTEM PUBLIC "${jinja_common}" "${jinja_shim}")
set_target_properties(fsdp_jinja PROPERTIES UNITY_BUILD OFF)
fsdp_flags(fsdp_jinja)
target_compile_options(fsdp_jinja PRIVATE -w -Wno-error)
install(FILES "${FSDP_JINJA_DIR}/LICENSE" DESTINATION share/licenses/fsdp-toolkit RENAME llama.cpp COMPONENT programs)
