// A run that moves from PyTorch's FSDP2 to ours and back, through checkpoints of torch.distributed.checkpoint
// and at other world sizes, has the losses of one that stays, its optimizer included. The Python in
// FSDP_TEST_PYTHON (default: python3) must have torch 2.

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "base/util/text.h"
#include "e2e/programs.h"
#include "support/source_folder.h"
#include "support/tiny_config.h"

namespace fsdp::parity {
namespace {

namespace fs = std::filesystem;

constexpr int kRows = 24;  ///< of a step: as many for each of 2, 3 or 4 ranks

struct Form {
  std::string layout;
  std::vector<std::string> flags;  ///< of torch_reference.py
  bool tied = false;
  double tolerance = 1e-6;  ///< relative
};

class Dcp : public ::testing::TestWithParam<const char*> {
 protected:
  using Losses = std::map<int, double>;

  void SetUp() override {
    const char* chosen = std::getenv("FSDP_TEST_PYTHON");
    python_ = chosen == nullptr ? "python3" : chosen;
    const std::string import = "import torch.distributed.checkpoint, torch.distributed.tensor, safetensors";
    if (testing::run({"/usr/bin/env", python_, "-c", import}).exit_code != 0) {
      GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has torch and safetensors";
    }
    form_.layout = GetParam();
    if (form_.layout == "flat") form_.flags = {"--flat"};
    // Rounding changes more there, as in parity_test.cpp.
    if (form_.layout == "tied") form_ = {"nested", {"--tied"}, true, 1e-4};
    if (form_.layout == "torchtitan") form_.flags = {"--torchtitan"};
    testing::write_token_file(folder_ / "train.bin", 40000, 256);
    std::ofstream(folder_ / "config.json")
        << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "vocab_size": 256, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 3, "num_attention_heads": 4,
      "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
      "hidden_act": "silu", "tie_word_embeddings": )"
        << (form_.tied ? "true}" : "false}");
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// Steps (first, last] with PyTorch, from a checkpoint if `load` names one.
  Losses torch(int ranks, int first, int last, const std::string& load, const std::string& save) const {
    std::vector<std::string> command = {e2e::program("fsdp-launch"),
                                        "--nproc-per-node",
                                        std::to_string(ranks),
                                        "--",
                                        "/usr/bin/env",
                                        python_,
                                        testing::source_folder() + "/tests/parity/torch_reference.py",
                                        "--tokens",
                                        path("train.bin"),
                                        "--rows",
                                        std::to_string(kRows),
                                        "--first",
                                        std::to_string(first),
                                        "--steps",
                                        std::to_string(last)};
    if (!load.empty()) command.insert(command.end(), {"--load", path(load)});
    if (!save.empty()) command.insert(command.end(), {"--save", path(save)});
    command.insert(command.end(), form_.flags.begin(), form_.flags.end());
    const auto result = testing::run(command, {.timeout_seconds = 300});
    EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
    Losses losses;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line.substr(std::min(line.find("] ") + 2, line.size())));
      int step = 0;
      if (double loss = 0; words >> step >> loss) losses[step] = loss;
    }
    EXPECT_EQ(static_cast<int>(losses.size()), last - first) << result.out;
    return losses;
  }

  /// Steps up to `last` with fsdp-train, which resumes from what is in `run`.
  Losses ours(int ranks, int last, const std::string& run) const {
    const auto result = e2e::launch_training(
        ranks, testing::source_folder() + "/tests/parity/llama.toml",
        {"data.train=[\"" + path("train.bin") + "\"]", "run.output_dir=" + path(run),
         "mesh.data=" + std::to_string(ranks), "data.micro_batch_size=" + std::to_string(kRows / ranks),
         "training.steps=" + std::to_string(last), "checkpoint.save_at_end=true",
         std::string("model.tie_word_embeddings=") + (form_.tied ? "true" : "false")});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::ifstream metrics(path(run) + "/metrics.jsonl");
    Losses losses;
    for (std::string line; std::getline(metrics, line);) {
      const auto object = nlohmann::json::parse(line);
      if (object.contains("loss")) losses[object["step"]] = object["loss"];
    }
    return losses;
  }

  void import(const std::string& from, const std::string& to, std::vector<std::string> flags) const {
    std::vector<std::string> command = {e2e::program("fsdp-ckpt"), "import", path(from), path(to), "--config",
                                        path("config.json")};
    command.insert(command.end(), flags.begin(), flags.end());
    const auto result = testing::run(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }

  void export_to(const std::string& to, const std::string& run) const {
    const auto result = testing::run({e2e::program("fsdp-ckpt"), "export", path(run), path(to), "--format",
                                      "dcp", "--layout", form_.layout});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }

  void expect_near(const Losses& found, const Losses& expected, int first, int last) const {
    double worst = 0;
    for (int step = first + 1; step <= last; ++step) {
      ASSERT_TRUE(found.contains(step) && expected.contains(step)) << step;
      worst = std::max(worst, std::abs(found.at(step) / expected.at(step) - 1));
    }
    std::cout << GetParam() << ", steps " << first + 1 << " to " << last
              << ": largest relative difference of loss " << worst << std::endl;
    EXPECT_LE(worst, form_.tolerance);
  }

  std::string python_;
  Form form_;
  testing::TemporaryFolder folder_;
};

TEST_P(Dcp, ARunMovesFromFourRanksOfPyTorchToThreeOfOursAndBackToTwo) {
  const Losses stayed = torch(4, 0, 12, "", "");
  torch(4, 0, 4, "", "first");
  import("first", "run/step-00000004", {"--samples-seen", std::to_string(4 * kRows)});
  expect_near(ours(3, 8, "run"), stayed, 4, 8);
  export_to("second", "run");
  expect_near(torch(2, 8, 12, "second", ""), stayed, 8, 12);
}

TEST_P(Dcp, ARunMovesFromThreeOfOurRanksToFourOfPyTorchAndBackToTwo) {
  const Losses stayed = ours(3, 12, "stayed");
  ours(3, 4, "run");
  export_to("first", "run");
  expect_near(torch(4, 4, 8, "first", "second"), stayed, 4, 8);
  import("second", "back/step-00000008", {"--samples-seen", std::to_string(8 * kRows), "--world-size", "3"});
  expect_near(ours(2, 12, "back"), stayed, 8, 12);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Dcp, ::testing::Values("nested", "flat", "torchtitan", "tied"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fsdp::parity
