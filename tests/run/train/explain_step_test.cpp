#include "run/train/explain_step.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/util/error.h"
#include "base/util/file.h"
#include "comm/api/communicator.h"
#include "comm/threads/thread_communicator.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"

namespace fsdp::train {
namespace {

struct Case {
  std::string name;
  int world_size;
  std::function<void(config::Config&)> change;
};

void PrintTo(const Case& setting, std::ostream* out) { *out << setting.name; }

/// The text of rank 0; the others have none.
std::string explain(int world_size, const config::Config& config, const ExplainOptions& options = {}) {
  std::string text;
  comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
    std::string mine = explain_step(config, testing::borrowed(communicator), options);
    if (communicator.rank() == 0) {
      text = mine;
    } else {
      EXPECT_EQ(mine, "");
    }
  });
  return text;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// Whether the timeline has such an event of the unit.
bool has_line(const std::string& text, const std::string& unit, const std::string& event) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" " + unit + " ") != std::string::npos && line.find(" " + event + " ") != std::string::npos)
      return true;
  }
  return false;
}

class ExplainStep : public ::testing::Test {
 protected:
  testing::TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
};

TEST_F(ExplainStep, TellsEveryUnitsStory) {
  std::string text = explain(2, config_);
  for (const char* unit : {"root", "model.layers.0", "model.layers.1", "model.layers.2"}) {
    for (const char* event : {"gather issued", "gathered", "forward", "backward", "freed", "reduced"}) {
      EXPECT_TRUE(has_line(text, unit, event)) << unit << " " << event << "\n" << text;
    }
  }
}

TEST_F(ExplainStep, WritesNothing) {
  explain(2, config_);
  EXPECT_FALSE(std::filesystem::exists(config_.run.output_dir));
}

TEST_F(ExplainStep, LeavesAnExistingRunAlone) {
  std::filesystem::create_directories(folder_ / "out/step-00000100");  // no complete checkpoint
  explain(2, config_);
  EXPECT_EQ(std::distance(std::filesystem::recursive_directory_iterator(folder_ / "out"), {}), 1);
}

TEST_F(ExplainStep, WorksWhereTrainingHasASingleStep) {
  config_.training.steps = 1;
  config_.lr_scheduler.name = "cosine";
  EXPECT_NE(explain(2, config_).find("formula"), std::string::npos);
}

TEST_F(ExplainStep, ReportsWhatIsWrongAsTrainingDoes) {
  config_.data.train = {folder_ / "none.bin"};
  EXPECT_THROW(explain(2, config_), util::Error);
}

TEST_F(ExplainStep, WithAllUnitsLeavesNothingOut) {
  config_.training.gradient_accumulation_steps = 3;
  std::string shortened = explain(2, config_), whole = explain(2, config_, {.all_units = true});
  EXPECT_NE(shortened.find("not shown: micro-batches 1 to 2 of 3"), std::string::npos) << shortened;
  EXPECT_EQ(whole.find("not shown"), std::string::npos);
  EXPECT_EQ(count(whole, "  forward  "), 3 * 4) << whole;
}

TEST_F(ExplainStep, WritesATimelineWhoseComputeIsNestedAndWhoseMemoryIsNeverNegative) {
  config_.training.gradient_accumulation_steps = 2;
  config_.activation_checkpointing.mode = "full";
  const std::filesystem::path path = folder_ / "step.json";
  explain(2, config_, {.timeline = path});
  std::map<int, std::vector<std::pair<double, double>>> open;  // bars that have begun on each track
  std::map<int, double> last;
  std::map<std::string, int> found;
  for (const auto& event : nlohmann::json::parse(util::read_file(path))) {
    if (event["ph"] == "C") {
      for (const auto& [kind, bytes] : event["args"].items()) EXPECT_GE(bytes.get<int64_t>(), 0) << kind;
    }
    if (event["ph"] != "X") continue;
    const int track = event["tid"];
    const double begin = event["ts"], end = begin + event["dur"].get<double>();
    EXPECT_GE(begin, last[track]) << event << " is out of order";
    EXPECT_GE(event["dur"], 0) << event;
    last[track] = begin;
    auto& around = open[track];
    constexpr double kRounding = 1e-6;
    while (!around.empty() && around.back().second <= begin + kRounding) around.pop_back();
    EXPECT_TRUE(around.empty() || end <= around.back().second + kRounding) << event << " overlaps";
    around.emplace_back(begin, end);
    ++found[event[event["cat"] == "compute" ? "name" : "cat"].get<std::string>()];
  }
  for (const char* pass : {"forward", "backward"}) EXPECT_EQ(found[std::string(pass) + " root"], 2);
  for (const char* pass : {"forward", "recompute", "backward"}) {
    EXPECT_EQ(found[std::string(pass) + " model.layers.1"], 2) << pass;
  }
  EXPECT_GT(found["communication"], 0);
  EXPECT_FALSE(std::filesystem::exists(config_.run.output_dir));
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_FALSE(util::is_temporary_name(entry.path().filename().string())) << entry.path();
  }
}

TEST_F(ExplainStep, WritesATimelineAsAPicture) {
  const std::filesystem::path path = folder_ / "step.svg";
  explain(2, config_, {.timeline = path});
  const std::string svg = util::read_file(path);
  EXPECT_TRUE(svg.starts_with("<svg")) << svg;
  for (const char* part : {"Step 2 on rank 0: llama", ">compute<", ">communication<",
                           "backward of model.layers.1", "reduce_scatter of model.layers.1"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
}

TEST_F(ExplainStep, RefusesATimelineThatCannotBeWrittenBeforeTheSteps) {
  config_.data.train = {folder_ / "none.bin"};  // which is found out later
  for (const auto& [path, kind, says] :
       {std::tuple{"missing/step.json", ErrorKind::kIo, "missing/step.json"},
        std::tuple{"step.png", ErrorKind::kUsage, "--timeline must be a file that ends in .svg"},
        std::tuple{"step", ErrorKind::kUsage, "but is "}}) {
    try {
      explain_step(config_, std::make_shared<comm::SingleCommunicator>(), {.timeline = folder_ / path});
      FAIL() << "accepted";
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  }
}

class ExplainStepOf : public ExplainStep, public ::testing::WithParamInterface<Case> {};

TEST_P(ExplainStepOf, MeasuresWhatTheFormulaSays) {
  GetParam().change(config_);
  std::string text = explain(GetParam().world_size, config_, {.all_units = true});
  EXPECT_EQ(count(text, "  equal\n"), 9) << text;
  EXPECT_EQ(count(text, "  within the bound\n"), 1) << text;
}

INSTANTIATE_TEST_SUITE_P(
    All, ExplainStepOf,
    ::testing::Values(
        Case{"full_shard", 2, [](auto&) {}}, Case{"three_ranks", 3, [](auto&) {}},
        Case{"one_rank", 1, [](auto&) {}},
        Case{"one_rank_bf16", 1, [](auto& config) { config.mixed_precision.param_dtype = "bfloat16"; }},
        Case{"shard_grad_op", 2, [](auto& config) { config.fsdp.strategy = "shard_grad_op"; }},
        Case{"no_shard", 2, [](auto& config) { config.fsdp.strategy = "no_shard"; }},
        Case{"replicated", 2, [](auto& config) { config.fsdp.replicated_parameters = {"*norm*"}; }},
        Case{"cpu_offload", 2, [](auto& config) { config.fsdp.cpu_offload = true; }},
        Case{"explicit", 2, [](auto& config) { config.fsdp.forward_prefetch = "explicit"; }},
        Case{"backward_post", 2, [](auto& config) { config.fsdp.backward_prefetch = "post"; }},
        Case{"accumulation", 2, [](auto& config) { config.training.gradient_accumulation_steps = 2; }},
        Case{"no_sync", 2,
             [](auto& config) {
               config.training.gradient_accumulation_steps = 2;
               config.training.no_sync = true;
             }},
        Case{"accumulation_in_slices", 4,
             [](auto& config) {
               config.training.gradient_accumulation_steps = 3;
               config.fsdp.strategy = "hybrid_shard";
               config.mesh.dcn = 2;
             }},
        Case{"accumulation_without_shards", 2,
             [](auto& config) {
               config.training.gradient_accumulation_steps = 2;
               config.fsdp.strategy = "no_shard";
             }},
        Case{"float16", 2,
             [](auto& config) {
               config.mixed_precision.param_dtype = "float16";
               config.mixed_precision.reduce_dtype = "float16";
             }},
        Case{"recomputed", 2, [](auto& config) { config.activation_checkpointing.mode = "full"; }},
        Case{"by_sample", 2, [](auto& config) { config.training.reproducible = "world_size"; }},
        Case{"by_sample_on_three_ranks_tied", 3,
             [](auto& config) {
               config.training.reproducible = "world_size";
               config.training.gradient_accumulation_steps = 2;
               config.model.tie_word_embeddings = true;
             }},
        Case{"by_sample_in_three_replicas", 6,
             [](auto& config) {
               config.training.reproducible = "world_size";
               config.fsdp.strategy = "hybrid_shard";
               config.mesh.dcn = 3;
             }},
        Case{"by_sample_without_shards", 3,
             [](auto& config) {
               config.training.reproducible = "world_size";
               config.fsdp.strategy = "no_shard";
             }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::train
