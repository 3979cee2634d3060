#include "checkpoint/weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "checkpoint/manifest.h"
#include "util/dtype.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr int64_t kLargestIndexBytes = 100'000'000;
constexpr int64_t kSliceBytes = int64_t{16} << 20;

/// "weight_map" of an index file: tensor -> file.
std::map<std::string, std::string> read_index(const fs::path& path) {
  RawFile file = RawFile::open(path);
  if (file.size_bytes() > kLargestIndexBytes) {
    fail(ErrorKind::kCheckpoint, path.string(), " has ", file.size_bytes(), " bytes, more than any index");
  }
  std::string text(static_cast<size_t>(file.size_bytes()), '\0');
  file.read_at(0, text.data(), static_cast<int64_t>(text.size()));
  json index = parse_json(text, 16, path.string());
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    fail(ErrorKind::kCheckpoint, path.string(), " has no object \"weight_map\"");
  }
  std::map<std::string, std::string> map;
  for (const auto& [tensor, value] : index["weight_map"].items()) {
    std::string name = value.is_string() ? value.get<std::string>() : "";
    // A plain name, so that an index cannot point out of its folder.
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == ".." ||
        name.find('\0') != std::string::npos) {
      fail(ErrorKind::kCheckpoint, path.string(), ": tensor ", tensor,
           " is said to lie in something that is not a file of the same folder");
    }
    map[tensor] = name;
  }
  return map;
}

}  // namespace

std::vector<std::string> Weights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : where_) names.push_back(name);
  return names;
}

void Weights::add(std::shared_ptr<const SafetensorsReader> file) {
  for (const auto& [name, entry] : file->tensors()) where_[name] = file;
}

const SafetensorsReader& Weights::file_of(const std::string& name) const {
  auto found = where_.find(name);
  if (found != where_.end()) return *found->second;
  std::string near = util::nearest(name, names());
  fail(ErrorKind::kCheckpoint, "the weights ", path_.string(), " have no tensor ", name,
       near.empty() ? "" : concat("; the nearest name in them is ", near));
}

const std::vector<int64_t>& Weights::shape(const std::string& name) const {
  return file_of(name).entry(name).shape;
}

at::ScalarType Weights::dtype(const std::string& name) const { return file_of(name).entry(name).dtype; }

void Weights::read_into(const std::string& name, const at::Tensor& tensor) const {
  const std::vector<int64_t>& found = shape(name);
  if (!std::equal(found.begin(), found.end(), tensor.sizes().begin(), tensor.sizes().end())) {
    fail(ErrorKind::kCheckpoint, "tensor ", name, " in ", file_of(name).path().string(), " has the shape ",
         shape_text(found), " and the model expects ", shape_text(tensor.sizes().vec()),
         "; check the [model] keys against the config that came with the weights");
  }
  FSDP_CHECK(tensor.is_contiguous(), name);
  read_range_into(name, 0, tensor.detach().view({-1}));
}

void Weights::read_range_into(const std::string& name, int64_t begin, const at::Tensor& tensor) const {
  FSDP_CHECK(tensor.device().is_cpu() && tensor.dim() == 1 && tensor.is_contiguous(), name);
  const SafetensorsReader& file = file_of(name);
  const SafetensorsReader::Entry& entry = file.entry(name);
  const int64_t end = begin + tensor.numel();
  FSDP_CHECK(begin >= 0 && end <= entry.numel, name);
  if (entry.dtype == tensor.scalar_type()) {
    file.read(name, begin, end, tensor.data_ptr());
    return;
  }
  if (c10::isFloatingType(entry.dtype) != c10::isFloatingType(tensor.scalar_type())) {
    fail(ErrorKind::kCheckpoint, "tensor ", name, " in ", file.path().string(), " has the type ",
         util::dtype_name(entry.dtype), " where ", util::dtype_name(tensor.scalar_type()), " is expected");
  }
  const int64_t step = kSliceBytes / static_cast<int64_t>(c10::elementSize(entry.dtype));
  at::Tensor slice = at::empty({std::min(step, tensor.numel())}, at::TensorOptions().dtype(entry.dtype));
  for (int64_t at = begin; at < end; at += step) {
    int64_t count = std::min(step, end - at);
    file.read(name, at, at + count, slice.data_ptr());
    tensor.detach().narrow(0, at - begin, count).copy_(slice.narrow(0, 0, count));
  }
}

Weights open_weights(const fs::path& path) {
  Weights weights;
  weights.path_ = path;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    weights.add(std::make_shared<SafetensorsReader>(path));
    return weights;
  }
  if (fs::exists(path / kSingleName, error)) {
    weights.add(std::make_shared<SafetensorsReader>(path / kSingleName));
    return weights;
  }
  if (!fs::exists(path / kIndexName, error)) {
    fail(ErrorKind::kCheckpoint, "the folder ", path.string(), " has neither ", kSingleName, " nor ",
         kIndexName,
         "; name a safetensors file or a folder as Hugging Face lays it out (fsdp-ckpt consolidate makes one "
         "from a sharded checkpoint)");
  }
  std::map<std::string, std::shared_ptr<const SafetensorsReader>> files;
  for (const auto& [tensor, file] : read_index(path / kIndexName)) {
    auto& reader = files[file];
    if (!reader) reader = std::make_shared<SafetensorsReader>(path / file);
    reader->entry(tensor);  // throws unless it is there
    weights.where_[tensor] = reader;
  }
  return weights;
}

}  // namespace fsdp::checkpoint
