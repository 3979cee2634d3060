#pragma once

// manifest.json: the tensors of a sharded checkpoint and their places in its files (FORMAT.md). It is written
// last. A folder without a valid manifest is not a checkpoint.

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
inline constexpr int64_t kFormatVersion = 4;  ///< newest version that can be read; see FORMAT.md

/// Whether a run can be resumed from the checkpoint, or only its weights can be used.
enum class Contents { kState, kWeights };

constexpr auto enum_names(Contents) {
  return std::to_array<util::EnumName<Contents>>(
      {{Contents::kState, "state"}, {Contents::kWeights, "weights"}});
}

/// A checkpoint's file differs from what was written, so that reading it again fails again. Not thrown for
/// errors of the system (kIo), missing files, newer formats, or a run that the checkpoint does not fit.
class DamageError : public util::Error {
 public:
  DamageError(std::filesystem::path file, const std::string& message)
      : util::Error(ErrorKind::kCheckpoint, message), file_(std::move(file)) {}
  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
};

/// A file of the checkpoint.
struct FileEntry {
  std::string name;  ///< path below the step's folder
  int64_t bytes = 0;
  std::string xxh3_64;  ///< hash in the form of digest_file()
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FileEntry, name, bytes, xxh3_64)

struct TensorEntry {
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<RangeEntry> ranges{};  ///< ranges that cover the tensor without overlap
  int64_t rows = 1;                  ///< number of rows of the view in which all ranges are rectangles
  int64_t numel = 0;                 ///< set by complete_manifest()

  /// Number of elements in a file. Requires: complete_manifest() has been called.
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
  nlohmann::json training{};  ///< the trainer's state: sample position, seed, ...
  nlohmann::json model{};     ///< the model's config with Hugging Face's keys
};

/// The number of rows of a tensor's view is the product of the tensor's first k dimensions, possibly times a
/// divisor of the next dimension. Returns that product for the largest possible k. 0 if the view cannot have
/// `rows` rows.
int64_t dimensions_in(const std::vector<int64_t>& shape, int64_t rows);

/// Maximum bytes of a tensor's name in a file.
inline constexpr size_t kLongestTensorName = 1000;

/// Whether a name that was read from a file is one line that util::printable() would not change.
bool is_printable_name(std::string_view name);

/// Whether a tensor name can be a path of groups in HDF5: at most kLongestTensorName bytes, printable
/// (is_printable_name()), and no part between slashes is empty, "." or "..".
bool is_tensor_name(std::string_view name);

/// Joins repeated ranges and sets the fields that follow from them. Throws Error(kCheckpoint) that begins
/// with `where` and names tensor and file unless every element of every tensor is stored exactly once.
void complete_manifest(Manifest& manifest, const std::string& where);

/// Describes the content of one file as JSON. A shard stores this description of itself.
std::string describe_file(const Manifest& manifest, size_t file);

/// The text of manifest.json.
std::string manifest_text(const Manifest& manifest);

/// Parses a manifest and checks all that can be checked without the shard files. Throws Error(kCheckpoint).
Manifest parse_manifest(std::string_view text, const std::string& where);

/// Reads the manifest of a step's folder. Throws Error(kCheckpoint) if it is missing or newer than this
/// program, DamageError if it is damaged.
Manifest read_manifest(const std::filesystem::path& folder);

/// Throws Error(kCheckpoint) that names the remedy if the checkpoint holds weights only.
void require_state(const Manifest& manifest, const std::filesystem::path& folder);

/// The hash that protects a manifest. Covers its JSON without "seal", with sorted keys and without spaces.
std::string seal_of(nlohmann::json manifest);

}  // namespace fsdp::checkpoint
