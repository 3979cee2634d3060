#include "state/convert/dcp_import.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "model/families/families.h"
#include "state/convert/dcp_keys.h"
#include "state/dcp/dcp_folder.h"
#include "state/description/described_model.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/weights/stored_model.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::array kStates{"exp_avg", "exp_avg_sq"};
constexpr const char* kStepKind = "step";

/// Keys that training scripts save beside a model and its optimizer.
bool is_of_script(std::string_view key) {
  return key == "step" || key.starts_with("train_state.") || key.starts_with("lr_scheduler.") ||
         key.starts_with("dataloader.");
}

std::string state_name(const std::string& kind, const std::string& parameter) {
  return concat(kOptimizerPrefix, kind, "/", parameter);
}

/// The tensors of the folder under the names of a checkpoint, and the steps of the parameters.
struct DcpContents {
  DcpKeys keys;
  std::shared_ptr<const RenamedTensors> tensors;
  std::map<std::string, std::string> step_keys;  ///< parameter -> key of its step count
  std::vector<std::string> other_states;         ///< keys of states that Adam does not have
  std::vector<std::string> unused;               ///< keys of all other tensors
};

DcpContents find_tensors(const std::shared_ptr<const DcpFolder>& folder, const nn::ModelOptions& options) {
  std::vector<std::string> keys;
  for (const TensorInfo& info : folder->infos()) keys.push_back(info.name);
  DcpContents found;
  found.keys = find_dcp_keys(keys, options, folder->path().string());
  const bool is_titan = found.keys.names == DcpNames::kTorchtitan;
  // An unknown name is kept and reported as unexpected.
  const auto our_name = [&](const std::string& theirs) {
    return is_titan ? from_torchtitan(theirs).value_or(theirs) : theirs;
  };
  std::map<std::string, RenamedTensor> renamed;
  const auto add = [&](const std::string& name, const std::string& key, const std::string& parameter) {
    if (renamed.emplace(name, RenamedTensor{key, is_titan ? rotated_heads(options, parameter) : 0}).second)
      return;
    fail(ErrorKind::kCheckpoint, folder->path().string(), " has ", parameter, " twice, under ",
         renamed[name].source_name, " and ", key, "; save one state dict by itself");
  };
  for (const std::string& key : keys) {
    const bool is_param_group =
        found.keys.optimizer && key.starts_with(*found.keys.optimizer + "param_groups.");
    if (found.keys.optimizer && key.starts_with(*found.keys.optimizer + "state.")) {
      const auto state = split_state_key(key, *found.keys.optimizer);
      if (!state) {
        found.unused.push_back(key);
        continue;
      }
      const std::string parameter = our_name(state->parameter);
      if (state->kind == kStepKind) {
        found.step_keys.emplace(parameter, key);
      } else if (std::find(kStates.begin(), kStates.end(), state->kind) != kStates.end()) {
        add(state_name(state->kind, parameter), key, parameter);
      } else {
        found.other_states.push_back(key);
      }
    } else if (key.starts_with(found.keys.model) && !(found.keys.model.empty() && is_of_script(key)) &&
               !is_param_group) {
      const std::string parameter = our_name(key.substr(found.keys.model.size()));
      add(kWeightsPrefix + parameter, key, parameter);
    } else if (!is_param_group && !is_of_script(key)) {
      found.unused.push_back(key);
    }
  }
  for (const std::string& key : folder->value_keys()) {  // older releases save a step count as a plain number
    const auto state = found.keys.optimizer ? split_state_key(key, *found.keys.optimizer) : std::nullopt;
    if (state && state->kind == kStepKind) found.step_keys.emplace(our_name(state->parameter), key);
  }
  found.tensors = std::make_shared<RenamedTensors>(folder, std::move(renamed));
  return found;
}

int64_t number_of_steps(const json& value, const std::string& where) {
  constexpr double kMost = 9e15;
  const double number = value.is_number() ? value.get<double>() : -1;
  if (number >= 0 && number <= kMost && number == static_cast<double>(static_cast<int64_t>(number))) {
    return static_cast<int64_t>(number);
  }
  fail(ErrorKind::kCheckpoint, where, " must be a number of steps, but is not");
}

/// The count under the first of the keys that the folder has.
std::optional<int64_t> find_count(const DcpFolder& folder, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const json value = folder.value(key);
    if (!value.is_null()) return number_of_steps(value, concat(folder.path().string(), ": ", key));
  }
  return std::nullopt;
}

/// Adds the states of all weights that have states. Returns the number of steps that the optimizer has done.
int64_t add_states(const DcpFolder& folder, const DcpContents& found, const Weights& all,
                   const std::map<std::string, std::string>& names, const std::string& tied_head,
                   std::vector<ShardedTensor>& tensors) {
  WeightMisfits misfits;
  misfits.unexpected = found.other_states;
  std::set<std::string> used;
  std::optional<int64_t> steps;
  std::string first;
  for (const auto& [name, stored] : names) {
    std::string parameter = stored;
    const auto is_there = [&](const std::string& candidate) {
      return all.contains(state_name(kStates.front(), candidate));
    };
    if (!is_there(parameter) && !tied_head.empty()) parameter = is_there(name) ? name : tied_head;
    if (!is_there(parameter)) continue;  // frozen
    for (const char* kind : kStates) {
      const std::string source = state_name(kind, parameter);
      if (!all.contains(source)) {
        misfits.missing.push_back(source);
        continue;
      }
      const TensorInfo& info = all.info(source);
      compare_shape(source, info.shape, all.shape(kWeightsPrefix + stored), misfits);
      if (!c10::isFloatingType(info.dtype))
        misfits.unexpected.push_back(source + " (not of a floating-point type)");
      used.insert(source);
      tensors.push_back({source, {state_name(kind, name), info.shape, c10::ScalarType::Float}});
    }
    const auto key = found.step_keys.find(parameter);
    if (key == found.step_keys.end()) {
      misfits.missing.push_back(state_name(kStepKind, parameter));
      continue;
    }
    const int64_t count =
        number_of_steps(folder.value(key->second), concat(folder.path().string(), ": ", key->second));
    if (!steps) {
      steps = count;
      first = parameter;
    }
    if (count != *steps) {
      fail(ErrorKind::kCheckpoint, folder.path().string(),
           " must have the same number of steps for all parameters, but has ", *steps, " for ", first,
           " and ", count, " for ", parameter,
           "; save it after a step in which all parameters have gradients");
    }
  }
  for (const TensorInfo& info : found.tensors->infos()) {
    if (info.name.starts_with(kOptimizerPrefix) && !used.contains(info.name))
      misfits.unexpected.push_back(info.name);
  }
  misfits.refuse_any(concat("and optimizer states of ", folder.path().string()), "Adam's");
  return steps.value_or(0);
}

/// Whether a field of PyTorch's param_groups affects only how an update is computed, not its result.
bool changes_no_update(std::string_view field) {
  constexpr std::array<std::string_view, 6> kFields{"foreach",        "fused",       "capturable",
                                                    "differentiable", "param_names", "name"};
  return std::find(kFields.begin(), kFields.end(), field) != kFields.end();
}

/// Reads the hyperparameters in the folder as param_groups of a manifest.
json read_param_groups(const DcpFolder& folder, const DcpContents& found, std::string& optimizer) {
  const std::string prefix = *found.keys.optimizer + "param_groups.";
  std::map<std::string, json> by_owner;  // owner: the number of a group, or a parameter
  for (const std::string& key : folder.value_keys()) {
    const size_t dot = key.rfind('.');
    if (!key.starts_with(prefix) || dot < prefix.size()) continue;
    const std::string owner = key.substr(prefix.size(), dot - prefix.size()), field = key.substr(dot + 1);
    json& group = by_owner[owner];
    if (!group.is_object()) group = json::object();
    if (field == "lr" || field == "initial_lr" || field == "betas" || field == "eps" ||
        field == "weight_decay") {
      group[field] = folder.value(key);
    } else if (field == "params") {
      group["params"] = folder.value(key);
    } else if (field == "decoupled_weight_decay") {
      if (folder.value(key) == false) optimizer = "adam";
    } else if (!changes_no_update(field)) {
      if (folder.value(key) != true) continue;  // a number comes from a schedule
      fail(
          ErrorKind::kCheckpoint, folder.path().string(), ": ", key,
          " must be false or missing, but is true, which this library's Adam does not support; save the model's state dict by "
          "itself to import the weights alone");
    }
  }
  // Keyed by values: in a flattened dict each parameter has a group of its own.
  std::map<std::string, json> groups;
  for (auto& [owner, group] : by_owner) {
    json params = group.contains("params") ? group["params"] : json::array({owner});
    group.erase("params");
    json& to = groups[group.dump(-1, ' ', false, json::error_handler_t::replace)];
    if (!to.is_object()) to = {{"values", group}, {"params", json::array()}};
    for (const json& name : params) {
      if (!name.is_string()) continue;
      const auto theirs = name.get<std::string>();
      const bool is_titan = found.keys.names == DcpNames::kTorchtitan;
      to["params"].push_back(is_titan ? from_torchtitan(theirs).value_or(theirs) : theirs);
    }
  }
  json result = json::array();
  for (auto& [text, group] : groups) {
    json values = std::move(group["values"]);
    values["params"] = std::move(group["params"]);
    result.push_back(std::move(values));
  }
  // The largest group becomes the default for parameters that no other group names.
  const auto largest = std::max_element(result.begin(), result.end(), [](const json& a, const json& b) {
    return a["params"].size() < b["params"].size();
  });
  if (largest != result.end()) largest->erase("params");
  return result;
}

fs::path dcp_config_path(const DcpImportRequest& request) {
  if (!request.config.empty()) return request.config;
  fs::path path = config_beside(request.source);
  if (!util::is_there(path)) {
    fail(
        ErrorKind::kCheckpoint, "there is no model config at ", path.string(),
        ", and checkpoints of torch.distributed.checkpoint do not describe their model; give it with `config`");
  }
  return path;
}

}  // namespace

DcpImportResult import_dcp(const DcpImportRequest& request) {
  const fs::path config_path = dcp_config_path(request);
  json config = read_config_json(config_path);
  const nn::ModelOptions options = options_from_hugging_face(config, config_path.string());
  config["architectures"] = {causal_model_class(config["model_type"])};

  const auto folder = std::make_shared<const DcpFolder>(request.source);
  const DcpContents found = find_tensors(folder, options);
  if (!found.unused.empty()) {
    util::log_warning(concat(request.source.string(),
                             ": not imported, because they belong to neither the model nor its ",
                             "optimizer: ", util::name_list(found.unused)));
  }
  Weights all(request.source), weights(request.source);
  all.set_saturating(request.saturate);
  all.add(found.tensors);
  weights.add(found.tensors, kWeightsPrefix);
  const MatchedWeights matched = match_weights(weights, options);
  matched.misfits.refuse_any(request.source.string(), config_path.string());
  if (const auto dtype = request.dtype ? request.dtype : common_dtype(weights)) set_dtype(config, *dtype);
  std::vector<ShardedTensor> tensors;
  for (const auto& [name, stored] : matched.names) {
    const std::string source = kWeightsPrefix + stored;
    const TensorInfo& info = all.info(source);
    tensors.push_back({source, {kWeightsPrefix + name, info.shape, request.dtype.value_or(info.dtype)}});
  }

  DcpImportResult result;
  result.has_optimizer = found.keys.optimizer.has_value();
  const std::optional<int64_t> step = find_count(*folder, {"step", "train_state.step"});
  result.step = step.value_or(0);
  json training = nullptr;
  if (result.has_optimizer) {
    const std::string head = options.tie_word_embeddings ? nn::family_of(options).head_weight() : "";
    const int64_t steps = add_states(*folder, found, all, matched.names, head, tensors);
    if (!step) result.step = steps;
    std::string optimizer = "adamw";
    result.param_groups = read_param_groups(*folder, found, optimizer);
    result.samples_seen = request.samples_seen ? request.samples_seen : find_count(*folder, {"samples_seen"});
    training = {{"samples_seen", result.samples_seen.value_or(0)},
                {"tokens_seen", find_count(*folder, {"tokens_seen", "train_state.ntokens_seen"}).value_or(0)},
                {"optimizer_steps", steps},
                {"optimizer", optimizer},
                {"param_groups", result.param_groups}};
  } else if (request.samples_seen) {
    fail(ErrorKind::kUsage,
         "`samples_seen` requires a checkpoint with optimizer state, from which a run resumes, but ",
         request.source.string(), " has none; leave it out");
  }
  static_cast<ShardedResult&>(result) =
      write_sharded({.folder = request.output,
                     .world_size = request.world_size,
                     .step = result.step,
                     .contents = result.has_optimizer ? Contents::kState : Contents::kWeights,
                     .training = std::move(training),
                     .model = std::move(config),
                     .model_files = model_files_in(config_path.parent_path()),
                     .progress = request.progress},
                    all, tensors);
  return result;
}

}  // namespace fsdp::checkpoint
