// Loader: the model that the description beside its weights completes.

#include <algorithm>

#include "base/objects/object_name.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "setup/config/loader.h"
#include "setup/config/model_description.h"
#include "state/description/described_model.h"

namespace fsdp::config {

/// Completes [model] from the description beside the weights, if there is one; given keys must agree.
void Loader::apply_stored_model() {
  const std::string& path = config_.model.init_from;
  if (path.empty() || !file_was_read_ || completeness_ == Completeness::kIsWhole) return;
  const Given& place = given_.at("model.init_from");
  try {
    if (!objects::is_remote(path) && !util::is_there(path)) {
      // Reported when the weights are opened, unless the model is unknown without them.
      const std::vector<Key>& keys = all_keys();
      const bool any = std::any_of(keys.begin(), keys.end(), [&](const Key& key) {
        return is_determined_by_weights(key.full_name()) && has(key);
      });
      if (any) return;
      fail(ErrorKind::kUsage, "model.init_from: there are no weights at ", path,
           ", which must define the model because [model] does not; correct the path",
           util::hub_remedy(path));
    }
    const auto stored = checkpoint::described_model(path);
    if (!stored) return;
    const nn::ModelOptions options = model_of(*stored);
    fill_model(options, stored->where);
    refuse_differences(options, stored->where);
  } catch (const util::Error& error) {
    // An error of another kind keeps its exit code if nothing else is wrong.
    if (error.kind() != ErrorKind::kUsage && report_.empty()) throw;
    report_.add(*place.source, place.region, error.what());
  }
}

void Loader::fill_model(const nn::ModelOptions& stored, const std::string& where) {
  Config described;
  described.model = stored;
  described.plugin_values = stored.plugin_values;
  for (const Key& key : all_keys()) {
    const bool of_model = key.section == "model" || is_determined_by_weights(key.full_name());
    if (!of_model || has(key)) continue;
    if (key.name == "preset" || key.name.starts_with("init_")) continue;
    set_value(key, config_, value_of(key, described));
    stored_[key.full_name()] = where;
  }
}

void Loader::refuse_differences(const nn::ModelOptions& stored, const std::string& where) {
  share_values();
  const std::vector<ModelDifference> differences = compare_models(config_.model, stored);
  for (const ModelDifference& difference : differences) {
    const auto found = given_.find(difference.key);
    FSDP_CHECK(found != given_.end(), difference.key);
    const bool last = &difference == &differences.back();  // the remedy is the same for all
    report_.add(*found->second.source, found->second.region,
                concat(difference_text(difference, where), last ? "; " : "; leave the key out",
                       last ? kDifferenceRemedy : ""));
    found->second.is_wrong = true;
  }
}

}  // namespace fsdp::config
