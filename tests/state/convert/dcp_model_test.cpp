// Checkpoints of torch.distributed.checkpoint to ours and back. PyTorch's own are in
// tests/parity/dcp_test.cpp.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/families/families.h"
#include "state/convert/dcp_export.h"
#include "state/convert/dcp_import.h"
#include "state/convert/inspect.h"
#include "state/dcp/dcp_folder.h"
#include "state/hugging_face/hugging_face_config.h"
#include "support/checkpoint_contents.h"
#include "support/log_lines.h"
#include "support/memory_source.h"
#include "support/tiny_models.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DcpModel : public ::testing::Test {
 protected:
  void SetUp() override {
    options_ = tiny_options();
    options_.num_attention_heads = 2;
    std::ofstream(root_.path() / "config.json") << hugging_face_config(options_).dump();
    int64_t number = 0;
    for (const auto& [name, shape] : nn::weight_shapes(options_)) {
      weights_.emplace_back(name, numbered(shape, ++number));
    }
  }

  static at::Tensor numbered(const std::vector<int64_t>& shape, int64_t number) {
    at::Tensor tensor = at::zeros(shape);
    return tensor.copy_(at::arange(tensor.numel()).reshape(shape)).add_(1000 * number);
  }
  /// {"model": ..., "optimizer": ...} of get_state_dict().
  NamedTensors state(double steps = 5) const {
    NamedTensors tensors;
    for (const auto& [name, tensor] : weights_) {
      tensors.emplace_back("model." + name, tensor);
      tensors.emplace_back("optimizer.state." + name + ".exp_avg", tensor + 0.25);
      tensors.emplace_back("optimizer.state." + name + ".exp_avg_sq", tensor + 0.5);
      tensors.emplace_back("optimizer.state." + name + ".step", at::full({}, steps));
    }
    return tensors;
  }
  std::vector<DcpValue> values() const {
    nlohmann::json names = nlohmann::json::array();
    for (const auto& [name, tensor] : weights_) names.push_back(name);
    const std::string group = "optimizer.param_groups.0.";
    return {{group + "lr", 0.01},      {group + "betas", {0.9, 0.99}, true},
            {group + "eps", 1e-8},     {group + "weight_decay", 0.1},
            {group + "params", names}, {"step", 7}};
  }
  DcpImportResult import(const std::string& from, const std::string& to, int64_t world_size = 2) const {
    DcpImportRequest request;
    request.source = root_.path() / from;
    request.config = root_.path() / "config.json";
    request.output = root_.path() / to;
    request.world_size = world_size;
    return import_dcp(request);
  }
  void expect_import_refused(const NamedTensors& tensors, const std::string& text) const {
    fs::remove_all(root_.path() / "bad");
    write_dcp(root_.path() / "bad", tensors, values());
    const auto [kind, found] = error_of([&] { import("bad", "refused"); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint) << found;
    EXPECT_THAT(found, HasSubstr(text));
    EXPECT_FALSE(fs::exists(root_.path() / "refused"));
  }
  /// Under our names.
  void expect_state(const std::string& folder) const {
    const auto found = contents_of(root_.path() / folder);
    EXPECT_EQ(found.size(), 3 * weights_.size());
    for (const auto& [name, tensor] : weights_) {
      EXPECT_TRUE(same_bits(found.at("model/" + name), tensor)) << name;
      EXPECT_TRUE(same_bits(found.at("optimizer/exp_avg/" + name), tensor + 0.25)) << name;
      EXPECT_TRUE(same_bits(found.at("optimizer/exp_avg_sq/" + name), tensor + 0.5)) << name;
    }
  }

  nn::ModelOptions options_;
  NamedTensors weights_;
  TemporaryFolder root_;
};

TEST_F(DcpModel, ImportsWeightsOptimizerAndSteps) {
  write_dcp(root_.path() / "dcp", state(), values(), 3);
  for (const int64_t world_size : {1, 2, 5}) {
    const std::string to = "of" + std::to_string(world_size);
    const DcpImportResult result = import("dcp", to, world_size);
    EXPECT_EQ(result.step, 7);
    EXPECT_TRUE(result.has_optimizer);
    EXPECT_FALSE(result.samples_seen);
    expect_state(to);
    EXPECT_THAT(find_damage(root_.path() / to), IsEmpty());
    const Manifest manifest = read_manifest(root_.path() / to);
    EXPECT_EQ(manifest.contents, Contents::kState);
    EXPECT_EQ(manifest.training["optimizer_steps"], 5);
    EXPECT_EQ(manifest.training["optimizer"], "adamw");
    EXPECT_EQ(manifest.training["param_groups"].dump(),
              R"([{"betas":[0.9,0.99],"eps":1e-08,"lr":0.01,"weight_decay":0.1}])");
  }
}

TEST_F(DcpModel, IsTheSameAfterExportAndImportInEveryLayout) {
  write_dcp(root_.path() / "dcp", state(), values());
  import("dcp", "first");
  for (const auto layout : {DcpLayout::kNested, DcpLayout::kFlat, DcpLayout::kTorchtitan}) {
    const std::string name(util::name_of(layout));
    export_dcp({.checkpoint_folder = root_.path() / "first",
                .output = root_.path() / ("exported_" + name),
                .layout = layout,
                .model_key = "app.model",
                .optimizer_key = "app.optim",
                .world_size = 3});
    import("exported_" + name, "again_" + name);
    expect_state("again_" + name);
    Manifest first = read_manifest(root_.path() / "first"),
             again = read_manifest(root_.path() / ("again_" + name));
    EXPECT_EQ(first.step, again.step);
    EXPECT_EQ(first.training, again.training);
  }
  EXPECT_TRUE(DcpFolder(root_.path() / "exported_nested").has_tensor("app.model.model.norm.weight"));
  EXPECT_TRUE(DcpFolder(root_.path() / "exported_torchtitan").has_tensor("layers.0.attention.wq.weight"));
}

TEST_F(DcpModel, TorchtitanHasTheRowsOfPairsSideBySide) {
  write_dcp(root_.path() / "dcp", state(), values());
  import("dcp", "ours");
  export_dcp({.checkpoint_folder = root_.path() / "ours",
              .output = root_.path() / "titan",
              .layout = DcpLayout::kTorchtitan});
  const DcpFolder titan(root_.path() / "titan");
  for (const auto& [name, ours] : weights_) {
    if (name != "model.layers.0.self_attn.q_proj.weight") continue;
    at::Tensor theirs = at::zeros_like(ours);
    titan.read("layers.0.attention.wq.weight", 0, theirs.numel(), theirs.data_ptr());
    // torchtitan's own _permute(): [heads, half, 2, in] -> [heads, 2, half, in]
    const int64_t rows = ours.size(0), columns = ours.size(1);
    EXPECT_TRUE(same_bits(
        theirs.view({2, rows / 4, 2, columns}).transpose(1, 2).reshape({rows, columns}).contiguous(), ours));
    EXPECT_FALSE(same_bits(theirs, ours));
  }
}

TEST_F(DcpModel, RefusesAWeightUnderBothNames) {
  expect_import_refused(
      {{"tok_embeddings.weight", weights_.back().second},
       {"layers.0.attention.wq.weight", weights_.back().second},
       {"model.layers.0.self_attn.q_proj.weight", weights_.back().second}},
      "has model.layers.0.self_attn.q_proj.weight twice, under layers.0.attention.wq.weight and "
      "model.layers.0.self_attn.q_proj.weight");
}

TEST_F(DcpModel, ImportsWeightsAlone) {
  NamedTensors weights;
  for (const auto& [name, tensor] : weights_) weights.emplace_back(name, tensor);
  write_dcp(root_.path() / "dcp", weights, {});
  const DcpImportResult result = import("dcp", "ours");
  EXPECT_FALSE(result.has_optimizer);
  EXPECT_EQ(read_manifest(root_.path() / "ours").contents, Contents::kWeights);
  export_dcp({.checkpoint_folder = root_.path() / "ours", .output = root_.path() / "out"});
  EXPECT_EQ(DcpFolder(root_.path() / "out").infos().size(), weights_.size());
}

TEST_F(DcpModel, AParameterWithoutStateIsFrozen) {
  NamedTensors tensors = state();
  std::erase_if(tensors, [](const auto& item) {
    return item.first.starts_with("optimizer.state.model.embed_tokens.weight.");
  });
  write_dcp(root_.path() / "dcp", tensors, values());
  EXPECT_EQ(import("dcp", "ours").tensors, static_cast<int64_t>(3 * weights_.size() - 2));
}

TEST_F(DcpModel, RefusesStatesThatDoNotFit) {
  NamedTensors tensors = state();
  tensors.emplace_back("optimizer.state.model.norm.weight.max_exp_avg_sq", at::zeros({12}));
  expect_import_refused(tensors, "max_exp_avg_sq");
  tensors = state();
  std::erase_if(tensors,
                [](const auto& item) { return item.first.ends_with("model.norm.weight.exp_avg_sq"); });
  expect_import_refused(tensors, "missing: optimizer/exp_avg_sq/model.norm.weight");
  tensors = state();
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with("model.norm.weight.exp_avg")) tensor = at::zeros({3});
  }
  expect_import_refused(tensors, "optimizer/exp_avg/model.norm.weight ([3] instead of [12])");
  tensors = state();
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with("model.norm.weight.step")) tensor = at::full({}, 4.0);
  }
  expect_import_refused(tensors, "the same number of steps for all parameters");
  expect_import_refused(state(1.5), "must be a number of steps");
  expect_import_refused(state(-1), "must be a number of steps");
}

TEST_F(DcpModel, RefusesStatesUnderNumbersAndNoOrSeveralModels) {
  NamedTensors tensors;
  int64_t number = 0;
  for (const auto& [name, tensor] : weights_) {
    tensors.emplace_back("model." + name, tensor);
    tensors.emplace_back(concat("optimizer.state.", number++, ".exp_avg"), tensor);
  }
  expect_import_refused(tensors, "has it under numbers");
  tensors = state();
  tensors.emplace_back("ema.model.embed_tokens.weight", at::zeros({3}));
  expect_import_refused(tensors, "2 keys that end with it");
  expect_import_refused({{"model.wte.weight", at::zeros({3})}},
                        "no key that ends with embed_tokens.weight or tok_embeddings.weight");
  tensors = state();
  std::erase_if(tensors, [](const auto& item) { return item.first == "model.model.norm.weight"; });
  expect_import_refused(tensors, "missing: model.norm.weight");
}

TEST_F(DcpModel, RefusesToExportWhatPyTorchCouldNotGoOnFrom) {
  write_dcp(root_.path() / "dcp", state(), values());
  import("dcp", "ours");
  const auto expect = [&](const std::function<void(nlohmann::json&)>& change, const std::string& text) {
    Manifest manifest = read_manifest(root_.path() / "ours");
    change(manifest.training);
    fs::remove_all(root_.path() / "changed");
    fs::copy(root_.path() / "ours", root_.path() / "changed");
    std::ofstream(root_.path() / "changed" / kManifestName) << manifest_text(manifest);
    const auto [kind, found] = error_of(
        [&] { export_dcp({.checkpoint_folder = root_.path() / "changed", .output = root_.path() / "out"}); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint) << found;
    EXPECT_THAT(found, HasSubstr(text));
    EXPECT_FALSE(fs::exists(root_.path() / "out"));
  };
  expect([](auto& training) { training["optimizer"] = "lion"; }, "comes from a run with lion");
  expect([](auto& training) { training.erase("param_groups"); },
         "does not record the optimizer's hyperparameters");
  expect(
      [](auto& training) {
        training["optimizer_steps_of_units"] = {{"model", 3}};
      },
      "some units had fewer");
}

TEST_F(DcpModel, ReplacesAnExportOnlyWhenAsked) {
  write_dcp(root_.path() / "dcp", state(), values());
  import("dcp", "ours");
  DcpExportRequest request{
      .checkpoint_folder = root_.path() / "ours", .output = root_.path() / "out", .world_size = 3};
  export_dcp(request);
  EXPECT_EQ(error_of([&] { export_dcp(request); }).first, ErrorKind::kCheckpoint);
  request.overwrite = true;
  request.world_size = 1;
  export_dcp(request);
  EXPECT_FALSE(fs::exists(root_.path() / "out/__1_0.distcp"));
  import("out", "again");
  expect_state("again");
}

TEST_F(DcpModel, NamesTensorsThatBelongToNeitherModelNorOptimizer) {
  NamedTensors tensors = state();
  tensors.emplace_back("ema.model.norm.weight", at::ones({12}));
  tensors.emplace_back("train_state.step", at::full({}, 7));
  write_dcp(root_.path() / "dcp", tensors, values());
  const std::string lines = log_lines([&] { import("dcp", "imported"); });
  EXPECT_THAT(lines, HasSubstr("not imported, because they belong to neither the model nor its optimizer: "
                               "ema.model.norm.weight\n"));
  expect_state("imported");
}

TEST_F(DcpModel, OfAnotherAdamIsRefusedByItsOption) {
  std::vector<DcpValue> group = values();
  for (const char* field : {"foreach", "fused", "capturable", "differentiable"}) {
    group.push_back({std::string("optimizer.param_groups.0.") + field, true});
  }
  group.push_back({"optimizer.param_groups.0.maximize", false});
  write_dcp(root_.path() / "dcp", state(), group);
  import("dcp", "imported");
  group.back().value = true;
  fs::remove_all(root_.path() / "dcp");
  write_dcp(root_.path() / "dcp", state(), group);
  const auto [kind, text] = error_of([&] { import("dcp", "refused"); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("optimizer.param_groups.0.maximize must be false or missing, but is true"));
}

}  // namespace
}  // namespace fsdp::checkpoint
