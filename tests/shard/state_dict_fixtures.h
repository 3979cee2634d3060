#pragma once

// What tests of state dicts have in common.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "base/util/error.h"
#include "shard/state/state_dict.h"
#include "support/shard_setups.h"

namespace fsdp::testing {

inline shard::ShardOptions nested_options() { return shard_setups().front().options; }

inline std::map<std::string, at::Tensor> by_name(const shard::FullStateDict& state) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : state) tensors[name] = tensor;
  EXPECT_EQ(tensors.size(), state.size());
  return tensors;
}

/// The outcome of a load.
inline std::string refusal_of_load(const std::function<void()>& load) {
  try {
    load();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
    return error.what();
  }
  return "no error";
}

}  // namespace fsdp::testing
