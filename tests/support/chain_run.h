#pragma once

// One rank's chain of matrices under an engine, with the calls that pass through its communicator.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/threads/thread_communicator.h"
#include "model/nn/recompute.h"
#include "shard/engine/engine.h"
#include "support/counting_communicator.h"
#include "support/layout_under_test.h"
#include "support/tiny_models.h"
#include "support/wrapped_paths.h"

namespace fsdp::testing {

/// Every matrix is a unit, nothing is gathered ahead.
inline shard::ShardOptions every_matrix(const std::string& forward_prefetch = "none",
                                        const std::string& backward_prefetch = "none") {
  shard::ShardOptions options;
  options.min_num_params = 1;
  options.forward_prefetch = forward_prefetch;
  options.backward_prefetch = backward_prefetch;
  return options;
}

/// A chain of `layers` 4x4 matrices and a bias of 4, which is the root's.
struct ChainRun {
  ChainRun(comm::Communicator& communicator, const shard::ShardOptions& options, int64_t layers = 4,
           const std::vector<std::string>& recompute = {}, const comm::MeshOptions& mesh = {},
           const OptionsByPath& wrapped = {})
      : calls(communicator), chain(layers, 4) {
    move_parameters(chain, calls.device());
    const shard::EnableWrap scope;
    wrap_paths(chain, wrapped);
    engine = shard_under_test(chain, options, comm::Mesh(mesh, borrowed(calls)));
    if (!recompute.empty()) nn::checkpoint_activations(chain, recompute);
  }

  /// The input differs among ranks.
  at::Tensor input() const {
    return at::full({2, 4}, 0.1f * static_cast<float>(calls.rank() + 1)).to(calls.device());
  }
  void step() { chain.forward(input()).sum().backward(); }

  /// The mean gradients of all units, or undefined ones.
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> gradients;
    for (const auto& unit : engine->units()) {
      const at::Tensor& gradient = unit->storage().shard_gradient();
      gradients.push_back(gradient.defined() ? gradient.clone() : at::Tensor());
    }
    return gradients;
  }
  /// Those of one step from zero.
  std::vector<at::Tensor> gradients_of_a_step() {
    engine->zero_gradients();
    step();
    return gradients();
  }

  CountingCommunicator calls;
  ChainStage chain;
  std::shared_ptr<shard::Engine> engine;
};

inline bool identical(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined() || (a[i].defined() && !at::equal(a[i], b[i]))) return false;
  }
  return true;
}

using Names = std::vector<std::string>;

}  // namespace fsdp::testing
