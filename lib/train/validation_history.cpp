#include "train/validation_history.h"

#include <cmath>

namespace fsdp::train {

bool ValidationHistory::add(int64_t step, double loss) {
  validated_at_ = step;
  const bool better = std::isfinite(loss) && (!best_ || loss < best_->loss - min_delta_);
  if (better) best_ = Best{.step = step, .loss = loss};
  not_better_in_a_row_ = better ? 0 : not_better_in_a_row_ + 1;
  return better;
}

nlohmann::json ValidationHistory::state() const {
  nlohmann::json state = {{"not_better_in_a_row", not_better_in_a_row_}, {"validated_at", validated_at_}};
  if (best_) state["best"] = {{"step", best_->step}, {"loss", best_->loss}};
  return state;
}

void ValidationHistory::set_state(const nlohmann::json& state) {
  not_better_in_a_row_ = state.at("not_better_in_a_row").get<int64_t>();
  validated_at_ = state.at("validated_at").get<int64_t>();
  best_.reset();
  if (!state.contains("best")) return;
  const nlohmann::json& best = state.at("best");
  best_ = Best{.step = best.at("step").get<int64_t>(), .loss = best.at("loss").get<double>()};
}

}  // namespace fsdp::train
