#pragma once

// The keys under which state dicts of PyTorch hold a model and its optimizer.

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

/// Whose names the parameters have. torchtitan's llama has Meta's names, and in the rows of its queries and keys the
/// pairs that rotate together are neighbours; with Hugging Face's, which are ours, they are half a head apart.
enum class DcpNames { kHuggingFace, kTorchtitan };

struct DcpKeys {
  DcpNames names = DcpNames::kHuggingFace;
  std::string model;                     ///< what precedes the names of weights: "model." or nothing
  std::optional<std::string> optimizer;  ///< what precedes "state." and "param_groups.", if there are any
};

/// From the keys of a checkpoint. kCheckpoint that starts with `where` when they hold no model of `options`, several, or
/// optimizer state under numbers instead of names.
DcpKeys find_dcp_keys(const std::vector<std::string>& keys, const nn::ModelOptions& options,
                      const std::string& where);

/// The parts of "state.FQN.KIND" after `prefix`.
struct DcpStateKey {
  std::string parameter, kind;
};
std::optional<DcpStateKey> split_state_key(std::string_view key, std::string_view prefix);

/// Our name for one of torchtitan's llama, and the reverse; nothing for other names.
std::optional<std::string> from_torchtitan(std::string_view name);
std::optional<std::string> to_torchtitan(std::string_view name);

/// Heads of a llama's weight of queries or keys, whose rows have another order in torchtitan; 0 for other weights.
/// `name`: ours.
int64_t rotated_heads(const nn::ModelOptions& options, std::string_view name);

/// A tensor of another source under a name of its own.
struct RenamedTensor {
  std::string source_name;
  int64_t heads = 0;           ///< rotated_heads(), if the order of rows is to change
  bool as_neighbours = false;  ///< to torchtitan's order; else from it
};

/// Tensors of a source by new names. Rows of another order are read one by one.
class RenamedTensors final : public TensorSource {
 public:
  RenamedTensors(std::shared_ptr<const TensorSource> source, std::map<std::string, RenamedTensor> tensors);

  const std::filesystem::path& path() const override { return source_->path(); }
  std::vector<TensorInfo> infos() const override;
  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override;

 private:
  struct Entry {
    RenamedTensor tensor;
    TensorInfo info;
  };
  std::shared_ptr<const TensorSource> source_;
  std::map<std::string, Entry> tensors_;
};

}  // namespace fsdp::checkpoint
