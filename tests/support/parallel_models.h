#pragma once

// The same model in one process and on ranks that are threads, each with its part.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/threads/thread_communicator.h"
#include "model/nn/parallelize.h"
#include "model/nn/recompute.h"
#include "support/counting_communicator.h"
#include "support/tiny_models.h"

namespace fsdp::testing {

using Gradients = std::map<std::string, at::Tensor>;

inline Gradients gradients_of(const torch::nn::Module& model) {
  Gradients gradients;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    gradients[item.key()] = gradient.defined() ? gradient.clone() : at::zeros_like(item.value());
  }
  return gradients;
}

/// Runs on the whole model, or on a rank's part of it, and returns the loss after its backward.
using ModelRun = std::function<at::Tensor(nn::Stage& model)>;
using MakeModel = std::function<std::shared_ptr<nn::Stage>()>;

struct Tolerance {
  double loss = 1e-6;  ///< relative
  /// Of the difference's norm, relative to that of the parameter's gradient or, where it is more, of a
  /// hundredth of all gradients: some, such as those of the biases of keys, are small differences of large
  /// numbers.
  double gradient = 4e-6;
};

inline double norm_of(const at::Tensor& x) { return x.to(at::kDouble).norm().item<double>(); }

inline double norm_of(const Gradients& gradients) {
  double squares = 0;
  for (const auto& [name, gradient] : gradients) squares += std::pow(norm_of(gradient), 2);
  return std::sqrt(squares);
}

/// What a difference of this gradient is compared with.
inline double scale_of(const Gradients& gradients, const std::string& name) {
  return std::max(norm_of(gradients.at(name)), norm_of(gradients) / 100);
}

/// Expects the loss and every gradient of `run` on one process, where a gradient that holders share is their
/// sum. `calls` gets rank 0's collectives.
inline void expect_as_whole(const MakeModel& make, const nn::ParallelPlan& plan, int world,
                            const ModelRun& run, const Tolerance& tolerance = {},
                            std::vector<CountingCommunicator::Call>* calls = nullptr) {
  const std::shared_ptr<nn::Stage> whole = make();
  const double loss = run(*whole).item<double>();
  const Gradients expected = gradients_of(*whole);
  std::vector<Gradients> found(static_cast<size_t>(world));
  std::vector<std::vector<nn::ParameterPart>> parts(static_cast<size_t>(world));
  comm::run_ranks_as_threads(world, [&](comm::Communicator& inner) {
    auto communicator = std::make_shared<CountingCommunicator>(inner);
    const auto rank = static_cast<size_t>(inner.rank());
    const std::shared_ptr<nn::Stage> model = make();
    parts[rank] = nn::parallelize(*model, plan, communicator);
    const double of_rank = run(*model).item<double>();
    EXPECT_NEAR(of_rank, loss, tolerance.loss * std::abs(loss)) << "rank " << rank;
    found[rank] = gradients_of(*model);
    if (rank == 0 && calls != nullptr) *calls = communicator->calls();
  });
  for (size_t rank = 0; rank < found.size(); ++rank) {
    ASSERT_EQ(found[rank].size(), expected.size());
    for (const nn::ParameterPart& part : parts[rank]) {
      const auto gradient_of = [&](size_t of) { return found[of].at(part.name).to(at::kDouble); };
      at::Tensor gradient = gradient_of(rank);
      for (int64_t i = 0; part.shares_gradient && i < part.holders; ++i) {
        const auto holder = static_cast<size_t>(part.first_holder + i);
        if (holder != rank) gradient = gradient + gradient_of(holder);
      }
      const at::Tensor difference = gradient - nn::part_of(expected.at(part.name), part);
      EXPECT_LE(norm_of(difference) / scale_of(expected, part.name), tolerance.gradient)
          << part.name << " of rank " << rank << " of " << world;
    }
  }
}

}  // namespace fsdp::testing
