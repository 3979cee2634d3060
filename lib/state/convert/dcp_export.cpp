#include "state/convert/dcp_export.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "model/families/families.h"
#include "state/convert/consolidate.h"
#include "state/convert/dcp_keys.h"
#include "state/dcp/dcp_writer.h"
#include "state/description/described_model.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/manifest/staged_output.h"
#include "state/weights/adapter.h"
#include "state/weights/shard_set.h"

namespace fsdp::checkpoint {
using nlohmann::json;

namespace {

/// The tensors and values to write, and their keys.
class ExportPlan {
 public:
  ExportPlan(const DcpExportRequest& request, std::shared_ptr<const ShardedSource> source)
      : request_(request), source_(std::move(source)), manifest_(source_->manifest()) {
    const bool is_titan = request.layout == DcpLayout::kTorchtitan;
    if (!is_titan) {
      model_prefix_ = request.model_key + ".";
      optimizer_prefix_ = request.optimizer_key + ".";
    }
    const std::string where = (request.checkpoint_folder / kManifestName).string();
    if (manifest_.model.is_object() && manifest_.model.contains(kAdapterKey)) {
      fail(
          ErrorKind::kCheckpoint, request.checkpoint_folder.string(),
          " must hold all weights, but holds adapters; convert it with fsdp-ckpt export --merge and fsdp-ckpt import");
    }
    if (manifest_.model.is_object() && !manifest_.model.contains(kPluginConfig)) {
      options_ = options_from_hugging_face(manifest_.model, concat(where, ": \"model\""));
    }
    if (is_titan && (!options_ || options_->architecture != "llama")) {
      fail(ErrorKind::kUsage, "the model must be a llama for torchtitan's names, but ", where, " describes ",
           options_ ? options_->architecture : "none", "; choose another layout");
    }
    add_weights();
    if (manifest_.contents == Contents::kState) add_optimizer(where);
    add_position();
  }

  const std::vector<DcpTensor>& tensors() const { return tensors_; }
  const std::vector<DcpValue>& values() const { return values_; }
  Weights weights() {
    Weights weights(source_->path());
    weights.add(std::make_shared<RenamedTensors>(source_, std::move(renamed_)));
    return weights;
  }

 private:
  bool is_titan() const { return request_.layout == DcpLayout::kTorchtitan; }

  std::string their_name(const std::string& parameter) const {
    if (!is_titan()) return parameter;
    const auto theirs = to_torchtitan(parameter);
    if (theirs) return *theirs;
    fail(ErrorKind::kUsage, "torchtitan's llama has no parameter for ", parameter, "; choose another layout");
  }

  void add_tensor(const std::string& key, const TensorInfo& stored, const std::string& parameter,
                  std::optional<c10::ScalarType> dtype) {
    const int64_t heads = is_titan() ? rotated_heads(*options_, parameter) : 0;
    renamed_.emplace(key, RenamedTensor{stored.name, heads, true});
    const bool casts = dtype && c10::isFloatingType(stored.dtype);
    tensors_.push_back({.info = {key, stored.shape, casts ? *dtype : stored.dtype}});
  }

  void add_weights() {
    const std::string tokens = options_ ? nn::family_of(*options_).token_weight() : "";
    for (const TensorInfo& info : source_->infos()) {
      if (!info.name.starts_with(kWeightsPrefix)) continue;
      const std::string parameter = info.name.substr(std::string_view(kWeightsPrefix).size());
      add_tensor(model_prefix_ + their_name(parameter), info, parameter, request_.dtype);
      if (parameter != tokens || !options_->tie_word_embeddings) continue;
      // PyTorch's state dicts list a shared weight under both names.
      const std::string head = nn::family_of(*options_).head_weight();
      add_tensor(model_prefix_ + their_name(head), info, head, request_.dtype);
    }
  }

  void add_optimizer(const std::string& where) {
    const json& training = manifest_.training;
    const std::string optimizer = training.is_object() ? training.value("optimizer", "") : "";
    if (optimizer != "adam" && optimizer != "adamw") {
      fail(
          ErrorKind::kCheckpoint, where,
          " must come from a run with adam or adamw, but comes from a run with ",
          optimizer.empty() ? "an unknown optimizer" : optimizer,
          "; fsdp-ckpt consolidate --format full makes a checkpoint of its weights alone, which can be exported");
    }
    if (training.contains("optimizer_steps_of_units")) {
      fail(ErrorKind::kCheckpoint, where,
           " must have the same number of steps for all parameters, but some units had fewer");
    }
    if (!training.contains("param_groups") || !training["param_groups"].is_array() ||
        training["param_groups"].empty()) {
      fail(
          ErrorKind::kCheckpoint, where,
          " does not record the optimizer's hyperparameters (\"param_groups\"), like checkpoints of older releases; resume a "
          "run from it and save a new checkpoint");
    }
    std::vector<std::string> parameters;
    for (const TensorInfo& info : source_->infos()) {
      if (!info.name.starts_with(kOptimizerPrefix) || info.name.starts_with(kAveragePrefix) ||
          is_of_local_steps(info.name)) {
        continue;
      }
      const std::string state = info.name.substr(std::string_view(kOptimizerPrefix).size());
      const size_t slash = state.find('/');
      const std::string kind = state.substr(0, slash), parameter = state.substr(slash + 1);
      add_tensor(state_key(parameter, kind), info, parameter, std::nullopt);
      if (kind == "exp_avg") parameters.push_back(parameter);
    }
    const auto steps = training.at("optimizer_steps").get<float>();
    for (const std::string& parameter : parameters) {
      tensors_.push_back({.info = {state_key(parameter, "step"), {}, c10::ScalarType::Float},
                          .number = DcpTensor::bytes_of(steps)});
    }
    add_param_groups(training["param_groups"], parameters, optimizer == "adamw");
  }

  std::string state_key(const std::string& parameter, const std::string& kind) const {
    return concat(optimizer_prefix_, "state.", their_name(parameter), ".", kind);
  }

  void add_param_groups(const json& groups, const std::vector<std::string>& parameters, bool decoupled) {
    std::map<std::string, size_t> group_of;
    size_t rest = 0;
    for (size_t i = 0; i < groups.size(); ++i) {
      if (!groups[i].contains("params")) {
        rest = i;
        continue;
      }
      for (const json& name : groups[i]["params"]) group_of.emplace(name.get<std::string>(), i);
    }
    std::vector<json> members(groups.size(), json::array());
    for (const std::string& parameter : parameters) {
      const auto found = group_of.find(parameter);
      members[found != group_of.end() ? found->second : rest].push_back(their_name(parameter));
    }
    for (size_t i = 0, number = 0; i < groups.size(); ++i) {
      if (members[i].empty()) continue;
      json values = {{"amsgrad", false},
                     {"maximize", false},
                     {"foreach", nullptr},
                     {"capturable", false},
                     {"fused", nullptr},
                     {"differentiable", false},
                     {"decoupled_weight_decay", decoupled}};
      for (const char* key : {"lr", "initial_lr", "betas", "eps", "weight_decay"}) {
        if (groups[i].contains(key)) values[key] = groups[i][key];
      }
      const auto add = [&](const std::string& owner) {
        for (const auto& [key, value] : values.items()) {
          values_.push_back(
              {concat(optimizer_prefix_, "param_groups.", owner, ".", key), value, key == "betas"});
        }
      };
      if (request_.layout == DcpLayout::kNested) {
        values["params"] = members[i];
        add(std::to_string(number++));
      } else {
        for (const json& name : members[i]) add(name.get<std::string>());
      }
    }
  }

  /// Adds the progress of the run.
  void add_position() {
    const json& training = manifest_.training;
    const int64_t tokens = training.is_object() ? training.value("tokens_seen", int64_t{0}) : 0;
    if (is_titan()) {
      tensors_.push_back({.info = {"train_state.step", {}, c10::ScalarType::Int},
                          .number = DcpTensor::bytes_of(static_cast<int32_t>(manifest_.step))});
      tensors_.push_back({.info = {"train_state.ntokens_seen", {}, c10::ScalarType::Long},
                          .number = DcpTensor::bytes_of(tokens)});
      return;
    }
    values_.push_back({"step", manifest_.step});
    if (!training.is_object()) return;
    values_.push_back({"samples_seen", training.value("samples_seen", int64_t{0})});
    values_.push_back({"tokens_seen", tokens});
  }

  const DcpExportRequest& request_;
  std::shared_ptr<const ShardedSource> source_;
  const Manifest& manifest_;
  std::optional<nn::ModelOptions> options_;
  std::string model_prefix_, optimizer_prefix_ = "optimizer.";
  std::map<std::string, RenamedTensor> renamed_;
  std::vector<DcpTensor> tensors_;
  std::vector<DcpValue> values_;
};

}  // namespace

DcpExportResult export_dcp(const DcpExportRequest& request) {
  auto source = std::make_shared<ShardedSource>(request.checkpoint_folder);
  ExportPlan plan(request, source);
  if (!request.overwrite && !is_empty_folder(request.output)) refuse_existing(request.output);
  source->verify_all(request.progress);
  StagedFolder staged(request.output, request.overwrite);
  const int64_t files = request.world_size > 0 ? request.world_size : source->manifest().world_size;
  DcpExportResult result{{.folder = staged.target(), .files = files, .tensors = std::ssize(plan.tensors())},
                         source->manifest().contents == Contents::kState};
  for (const DcpTensor& tensor : plan.tensors()) result.bytes += bytes_of(tensor.info);
  Weights weights = plan.weights();
  weights.set_saturating(request.saturate);
  write_dcp_files({.folder = staged.path(), .files = files, .progress = request.progress}, weights,
                  plan.tensors(), plan.values());
  staged.commit(is_dcp_file);
  return result;
}

}  // namespace fsdp::checkpoint
