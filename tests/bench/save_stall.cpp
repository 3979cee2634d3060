// save_stall [--folder DIR] [--layers N] [--ranks N] [--threads N] [--sequence N] [--saves N] [--storage
// TYPE] [--states TYPE]: what an asynchronous save takes of training, where the state is copied at once and
// where it is copied beside the next step until its update. Both ways take turns in one run of a llama with
// the widths of TinyLlama (1.1 B parameters with its 22 layers), on threads as ranks. Takes minutes, and with
// --storage bfloat16 hours on CPUs without products in that type. Not a test: figures vary, so they are
// printed and not judged.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/util/clock.h"
#include "base/util/log.h"
#include "run/train/checkpointer.h"
#include "run/train/run_parts.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

struct StallOptions {
  int64_t layers = 22, ranks = 2, threads = 1, sequence = 64, saves = 3;
  std::string folder = std::filesystem::temp_directory_path(), storage = "float32", states = "int8";
};

double middle(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Seconds of one save.
struct Stall {
  double call = 0;    ///< of the call that begins it
  double still = 0;   ///< for which training stands still: the call, and waiting for the copy
  double next = 0;    ///< of the step after it, whose update waits for the copy
  double beside = 0;  ///< of all steps from its begin to its end, and of the calls between them
  int64_t steps = 0;  ///< number of these steps
};

struct Measured {
  std::vector<double> ordinary;               ///< steps without a save
  std::map<bool, std::vector<Stall>> stalls;  ///< by whether the copy is beside the step
  std::vector<double> copies;                 ///< copies of the state by libtorch
  int64_t state_bytes = 0;
};

config::Config config_of(const StallOptions& options, const testing::TemporaryFolder& data,
                         const std::filesystem::path& folder) {
  config::Config config = testing::tiny_config(data);
  config.run.output_dir = folder / "run";
  config.model = {};
  config.model.architecture = "llama";
  config.model.vocab_size = 32000;
  config.model.hidden_size = 2048;
  config.model.intermediate_size = 5632;
  config.model.num_attention_heads = 32;
  config.model.num_key_value_heads = 4;
  config.model.num_hidden_layers = options.layers;
  config.model.max_position_embeddings = 2048;
  config.data.validation.clear();
  config.data.sequence_length = options.sequence;
  config.data.micro_batch_size = 1;
  config.training.steps = 1'000'000;
  config.fsdp.min_num_params = 1 << 20;
  config.optimizer.state_dtype = options.states;
  config.fsdp.param_storage = options.storage;
  if (options.storage != "float32") config.mixed_precision.param_dtype = options.storage;
  config.checkpoint.asynchronous = true;
  config.checkpoint.keep_last = 1;
  return config;
}

Measured measure(const StallOptions& options, const config::Config& config) {
  Measured measured;
  comm::run_ranks_as_threads(static_cast<int>(options.ranks), [&](comm::Communicator& communicator) {
    const bool counts = communicator.rank() == 0;
    data::TrainLoader loader = train::open_training_data(config, communicator);
    train::RunParts parts =
        train::build_run_parts(config, comm::Mesh(config.mesh, testing::borrowed(communicator)), nullptr);
    const auto step = train::make_train_step(config, parts, loader);
    std::optional<train::Checkpointer> kept(std::in_place, config,
                                            train::TrainingState{*parts.engine, *parts.optimizer, nullptr},
                                            communicator, train::Checkpointer::Hooks{});
    train::Checkpointer& checkpointer = *kept;
    train::RunPosition position = checkpointer.restore();
    const auto take_step = [&] {
      const auto begin = Clock::now();
      step->run({.step = position.step + 1, .first_global_sample = position.samples_seen, .lr = 1e-4});
      position = {position.step + 1, position.samples_seen + loader.samples_per_step(), 0};
      return util::seconds_since(begin);
    };
    for (int i = 0; i < 3; ++i) take_step();
    for (int64_t i = 0; i < 2 * options.saves; ++i) {
      for (int k = 0; k < 3; ++k) {
        const double seconds = take_step();
        if (counts) measured.ordinary.push_back(seconds);
      }
      communicator.barrier({.unit = "save"});
      const bool is_beside = i % 2 == 1;
      Stall stall;
      const auto begin = Clock::now();
      checkpointer.save(position);
      if (!is_beside) checkpointer.finish_copy();
      stall.call = util::seconds_since(begin);
      const double waited = checkpointer.copy_seconds();
      stall.next = take_step();
      stall.still = stall.call + checkpointer.copy_seconds() - waited;
      checkpointer.poll();
      for (stall.steps = 1; checkpointer.is_saving(); ++stall.steps) {
        take_step();
        checkpointer.poll();
      }
      stall.beside = util::seconds_since(begin);
      if (counts) measured.stalls[is_beside].push_back(stall);
    }
    checkpointer.require_last_save();
    kept.reset();  // frees its copies
    const auto slices =
        checkpoint::state_slices(*parts.engine, *parts.optimizer, checkpoint::SlicePurpose::kSave);
    checkpoint::HostCopies copies;
    copies.prepare(slices);
    for (int i = 0; i < 5; ++i) {
      communicator.barrier({.unit = "copy"});
      const auto begin = Clock::now();
      copies.take(slices);
      if (counts) measured.copies.push_back(util::seconds_since(begin));
    }
    if (counts) measured.state_bytes = copies.bytes();
  });
  return measured;
}

void report(const StallOptions& options, const Measured& measured) {
  const double ordinary = middle(measured.ordinary);
  std::printf(
      "%ld layers, weights in %s, states in %s, %.2f GB of state a rank, %ld ranks with %ld threads on %d "
      "cores, %ld tokens a rank: a step takes %.0f ms\n",
      static_cast<long>(options.layers), options.storage.c_str(), options.states.c_str(),
      static_cast<double>(measured.state_bytes) / 1e9, static_cast<long>(options.ranks),
      static_cast<long>(options.threads), static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)),
      static_cast<long>(options.sequence), 1e3 * ordinary);
  const double copy = middle(measured.copies);
  std::printf("libtorch copies the state in %.0f ms, for which training would stand still\n", 1e3 * copy);
  std::map<bool, double> stall;
  for (const auto& [is_beside, saves] : measured.stalls) {
    std::vector<double> calls, still, stalls, all, steps;
    for (const Stall& save : saves) {
      calls.push_back(save.call);
      still.push_back(save.still);
      stalls.push_back(save.call + save.next - ordinary);
      all.push_back(save.beside - static_cast<double>(save.steps) * ordinary);
      steps.push_back(static_cast<double>(save.steps));
    }
    stall[is_beside] = middle(still);
    std::printf(
        "copied %-22s training stands still for %6.0f ms, of which the call %6.0f ms; the call and the next "
        "step take %6.0f ms longer than a median step, all %.0f steps until the save has ended %.0f ms\n",
        is_beside ? "beside the next step:" : "at once:", 1e3 * middle(still), 1e3 * middle(calls),
        1e3 * middle(stalls), middle(steps), 1e3 * middle(all));
  }
  std::printf("training stands still for %.2f of the time of a copy at once, %.2f of libtorch's copy\n",
              stall[true] / stall[false], stall[true] / copy);
}

StallOptions options_from(int argc, char** argv) {
  StallOptions options;
  const std::map<std::string, int64_t StallOptions::*> numbers = {{"--layers", &StallOptions::layers},
                                                                  {"--ranks", &StallOptions::ranks},
                                                                  {"--threads", &StallOptions::threads},
                                                                  {"--sequence", &StallOptions::sequence},
                                                                  {"--saves", &StallOptions::saves}};
  const std::map<std::string, std::string StallOptions::*> words = {{"--folder", &StallOptions::folder},
                                                                    {"--storage", &StallOptions::storage},
                                                                    {"--states", &StallOptions::states}};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc || !(words.contains(name) || numbers.contains(name))) {
      fail(ErrorKind::kUsage, "unknown option ", name,
           " or one without its value; the head of save_stall.cpp lists them");
    }
    if (words.contains(name)) {
      options.*words.at(name) = argv[i + 1];
    } else {
      options.*numbers.at(name) = std::atoll(argv[i + 1]);
    }
  }
  return options;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  using namespace fsdp;
  return util::run_guarded([&] {
    util::set_log_level(util::LogLevel::kWarning);
    const StallOptions options = options_from(argc, argv);
    at::set_num_threads(static_cast<int>(options.threads));
    const auto folder = std::filesystem::path(options.folder) / ("bench-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    const fsdp::testing::TemporaryFolder data;
    const config::Config config = config_of(options, data, folder);
    report(options, measure(options, config));
    std::filesystem::remove_all(folder);
    return 0;
  });
}
