#pragma once

// Which stored tensor is which weight of a model, as weights are found in the wild: names without the prefix
// of the language model ("h.0.ln_1.weight"), a stored copy of a tied head, and buffers that are no weights
// (causal masks, rotary frequencies), which are left out.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/weights.h"
#include "nn/options.h"

namespace fsdp::checkpoint {

/// In what stored weights differ from those of a model; each entry tells one.
struct Misfits {
  std::vector<std::string> missing, unexpected, misshapen;

  /// kCheckpoint that lists all, if there are any: `who` are the weights, `config` describes the model.
  void refuse_any(const std::string& who, const std::string& config) const;
};

void compare_shape(const std::string& name, const std::vector<int64_t>& found,
                   const std::vector<int64_t>& expected, Misfits& misfits);

struct MatchedWeights {
  /// The model's name -> the source's, of all weights of hugging_face_shapes() that the source has.
  std::map<std::string, std::string> names;
  Misfits
      misfits;  ///< what the source lacks, and what it has beside the weights, or in another shape or type
};

/// For the model of a plug-in, whose shapes are not known here, every tensor has its own name.
/// `may_be_unused`: patterns of names in the source that may be there and are no weights of the model.
MatchedWeights match_weights(const Weights& source, const nn::ModelOptions& options,
                             const std::vector<std::string>& may_be_unused = {});

/// MatchedWeights::names of what model.init_from opens. kCheckpoint that lists all misfits, among them
/// tensors that nothing uses and that match none of options.init_unused. Reads no values.
std::map<std::string, std::string> match_initial_weights(const Weights& source,
                                                         const nn::ModelOptions& options);

}  // namespace fsdp::checkpoint
