#include "model/families/objectives.h"

namespace fsdp::nn {

util::Registry<Objective>& objectives() {
  using enum ObjectiveRows;
  static util::Registry<Objective> objectives(
      "objective",
      {{kLanguageModel, {}},
       {"distill", {.has_teacher = true}},
       {"dpo", {.rows = kPairs, .has_reference = true}},
       {"robust", {.rows = kPairs, .has_reference = true}},
       {"hinge", {.rows = kPairs, .has_reference = true}},
       {"ipo", {.rows = kPairs, .has_reference = true}},
       {"exo_pair", {.rows = kPairs, .has_reference = true}},
       {"apo_zero", {.rows = kPairs, .has_reference = true}},
       {"apo_down", {.rows = kPairs, .has_reference = true}},
       {"orpo", {.rows = kPairs, .averages = true, .cross_entropy = AddedCrossEntropy::kOfDocuments}},
       {"simpo", {.rows = kPairs, .averages = true}},
       {"cpo", {.rows = kPairs, .cross_entropy = AddedCrossEntropy::kOfCompletions}},
       {"kto", {.rows = kSingle, .has_reference = true}}});
  return objectives;
}

}  // namespace fsdp::nn
