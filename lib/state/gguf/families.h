#pragma once

// Which of our models is which architecture of llama.cpp: the names of weights, how llama.cpp stores them,
// and the metadata that describe the model. One row of families.cpp an architecture.

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/families.h"
#include "model/families/options.h"
#include "state/gguf/format.h"
#include "state/gguf/reader.h"

namespace fsdp::gguf {

/// How a weight is stored in GGUF.
enum class Stored {
  kSame,
  kTransposed,  ///< ours is [in, out]
  /// llama.cpp rotates neighbouring elements of each head, ours rotate the halves of it, so the rows of each
  /// head are interleaved.
  kQueryHeads,
  kKeyHeads,
  kQkvByHead,  ///< all queries, all keys, all values; ours has the three of each head together
  kPlusOne,    ///< the factor of a norm, in f32; ours is the factor less 1
  kStacked,    ///< [experts, out, in]: the matrices of all experts of a layer; ours has one of each expert
};

/// Names without ".weight" or ".bias"; * stands for the layer's number, and # for the expert's.
struct TensorRule {
  std::string ours, theirs;
  Stored stored = Stored::kSame;
};

/// A key, which follows the architecture's name and a dot, and the key of config.json with its value.
struct KeyRule {
  enum class Kind {
    kSize,
    kNumber,
    kFlag,
    kRotaryWidth,  ///< elements of a head; in config.json their share of it, without which all rotate in
                   ///< llama.cpp
  };
  const char* key;
  const char* config_key;
  Kind kind = Kind::kSize;
  bool optional = false;  ///< a file may lack it, and config.json may
};

/// A key of config.json that is true if the file has this tensor.
struct FlagRule {
  const char* config_key;
  const char* tensor;
};

/// The defaults are those of most architectures.
struct Family {
  const char* model_type;  ///< of config.json
  const char* architecture;
  std::vector<KeyRule> keys;
  const char* type_with_window = nullptr;  ///< the model type if there is a sliding window and it is another
  std::vector<FlagRule> flags = {};
  /// What the architecture computes whatever the file says: keys of config.json and their only values.
  nlohmann::json fixed = {{"hidden_act", "silu"}};
  bool rotates_neighbours = false;  ///< Stored::kQueryHeads and kKeyHeads; otherwise these are as ours
  bool scales_frequencies = false;  ///< rope_freqs.weight: Llama 3's rotary scaling
  bool heads_fill_width = false;    ///< the widths of all heads add up to hidden_size
  /// Every how manyth layer has no window unless attention.sliding_window_pattern says it; 0: it is not read.
  int64_t window_pattern = 0;
  /// The number of layers with which llama.cpp divides scores by the root of hidden_size / heads (Gemma 27B),
  /// and by that of a head's width otherwise.
  int64_t layers_with_other_scale = 0;
  std::vector<TensorRule> tensors = {};  ///< from the table of model/families/families.h
};

/// The row of model/families/families.h.
const nn::Family& ours_of(const Family& family);

/// kUsage that lists the model types for one that llama.cpp has no architecture for, and for options that its
/// architecture cannot compute. `where` is the description of the model.
const Family& family_of(const nlohmann::json& config, const nn::ModelOptions& options,
                        const std::string& where);

/// kCheckpoint for an architecture that is not supported.
const Family& family_of_architecture(const Reader& file);

struct NamedStorage {
  std::string name;
  Stored stored;
  int64_t expert = 0;  ///< its place in a tensor that is stacked
};

/// The tensor of GGUF for a weight, and the weight for a tensor, of a stacked one that of `expert`; nothing
/// for a name that the family does not have.
std::optional<NamedStorage> their_tensor(const Family& family, std::string_view ours);
std::optional<NamedStorage> our_tensor(const Family& family, std::string_view theirs, int64_t expert = 0);

/// A whole weight or bias from our layout to GGUF's, and back; of a stacked tensor, that of one expert.
at::Tensor to_theirs(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options);
at::Tensor to_ours(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options);

/// The metadata of the model's shape.
void describe_model(const Family& family, const nn::ModelOptions& options, Metadata& metadata);

/// config.json for a file's metadata. kCheckpoint that names the key for one that is missing, impossible, or
/// says that the model computes what ours do not.
nlohmann::json described_config(const Reader& file);

/// KeyRule::config_key of a window_pattern that is not the family's.
inline constexpr const char* kWindowPattern = "sliding_window_pattern";

/// The number whose root llama.cpp divides scores by.
int64_t score_scalar(const Family& family, int64_t layers, int64_t hidden_size, int64_t heads,
                     int64_t head_width);

}  // namespace fsdp::gguf
