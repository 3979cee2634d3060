// Trains Tagger, sharded, as a program that embeds the library: over threads as ranks, or, under fsdp-launch,
// as one process of several. Saves a checkpoint on the way, loads it into a new model and continues.
//
//   consumer FOLDER                 under a launcher, or as one process
//   consumer FOLDER THREADS [STEP]  threads as ranks; from the checkpoint of that step in the folder

#include <fsdp/checkpoint.h>
#include <fsdp/communicator.h>
#include <fsdp/error.h>
#include <fsdp/fully_shard.h>
#include <fsdp/grad_norm.h>
#include <fsdp/optimizer.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "tagger.h"

namespace {

using Communicator = std::shared_ptr<fsdp::Communicator>;

at::Tensor loss_of(Tagger& model, int rank, int64_t step) {
  at::Tensor ids = (at::arange(40).view({10, 4}) * (3 + rank) + step) % Tagger::kTokens;
  return torch::nn::functional::cross_entropy(model.forward(ids).flatten(0, 1),
                                              (ids % Tagger::kTags).flatten());
}

double train(const Communicator& communicator, const std::filesystem::path& folder, int64_t first,
             int64_t last) {
  torch::manual_seed(1);  // the same first weights on every rank
  auto model = std::make_shared<Tagger>();
  auto engine = fsdp::fully_shard(*model, {.min_num_params = 2000}, communicator);

  fsdp::OptimizerOptions options{.name = "adamw", .lr = 1e-2};
  auto optimizer = fsdp::make_optimizer(options, fsdp::flat_parameters(*engine, options));
  auto state = [&](auto purpose) { return fsdp::state_slices(*engine, *optimizer, purpose); };
  if (first > 0) {
    auto from = folder / fsdp::step_folder_name(first);
    fsdp::load_slices(from, fsdp::read_manifest(from), state(fsdp::SlicePurpose::kLoad));
    optimizer->set_step_count(first);
  }
  at::Tensor loss;
  for (int64_t step = first; step < last; ++step) {
    engine->zero_gradients();
    loss = loss_of(*model, communicator->rank(), step);
    loss.backward();                                              // gathers, frees and reduces as it goes
    fsdp::clip_grad_norm(*engine, /*max_norm=*/1.0);              // of all ranks together
    optimizer->step(fsdp::shard_gradients(*engine), options.lr);  // on this rank's shards
  }
  fsdp::save_sharded({.root = folder, .step = last, .layout = "flat"}, state(fsdp::SlicePurpose::kSave),
                     *communicator);
  return loss.item<double>();
}

int run(const Communicator& communicator, const std::filesystem::path& folder, int64_t begin = 0) {
  const double first = begin > 0 ? 2.0 : train(communicator, folder, 0, 2);
  const double later = train(communicator, folder, begin > 0 ? begin : 2, begin + 30);
  const std::string who =
      "rank " + std::to_string(communicator->rank()) + " of " + std::to_string(communicator->world_size());
  std::cout << who + ": loss " + std::to_string(first) + " -> " + std::to_string(later) + "\n" << std::flush;
  return later < 0.5 * first ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  return fsdp::run_guarded([&] {
    if (argc < 2) fsdp::fail(fsdp::ErrorKind::kUsage, "usage: consumer FOLDER [threads]");
    const std::filesystem::path folder = argv[1];
    if (argc == 2) return run(fsdp::make_communicator(fsdp::read_launch_environment(), {}), folder);
    const int64_t begin = argc > 3 ? std::stoll(argv[3]) : 0;
    std::atomic<int> failures = 0;
    fsdp::run_ranks_as_threads(std::stoi(argv[2]), [&](fsdp::Communicator& communicator) {
      // run_ranks_as_threads() owns the communicator.
      const int code = run(Communicator(std::shared_ptr<void>(), &communicator), folder, begin);
      if (code != EXIT_SUCCESS) ++failures;
    });
    return failures.load();
  });
}
