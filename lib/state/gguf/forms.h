#pragma once

// Models as llama.cpp's architectures: the names of weights, how llama.cpp stores them, and the metadata that
// describe the model. model/families/built_in has what differs between the architectures.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/gguf/format.h"
#include "base/gguf/reader.h"
#include "model/families/families.h"
#include "model/families/options.h"

namespace fsdp::gguf {

/// Form of a weight in GGUF files.
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

/// A model type and its architecture in GGUF files.
struct GgufForm : nn::GgufArchitecture {
  const nn::ModelType* type;
  const nn::Family* family;
  std::vector<TensorRule> tensors;
};

/// Returns the form of the model that `config`, at `where`, describes. Throws Error(kUsage), with a list of
/// the supported ones, for other model types.
const GgufForm& form_of(const nlohmann::json& config, const std::string& where);

/// Also throws Error(kUsage) for options that llama.cpp's architecture cannot compute.
const GgufForm& form_of(const nlohmann::json& config, const nn::ModelOptions& options,
                        const std::string& where);

/// Throws Error(kCheckpoint) for a file that is an adapter or the like, or one of several files.
void require_model(const Reader& file);

/// Returns the form that the file names. Throws Error(kCheckpoint) if it is not supported.
const GgufForm& form_of(const Reader& file);

struct NamedStorage {
  std::string name;
  Stored stored;
  int64_t expert = 0;  ///< index in a tensor of stacked experts
};

/// The tensor of GGUF that holds a weight, and the weight that a tensor holds (a stacked tensor: that of
/// `expert`). Returns nothing for a name that the architecture does not have.
std::optional<NamedStorage> their_tensor(const GgufForm& form, std::string_view ours);
std::optional<NamedStorage> our_tensor(const GgufForm& form, std::string_view theirs, int64_t expert = 0);

/// Adds the metadata of the model's shape.
void describe_model(const GgufForm& form, const nn::ModelOptions& options, Metadata& metadata);

/// Returns config.json for a file's metadata. Throws Error(kCheckpoint) for a key that is missing or
/// impossible, or that describes something that this library's models do not compute.
nlohmann::json described_config(const Reader& file);

/// Key of config.json that holds the option of a GgufKey.
std::string config_key_of(const GgufForm& form, const nn::GgufKey& key);

/// Option of which GGUF files hold the number of elements of a head, not their share.
inline constexpr std::string_view kRotaryShare = "partial_rotary_factor";
/// Name of the key for a pattern of windows that is not the architecture's.
inline constexpr const char* kWindowPattern = "sliding_window_pattern";

/// Number by whose square root llama.cpp divides scores.
int64_t score_scalar(const nn::GgufArchitecture& form, int64_t layers, int64_t hidden_size, int64_t heads,
                     int64_t head_width);

}  // namespace fsdp::gguf
