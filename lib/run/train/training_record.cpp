#include "run/train/training_record.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/log.h"
#include "data/tokens/data_identity.h"
#include "run/train/arithmetic.h"
#include "state/checkpoint/error_slices.h"
#include "state/checkpoint/state_slices.h"
#include "state/groups/learning_rate.h"
#include "state/groups/parameter_groups.h"
#include "state/outer/outer_slices.h"

namespace fsdp::train {
namespace {

/// Returns the step counts of the units that had no gradient in some steps.
nlohmann::json uneven_step_counts(const optim::Optimizer& optimizer) {
  nlohmann::json counts = nlohmann::json::object();
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    int64_t count = optimizer.parameter_step_count(i);
    if (count != optimizer.step_count()) counts[optimizer.parameters()[i].name] = count;
  }
  return counts;
}

/// Returns the hyperparameters of Adam and AdamW, for the export to PyTorch. `lr` is the rate of the next
/// step. Parameters that no group names form one group without "params".
nlohmann::json param_groups(const config::Config& config, const optim::Optimizer& optimizer, int64_t step) {
  const optim::OptimizerOptions& options = config.optimizer;
  const double lr = optim::lr_at(options, config.lr_scheduler, step + 1, config.training.steps);
  std::map<std::pair<double, double>, std::pair<optim::Treatment, std::vector<std::string>>> groups;
  for (const optim::FlatParameter& unit : optimizer.parameters()) {
    for (const auto& tensor : unit.tensors) {
      const optim::Treatment& treatment = tensor.treatment;
      auto& [of_group, names] =
          groups[{optim::lr_of(options, treatment, options.lr), optim::weight_decay_of(options, treatment)}];
      of_group = treatment;
      names.push_back(tensor.name);
    }
  }
  const auto largest = std::max_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return a.second.second.size() < b.second.second.size();
  });
  nlohmann::json list = nlohmann::json::array();
  for (auto group = groups.begin(); group != groups.end(); ++group) {
    auto& [treatment, names] = group->second;
    list.push_back({{"lr", optim::lr_of(options, treatment, lr)},
                    {"initial_lr", group->first.first},
                    {"weight_decay", group->first.second},
                    {"betas", options.betas},
                    {"eps", optim::eps_of(options)}});
    std::sort(names.begin(), names.end());  // whatever the units are
    if (group != largest) list.back()["params"] = std::move(names);
  }
  return list;
}

void restore_step_counts(optim::Optimizer& optimizer, const nlohmann::json& record) {
  optimizer.set_step_count(record.at("optimizer_steps").get<int64_t>());
  auto uneven = record.find("optimizer_steps_of_units");
  if (uneven == record.end()) return;
  size_t found = 0;
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    auto count = uneven->find(optimizer.parameters()[i].name);
    if (count == uneven->end()) continue;
    optimizer.set_parameter_step_count(i, count->get<int64_t>());
    ++found;
  }
  if (found == uneven->size()) return;
  util::log_warning(
      "some units of the checkpoint had fewer optimizer steps than others, and this run has other units: "
      "their step count is now that of the run");
}

/// Returns NaN for null, which JSON has in place of numbers that are not finite, and if the number is
/// missing.
double number_of(const nlohmann::json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number() ? found->get<double>()
                                                     : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::vector<shard::TensorSlice> TrainingState::slices_to_save() const {
  if (outer != nullptr) return optim::outer_slices_to_save(*outer);
  std::vector<shard::TensorSlice> slices =
      checkpoint::state_slices(engine, optimizer, checkpoint::SlicePurpose::kSave);
  std::ranges::move(checkpoint::error_slices(engine), std::back_inserter(slices));
  return slices;
}

std::vector<shard::TensorSlice> TrainingState::slices_in_memory() const {
  if (outer != nullptr) return optim::outer_slices_in_memory(*outer);
  return checkpoint::state_slices(engine, optimizer, checkpoint::SlicePurpose::kLoad);
}

nlohmann::json training_record(const config::Config& config, const TrainingState& state,
                               const RunPosition& position) {
  nlohmann::json record = {{"samples_seen", position.samples_seen},
                           {"tokens_seen", position.tokens_seen},
                           {"training_seconds", position.training_seconds},
                           {"loss", position.loss},
                           {"grad_norm", position.grad_norm},
                           {"optimizer_steps", state.optimizer.step_count()},
                           {"seed", config.run.seed},
                           {"optimizer", config.optimizer.name}};
  if (config.optimizer.name == "adam" || config.optimizer.name == "adamw") {
    record["param_groups"] = param_groups(config, state.optimizer, position.step);
  }
  if (position.losses > 1 || (position.losses == 1 && !std::isfinite(position.loss))) {
    record["losses_since_line"] = {position.loss_sum, position.losses};
  }
  if (!state.sampling.is_null()) record["sampling"] = state.sampling;
  if (config.training.reproducible == config::Reproducible::kWorldSize) record["arithmetic"] = arithmetic();
  if (position.steps_without_targets > 0) record["steps_without_targets"] = position.steps_without_targets;
  if (position.samples_per_step > 0) record["samples_per_step"] = position.samples_per_step;
  if (auto uneven = uneven_step_counts(state.optimizer); !uneven.empty()) {
    record["optimizer_steps_of_units"] = std::move(uneven);
  }
  if (state.scaler) {
    record["loss_scaler"] = {{"scale", state.scaler->state().scale},
                             {"growth_tracker", state.scaler->state().growth_tracker},
                             {"skipped_steps", state.scaler->state().skipped_steps}};
  }
  if (state.guard) record["update_guard"] = state.guard->state();
  if (!state.data.is_null()) record["data"] = state.data;
  if (state.loader) {
    nlohmann::json loading = state.loader->state(position.samples_seen);
    const auto is_null = [](const nlohmann::json& each) { return each.is_null(); };
    if (!std::ranges::all_of(loading, is_null)) record["loading"] = std::move(loading);
  }
  if (state.validations) record["validations"] = state.validations->state();
  return record;
}

RunPosition restore_training_record(const nlohmann::json& record, int64_t step, const TrainingState& state,
                                    const std::string& where, bool same_data) {
  RunPosition position{.step = step};
  try {
    position.samples_seen = record.at("samples_seen").get<int64_t>();
    position.tokens_seen = record.at("tokens_seen").get<int64_t>();
    position.samples_per_step = record.value("samples_per_step", int64_t{0});
    position.steps_without_targets = record.value("steps_without_targets", int64_t{0});
    position.training_seconds = record.value("training_seconds", 0.0);
    position.loss = number_of(record, "loss");
    position.grad_norm = number_of(record, "grad_norm");
    position.losses = std::isfinite(position.loss) ? 1 : 0;
    position.loss_sum = position.losses > 0 ? position.loss : 0;
    if (const auto losses = record.find("losses_since_line"); losses != record.end()) {
      losses->at(0).get_to(position.loss_sum);
      losses->at(1).get_to(position.losses);
    }
    restore_step_counts(state.optimizer, record);
    if (state.loader && same_data && record.contains("loading")) state.loader->resume(record.at("loading"));
    if (state.guard && record.contains("update_guard")) state.guard->set_state(record.at("update_guard"));
    if (state.validations && record.contains("validations")) {
      nlohmann::json validations = record.at("validations");
      // Checkpoints of version 0.1.0 lack the number; most were saved after the validation of their step.
      if (!validations.contains("validated_at")) validations["validated_at"] = step;
      state.validations->set_state(validations);
    }
    if (state.scaler && record.contains("loss_scaler")) {
      state.scaler->set_state({.scale = record.at("loss_scaler").at("scale").get<double>(),
                               .growth_tracker = record.at("loss_scaler").at("growth_tracker").get<int64_t>(),
                               .skipped_steps = record.at("loss_scaler").value("skipped_steps", int64_t{0})});
    }
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::kCheckpoint, where,
         " must have samples_seen, tokens_seen and optimizer_steps under \"training\", but "
         "was not written by fsdp-train; start from its weights with checkpoint.init_from "
         "instead");
  }
  return position;
}

nlohmann::json data_record(const data::TrainLoader& training, const data::ValidationLoader* validation) {
  nlohmann::json files = nlohmann::json::array();
  for (const auto& set : training.sets()) {
    for (auto& file : set.samples->identity()) files.push_back(std::move(file));
  }
  nlohmann::json record = {{"train", std::move(files)}};
  if (validation != nullptr) record["validation"] = validation->samples().identity();
  return record;
}

void require_same_data(const nlohmann::json& recorded, const nlohmann::json& found, bool may_differ,
                       const std::string& where) {
  for (const auto& [key, files] : found.items()) {
    if (!recorded.is_object() || !recorded.contains(key)) continue;
    const auto difference = data::difference(recorded.at(key), files);
    if (!difference) continue;
    const std::string what =
        concat("data.", key, " differs from the data that ", where, " was trained on: ", *difference);
    if (!may_differ) {
      fail(ErrorKind::kData, what,
           "; put the file back, or set data.allow_changed=true to continue with the present data");
    }
    util::log_warning(concat(what, "; the run continues with it, because data.allow_changed is true"));
  }
}

}  // namespace fsdp::train
