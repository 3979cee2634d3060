#pragma once

#include <cstdlib>
#include <string>

#include "support/source_folder.h"

namespace fsdp::data {

inline const std::string kChatFolder = testing::source_folder() + "/tests/data/chat/";

/// Published chat templates, which scripts/install_dependencies has unpacked.
inline std::string published_template(const std::string& name) {
  const char* deps = std::getenv("FSDP_DEPS_DIR");
  return (deps != nullptr ? std::string(deps) : testing::source_folder() + "/.deps") +
         "/llama.cpp-jinja-0.3.36/models/templates/" + name;
}

}  // namespace fsdp::data
