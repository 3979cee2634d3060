#pragma once

// wrap() of modules that a test names by their paths.

#include <map>
#include <string>

#include "shard/engine/wrap.h"

namespace fsdp::testing {

using OptionsByPath = std::map<std::string, shard::UnitOverrides>;

/// In a scope of EnableWrap.
inline void wrap_paths(torch::nn::Module& root, const OptionsByPath& options) {
  const auto modules = root.named_modules(/*name_prefix=*/"", /*include_self=*/false);
  for (const auto& [path, own] : options) shard::wrap(modules[path], own);
}

}  // namespace fsdp::testing
