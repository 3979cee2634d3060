#pragma once

// manifest.json: what a sharded checkpoint holds and where (FORMAT.md). It is written last; a folder without
// a valid one is not a checkpoint.

#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/util/enum_names.h"
#include "base/util/error.h"
#include "state/manifest/ranges.h"

namespace fsdp::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kFullFileName = "full.h5";  ///< the one file of a full checkpoint
inline constexpr const char* kFormatName = "fsdp-checkpoint";
inline constexpr int64_t kFormatVersion = 4;  ///< the newest that can be read; see FORMAT.md

/// Whether a run can be resumed from the checkpoint, or only its weights can be used.
enum class Contents { kState, kWeights };

constexpr auto enum_names(Contents) {
  return std::to_array<util::EnumName<Contents>>(
      {{Contents::kState, "state"}, {Contents::kWeights, "weights"}});
}

/// The content of a checkpoint's file differs from what was written, so reading it again fails again. Not for
/// errors of the system (kIo), missing files, newer formats, or a run that the checkpoint does not fit.
class DamageError : public util::Error {
 public:
  DamageError(std::filesystem::path file, const std::string& message)
      : util::Error(util::ErrorKind::kCheckpoint, message), file_(std::move(file)) {}
  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
};

/// A file of the checkpoint.
struct FileEntry {
  std::string name;  ///< in the step's folder, or in one of the folders in it
  int64_t bytes = 0;
  std::string xxh3_64;  ///< as digest_file() writes it
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FileEntry, name, bytes, xxh3_64)

struct TensorEntry {
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<RangeEntry> ranges{};  ///< they cover the tensor without overlap
  int64_t rows = 1;                  ///< of the view in which all ranges are rectangles
  int64_t numel = 0;                 ///< set by complete_manifest()

  /// Elements in a file; of a complete entry.
  int64_t numel_in(size_t file) const;
};

/// The content of manifest.json.
struct Manifest {
  int64_t step = 0;  ///< optimizer steps done
  int64_t world_size = 0;
  std::string layout;  ///< "flat", "per_parameter" or "full"; loading does not depend on it
  Contents contents = Contents::kState;
  std::map<std::string, TensorEntry> tensors{};
  std::vector<FileEntry> files{};
  nlohmann::json training{};  ///< the trainer's own: sample position, seed, ...
  nlohmann::json model{};     ///< the model's config with Hugging Face's keys
};

/// Product of the dimensions; -1 when one is negative or `itemsize_bytes` times the product exceeds 62 bits.
int64_t checked_numel(const std::vector<int64_t>& shape, int64_t itemsize_bytes);

/// A view of a tensor may have as many rows as the product of its first k dimensions, or that times a divisor of the
/// next dimension. Returns the product, for the largest k that is possible; 0 if none is.
int64_t dimensions_in(const std::vector<int64_t>& shape, int64_t rows);

/// "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

/// Maximum bytes of a tensor's name in a file.
inline constexpr size_t kLongestTensorName = 1000;

/// Whether a name of a file from others is one line that util::printable() would not change.
bool is_printable_name(std::string_view name);

/// Whether a tensor name can be a path of groups in HDF5: parts between slashes that are not empty, "." or
/// "..", is_printable_name(), at most kLongestTensorName bytes.
bool is_tensor_name(std::string_view name);

/// Joins ranges that are repeated, sets the fields that follow from them, and throws kCheckpoint that names tensor and
/// file unless every element of every tensor is there exactly once. The message starts with `where`.
void complete_manifest(Manifest& manifest, const std::string& where);

/// What one of the files holds, as JSON: what the shard says of itself.
std::string describe_file(const Manifest& manifest, size_t file);

/// The text of manifest.json.
std::string manifest_text(const Manifest& manifest);

/// Parses and checks everything that can be checked without the shard files; throws kCheckpoint.
Manifest parse_manifest(std::string_view text, const std::string& where);

/// The manifest of a step's folder. kCheckpoint when there is none, or one that is newer than this program;
/// DamageError when it is damaged.
Manifest read_manifest(const std::filesystem::path& folder);

/// kCheckpoint that names the remedy when the checkpoint holds weights only.
void require_state(const Manifest& manifest, const std::filesystem::path& folder);

/// The hash that protects a manifest: of its JSON without "seal", keys sorted, without spaces.
std::string seal_of(nlohmann::json manifest);

}  // namespace fsdp::checkpoint
