#pragma once

// Which of our models is which architecture of llama.cpp: the names of weights, how llama.cpp stores them, and
// the metadata that describe the model. One row of kFamilies (families.cpp) an architecture.

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/format.h"
#include "gguf/reader.h"
#include "nn/options.h"

namespace fsdp::gguf {

/// How a weight is stored in GGUF.
enum class Stored {
  kSame,
  kTransposed,  ///< ours is [in, out]
  /// llama.cpp rotates neighbouring elements of each head, ours rotate the halves of it, so the rows of each
  /// head are interleaved.
  kQueryHeads,
  kKeyHeads,
};

/// Names without ".weight" or ".bias"; * stands for the layer's number.
struct TensorRule {
  const char* ours;
  const char* theirs;
  Stored stored = Stored::kSame;
};

/// A key, which follows the architecture's name and a dot, and the key of config.json with its value.
struct KeyRule {
  enum class Kind { kSize, kNumber };
  const char* key;
  const char* config_key;
  Kind kind = Kind::kSize;
  bool optional = false;
};

/// A key of config.json that is true if the file has this tensor.
struct FlagRule {
  const char* config_key;
  const char* tensor;
};

struct Family {
  /// "model_type" of config.json; an import gets the first, or the second for a file with a sliding window.
  std::vector<const char*> model_types;
  const char* architecture;
  std::span<const TensorRule> tensors;
  std::span<const KeyRule> keys;
  std::span<const FlagRule> flags;
  /// What the architecture computes whatever the file says: keys of config.json and their only values.
  nlohmann::json fixed;
  bool rotates_neighbours;  ///< Stored::kQueryHeads and kKeyHeads; otherwise these are as ours
  bool scales_frequencies;  ///< rope_freqs.weight: Llama 3's rotary scaling
  bool has_rotary;
  bool heads_fill_width;  ///< the widths of all heads add up to hidden_size
};

/// kUsage that lists the model types for one that llama.cpp has no architecture for, and for options that its
/// architecture cannot compute. `where` is the description of the model.
const Family& family_of(const nlohmann::json& config, const nn::ModelOptions& options,
                        const std::string& where);

/// kCheckpoint for an architecture that is not supported.
const Family& family_of_architecture(const std::string& architecture, const std::string& where);

struct NamedStorage {
  std::string name;
  Stored stored;
};

/// The tensor of GGUF for a weight, and the weight for a tensor; nothing for a name that the family does not
/// have.
std::optional<NamedStorage> their_tensor(const Family& family, std::string_view ours);
std::optional<NamedStorage> our_tensor(const Family& family, std::string_view theirs);

/// A whole weight or bias from our layout to GGUF's, and back.
at::Tensor to_theirs(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options);
at::Tensor to_ours(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options);

/// The metadata of the model's shape.
void describe_model(const Family& family, const nn::ModelOptions& options, Metadata& metadata);

/// config.json for a file's metadata. kCheckpoint that names the key for one that is missing, impossible, or
/// says that the model computes what ours do not.
nlohmann::json described_config(const Reader& file);

inline constexpr const char* kRopeFrequencies = "rope_freqs.weight";

/// By which each frequency is divided, in fp32: Llama 3's scaling.
std::vector<float> frequency_divisors(const nn::ModelOptions& options);

/// Sets the options of rotary scaling that have these divisors; false if there are none.
bool find_scaling(const std::vector<float>& divisors, double theta, nlohmann::json& scaling);

}  // namespace fsdp::gguf
