#pragma once

// The suite of the engine runs twice, once on each layout of units: ctest runs shard_test a second time with
// FSDP_TEST_LAYOUT=per_parameter. There parameters of one dimension are cut too, so that the units and the
// collectives are those of the flat layout.

#include <cstdlib>
#include <memory>
#include <string>

#include "shard/engine/fully_shard.h"

namespace fsdp::testing {

/// "flat" or "per_parameter".
inline std::string layout_under_test() {
  const char* layout = std::getenv("FSDP_TEST_LAYOUT");
  return layout == nullptr ? "flat" : layout;
}

inline bool flat_is_under_test() { return layout_under_test() == "flat"; }

/// The options with the layout under test, where they do not name one.
inline shard::ShardOptions on_layout_under_test(shard::ShardOptions options) {
  if (!flat_is_under_test() && options.layout == "flat") {
    options.layout = layout_under_test();
    options.shard_1d_parameters = true;
  }
  return options;
}

inline std::shared_ptr<shard::Engine> shard_under_test(torch::nn::Module& root,
                                                       const shard::ShardOptions& options,
                                                       const comm::Mesh& mesh,
                                                       std::shared_ptr<comm::Trace> trace = nullptr) {
  return shard::fully_shard(root, on_layout_under_test(options), mesh, std::move(trace));
}

inline std::shared_ptr<shard::Engine> shard_under_test(torch::nn::Module& root,
                                                       const shard::ShardOptions& options,
                                                       std::shared_ptr<comm::Communicator> communicator,
                                                       std::shared_ptr<comm::Trace> trace = nullptr) {
  return shard::fully_shard(root, on_layout_under_test(options), std::move(communicator), std::move(trace));
}

}  // namespace fsdp::testing
