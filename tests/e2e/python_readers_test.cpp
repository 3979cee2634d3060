// Programs of the Python world that meet ours: TensorBoard's reader, h5py and torchrun. FSDP_TEST_PYTHON
// names a Python that has them; each test is skipped where it lacks what the test needs.

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "e2e/programs.h"
#include "support/free_port.h"

namespace fsdp::e2e {
namespace {

using testing::ProgramResult;

class PythonReaders : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 6 * 2 * 2 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  /// Empty when the Python that FSDP_TEST_PYTHON names can import the module; why not otherwise.
  static std::string missing(const std::string& module) {
    const char* python = std::getenv("FSDP_TEST_PYTHON");
    if (python == nullptr) return "FSDP_TEST_PYTHON names no Python with " + module;
    const ProgramResult result = testing::run({python, "-c", "import " + module});
    return result.exit_code == 0 ? "" : std::string(python) + " has no " + module;
  }

  /// What a script prints, as JSON.
  static nlohmann::json output_of(const std::string& script, const std::string& argument) {
    const ProgramResult result = testing::run({std::getenv("FSDP_TEST_PYTHON"), "-c", script, argument});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  }

  std::vector<std::string> arguments(const std::string& run) const {
    return {(folder_ / "config.toml").string(), "run.output_dir=" + (folder_ / run).string(),
            "data.train=[\"" + (folder_ / "train.bin").string() + "\"]",
            "data.validation=[\"" + (folder_ / "train.bin").string() + "\"]"};
  }

  ProgramResult train(const std::string& run, std::vector<std::string> overrides) const {
    std::vector<std::string> all = arguments(run);
    overrides.insert(overrides.begin(), all.begin() + 1, all.end());
    return launch_training(2, all.front(), overrides);
  }

  testing::TemporaryFolder folder_;
};

TEST_F(PythonReaders, TensorBoardReadsTheCurvesOfARunThatWentOn) {
  if (std::string reason = missing("tensorboard"); !reason.empty()) GTEST_SKIP() << reason;
  // Steps 4 and 5 are done twice, because the checkpoint is one of step 3.
  for (const char* steps : {"training.steps=5", "training.steps=6"}) {
    const ProgramResult result =
        train("run", {"logging.tensorboard=true", "checkpoint.interval_steps=3",
                      "checkpoint.save_at_end=false", "evaluation.interval_steps=3", steps});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  const nlohmann::json curves = output_of(R"(
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
events.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()['scalars']}))
)",
                                          (folder_ / "run" / "tensorboard").string());
  for (const char* tag : {"train/loss", "train/grad_norm", "train/lr", "train/tokens_per_second", "train/mfu",
                          "train/peak_memory_bytes", "validation/loss", "validation/perplexity"}) {
    EXPECT_TRUE(curves.contains(tag)) << tag << " in " << curves.dump();
  }
  std::ifstream metrics(folder_ / "run" / "metrics.jsonl");
  std::vector<std::pair<int64_t, float>> expected, found;
  for (std::string line; std::getline(metrics, line);) {
    const auto object = nlohmann::json::parse(line);
    if (object.contains("loss")) expected.emplace_back(object["step"], object["loss"].get<float>());
  }
  for (const auto& point : curves.value("train/loss", nlohmann::json::array())) {
    found.emplace_back(point[0], point[1].get<float>());
  }
  EXPECT_EQ(expected.size(), 6u);
  EXPECT_EQ(found, expected);
}

TEST_F(PythonReaders, H5pyReadsTheShardsAsTheManifestHasThem) {
  if (std::string reason = missing("h5py"); !reason.empty()) GTEST_SKIP() << reason;
  const ProgramResult result = train("run", {"training.steps=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string checkpoint = (folder_ / "run" / "step-00000002").string();
  const nlohmann::json shards = output_of(R"(
import glob, h5py, json, os, sys
found = {}
for path in sorted(glob.glob(sys.argv[1] + '/rank-*.h5')):
    sets = found[os.path.basename(path)] = {}
    with h5py.File(path, 'r') as shard:
        shard.visititems(lambda name, item: sets.update({name: [item.size, str(item.dtype), float(sum(abs(item[:])))]})
                         if isinstance(item, h5py.Dataset) else None)
print(json.dumps(found))
)",
                                          checkpoint);
  ASSERT_EQ(shards.size(), 2u);
  std::ifstream file(checkpoint + "/manifest.json");
  const nlohmann::json manifest = nlohmann::json::parse(file);
  size_t data_sets = 0;
  for (const auto& [name, tensor] : manifest.at("tensors").items()) {
    std::map<std::string, int64_t> elements;
    for (const auto& range : tensor.at("ranges")) {
      const int64_t rows = tensor.value("rows", int64_t{1});
      const int64_t length = range["end"].get<int64_t>() - range["begin"].get<int64_t>();
      elements[range["file"]] += rows * length;
    }
    for (const auto& [shard, count] : elements) {
      ASSERT_TRUE(shards.at(shard).contains(name)) << name << " in " << shard;
      EXPECT_EQ(shards[shard][name][0], count) << name;
      EXPECT_EQ(shards[shard][name][1], tensor.at("dtype")) << name;
      EXPECT_GT(shards[shard][name][2], 0) << name;
      ++data_sets;
    }
  }
  for (const char* shard : {"rank-00000.h5", "rank-00001.h5"}) {
    EXPECT_EQ(shards[shard]["description"][1], "uint8");
    ++data_sets;
  }
  EXPECT_EQ(data_sets, shards["rank-00000.h5"].size() + shards["rank-00001.h5"].size());
}

TEST_F(PythonReaders, TorchrunStartsTheTrainer) {
  if (std::string reason = missing("torch.distributed.run"); !reason.empty()) GTEST_SKIP() << reason;
  std::vector<std::string> command = {std::getenv("FSDP_TEST_PYTHON"),
                                      "-m",
                                      "torch.distributed.run",
                                      "--no-python",
                                      "--nproc-per-node",
                                      "2",
                                      "--master-port",
                                      std::to_string(testing::free_port()),
                                      program("fsdp-train")};
  for (const std::string& argument : arguments("torchrun")) command.push_back(argument);
  command.push_back("training.steps=6");
  const ProgramResult torchrun =
      testing::run(command, {.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 120});
  ASSERT_EQ(torchrun.exit_code, 0) << torchrun.err;
  const ProgramResult launched = train("launch", {"training.steps=6"});
  ASSERT_EQ(launched.exit_code, 0) << launched.err;
  auto losses = [&](const std::string& run) {
    std::vector<double> values;
    std::ifstream metrics(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      const auto object = nlohmann::json::parse(line);
      if (object.contains("loss")) values.push_back(object["loss"]);
    }
    return values;
  };
  EXPECT_EQ(losses("torchrun").size(), 6u);
  EXPECT_EQ(losses("torchrun"), losses("launch"));
}

}  // namespace
}  // namespace fsdp::e2e
