#pragma once

// The keys of a model and its optimizer in PyTorch's state dicts.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/options.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

/// Naming scheme of the parameters. torchtitan's llama uses Meta's names, and pairs of rows of queries and
/// keys that rotate together are neighbours. Hugging Face's names, which are also this library's, come with
/// pairs half a head apart.
enum class DcpNames { kHuggingFace, kTorchtitan };

struct DcpKeys {
  DcpNames names = DcpNames::kHuggingFace;
  std::string model;                     ///< prefix of the names of weights: "model." or nothing
  std::optional<std::string> optimizer;  ///< prefix of "state." and "param_groups.", if there are any
};

/// Finds the prefixes in the keys of a checkpoint. Throws Error(kCheckpoint) that begins with `where` if the
/// keys hold no model of `options`, several models, or optimizer state under numbers instead of names.
DcpKeys find_dcp_keys(const std::vector<std::string>& keys, const nn::ModelOptions& options,
                      const std::string& where);

/// The parts of "state.FQN.KIND" after `prefix`.
struct DcpStateKey {
  std::string parameter, kind;
};
std::optional<DcpStateKey> split_state_key(std::string_view key, std::string_view prefix);

/// Convert a name of torchtitan's llama to this library's name, and back. Nothing for other names.
std::optional<std::string> from_torchtitan(std::string_view name);
std::optional<std::string> to_torchtitan(std::string_view name);

/// Number of heads of a llama's weight of queries or keys, whose rows have another order in torchtitan. 0 for
/// other weights. `name`: this library's name.
int64_t rotated_heads(const nn::ModelOptions& options, std::string_view name);

/// A tensor of another source under a new name.
struct RenamedTensor {
  std::string source_name;
  int64_t heads = 0;           ///< rotated_heads(), if the order of rows changes
  bool as_neighbours = false;  ///< true: to torchtitan's order; false: from it
};

/// Tensors of a source under new names. Reads rows one by one if their order changes.
class RenamedTensors final : public TensorSource {
 public:
  RenamedTensors(std::shared_ptr<const TensorSource> source, std::map<std::string, RenamedTensor> tensors);

  const std::filesystem::path& path() const override { return source_->path(); }
  std::vector<TensorInfo> infos() const override;
  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override;

 private:
  struct RenamedEntry {
    RenamedTensor tensor;
    TensorInfo info;
  };
  std::shared_ptr<const TensorSource> source_;
  std::map<std::string, RenamedEntry> tensors_;
};

}  // namespace fsdp::checkpoint
