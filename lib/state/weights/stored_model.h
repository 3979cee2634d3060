#pragma once

// A stored model in any format: its description, its weights, and the stored name of each weight. Accepts
// weights as they are found in practice: names without the prefix of the language model ("h.0.ln_1.weight"),
// a stored copy of a tied head, and the buffers of transformers (causal masks, rotary frequencies), which are
// ignored.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/families/options.h"
#include "state/description/described_model.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

/// Differences between stored weights and a model's. One entry per tensor.
struct WeightMisfits {
  std::vector<std::string> missing, unexpected, misshapen;
  std::vector<std::string> untied;  ///< heads of a tied model that differ from its embedding

  /// Throws Error(kCheckpoint) that lists all differences if there are any: "the weights `who` do not match
  /// `config`".
  void refuse_any(const std::string& who, const std::string& config) const;
};

void compare_shape(const std::string& name, const std::vector<int64_t>& found,
                   const std::vector<int64_t>& expected, WeightMisfits& misfits);

struct MatchedWeights {
  /// Model's name -> stored name, for each weight of nn::weight_shapes() that is stored.
  std::map<std::string, std::string> names;
  WeightMisfits
      misfits;  ///< missing weights, weights of another shape or type, and tensors that are not weights
};

/// Matches stored tensors to the model's weights. For a plug-in's model, whose shapes are not known here,
/// every tensor keeps its name. `may_be_unused`: patterns of stored names that need not be weights of the
/// model. Reads values only if a tied model has both an embedding and a head.
MatchedWeights match_weights(const Weights& source, const nn::ModelOptions& options,
                             const std::vector<std::string>& may_be_unused = {});

/// Extends the embedding and the head of a model that is to have more tokens than are stored: each new row
/// is the mean of the stored ones (state/weights/extended_rows.h). Returns a sentence for each tensor: "rows
/// 10 to 11 of NAME are the mean of the 10 stored rows". Leaves tensors that are not those of the model that
/// the weights describe, and models of plug-ins, whose embeddings are not known here.
std::vector<std::string> extend_vocabulary(Weights& weights, const nn::ModelOptions& options);

/// MatchedWeights::names for the weights that model.init_from opens. Throws Error(kCheckpoint) that lists all
/// misfits, including unused tensors that match no pattern of options.init_unused.
std::map<std::string, std::string> match_initial_weights(const Weights& source,
                                                         const nn::ModelOptions& options);

/// Throws Error(kCheckpoint) that lists the misfits of the weights that model.init_from opens, and the keys
/// that allow some of them.
void refuse_initial(const WeightMisfits& misfits, const Weights& source);

struct StoredModel : DescribedModel {
  Weights weights;  ///< opened, but not read
  /// Model's parameter -> its name in `weights`. For a plug-in's model: every tensor.
  std::map<std::string, std::string> names;
};

/// Opens a checkpoint's step folder, a run's output folder (the newest complete checkpoint), a safetensors
/// file with config.json beside it, or a folder in Hugging Face's layout. `ema`: a checkpoint's averages of
/// weights instead of the weights, if there are any. Throws Error(kCheckpoint) if the path holds nothing of
/// the kind, if the model is not described, or if the weights do not fit the description.
StoredModel open_model(const std::filesystem::path& path, bool ema = false);

}  // namespace fsdp::checkpoint
