// Keys of [distillation], and what training.objective = "distill" does not go with.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "model/families/objectives.h"
#include "setup/config/checks.h"
#include "setup/config/config_text.h"

namespace fsdp::config {
namespace {

const std::string kDistill =
    kTrain + "[training]\nobjective = \"distill\"\n[distillation]\nteacher_model = \"teacher\"\n";

TEST(DistillationKeys, AreRead) {
  const Config config = parse_config(
      kDistill + "teacher = \"stored\"\nbeta = 0.25\ntemperature = 2.5\nalpha = 0.75\ntop_k = 32\n",
      "c.toml");
  EXPECT_EQ(config.distillation.teacher_model, "teacher");
  EXPECT_EQ(config.distillation.teacher, nn::TeacherSource::kStored);
  EXPECT_EQ(config.distillation.beta, 0.25);
  EXPECT_EQ(config.distillation.temperature, 2.5);
  EXPECT_EQ(config.distillation.alpha, 0.75);
  EXPECT_EQ(config.distillation.top_k, 32);
  EXPECT_EQ(config.data.teacher.top_k, 32) << "batches have what is stored";
  EXPECT_EQ(config.data.teacher.temperature, 2.5);
  EXPECT_EQ(parse_config(kDistill + "top_k = 32\n", "c.toml").data.teacher.top_k, 0);
}

TEST(DistillationKeys, HaveNoEffectWithAnotherObjective) {
  for (const char* setting : {"teacher = \"stored\"", "teacher_model = \"teacher\"", "beta = 0.25",
                              "temperature = 2.5", "alpha = 0.75", "top_k = 32"}) {
    const std::string error = error_of(concat(kTrain, "[distillation]\n", setting, "\n"));
    expect_in(error, "distillation.");
    expect_in(error, "training.objective is distill");
  }
  expect_in(error_of(kDistill, {"training.z_loss=1e-4"}), "training.z_loss");
}

TEST(DistillationKeys, RefuseNumbersOutsideTheirRanges) {
  for (const char* setting : {"beta = -0.1", "beta = 1.1", "temperature = 0.0", "temperature = -1.0",
                              "alpha = -0.1", "alpha = 1.1", "top_k = -1", "teacher = \"file\""}) {
    const std::string key(setting, std::string(setting).find(' '));
    expect_in(error_of(concat(kDistill, setting, "\n")), "distillation." + key + " must be");
  }
}

struct Refused {
  std::string key;  ///< the key that the message begins with
  std::function<void(Config&)> change;
};

TEST(DistillationKeys, ConflictWithWhatDoesNotCompareDistributions) {
  Config config;
  config.training.objective = "distill";
  config.distillation.teacher_model = "teacher";
  EXPECT_TRUE(find_conflicts(config).empty());
  Config stored = config;
  stored.distillation.teacher = nn::TeacherSource::kStored;
  stored.distillation.top_k = 32;
  EXPECT_TRUE(find_conflicts(stored).empty());
  Config without_model = stored;
  without_model.distillation.teacher_model.clear();
  EXPECT_TRUE(find_conflicts(without_model).empty()) << "a stored teacher needs no weights";

  const std::vector<std::pair<Config, Refused>> ways = {
      {config, {"mesh.model", [](Config& c) { c.mesh.model = 2; }}},
      {config, {"training.cuda_graphs", [](Config& c) { c.training.cuda_graphs = true; }}},
      {config, {"fsdp.front", [](Config& c) { c.fsdp.front = Front::kSpmd; }}},
      {config, {"distillation.teacher_model", [](Config& c) { c.distillation.teacher_model.clear(); }}},
      {config, {"distillation.top_k", [](Config& c) { c.distillation.top_k = c.model.vocab_size; }}},
      {stored, {"distillation.top_k", [](Config& c) { c.distillation.top_k = 0; }}},
      {stored, {"distillation.teacher", [](Config& c) { c.mesh.context = 2; }}},
      {stored, {"distillation.teacher", [](Config& c) { c.data.dataset = "other"; }}},
  };
  for (const auto& [base, refused] : ways) {
    Config changed = base;
    refused.change(changed);
    const std::vector<Conflict> conflicts = find_conflicts(changed);
    ASSERT_EQ(conflicts.size(), 1U) << refused.key;
    EXPECT_TRUE(conflicts.front().message.starts_with(refused.key + " ")) << conflicts.front().message;
    EXPECT_NE(conflicts.front().message.find("; "), std::string::npos) << "a remedy";
    changed.training.objective = nn::kLanguageModel;
    for (const Conflict& conflict : find_conflicts(changed))
      EXPECT_EQ(conflict.message.find("distill"), std::string::npos) << conflict.message;
  }
}

}  // namespace
}  // namespace fsdp::config
