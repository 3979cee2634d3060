#include "train/data_record.h"

#include "data/data_identity.h"
#include "util/error.h"
#include "util/log.h"

namespace fsdp::train {

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
    const std::string what = util::concat("data.", key, ": expected the tokens that ", where,
                                          " was trained with; found that ", *difference);
    if (!may_differ) {
      util::fail(util::ErrorKind::kData, what,
                 "; put the file back, or set data.allow_changed=true to go on with what is there now");
    }
    util::log_warning(util::concat(what, "; the run goes on with it, as data.allow_changed says"));
  }
}

}  // namespace fsdp::train
