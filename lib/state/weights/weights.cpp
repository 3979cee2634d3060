#include "state/weights/weights.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/shape.h"
#include "base/util/text.h"
#include "state/description/described_model.h"
#include "state/manifest/digest.h"
#include "state/manifest/folders.h"
#include "state/manifest/local_weights.h"
#include "state/weights/adapter.h"
#include "state/weights/extended_rows.h"
#include "state/weights/gguf_source.h"
#include "state/weights/safetensors.h"
#include "state/weights/shard_set.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

int64_t bytes_of(const TensorInfo& info) {
  const auto itemsize_bytes = static_cast<int64_t>(c10::elementSize(info.dtype));
  return util::checked_numel(info.shape, itemsize_bytes) * itemsize_bytes;
}

int64_t bytes_of(const std::vector<TensorInfo>& infos) {
  int64_t bytes = 0;
  for (const TensorInfo& info : infos) bytes += bytes_of(info);
  return bytes;
}

std::vector<std::string> Weights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : where_) names.push_back(name);
  return names;
}

void Weights::add(std::shared_ptr<const TensorSource> source, const std::string& prefix) {
  for (TensorInfo& info : source->infos()) {
    if (!info.name.starts_with(prefix)) continue;
    std::string name = info.name.substr(prefix.size());
    where_.insert_or_assign(std::move(name), TensorPlace{std::move(info), source});
  }
}

void Weights::extend(const std::string& name, int64_t rows) {
  TensorPlace place = place_of(name);
  place.source = with_mean_rows(place.source, place.info, rows);
  place.info.shape.front() = rows;
  where_.at(name) = std::move(place);
}

const Weights::TensorPlace& Weights::place_of(const std::string& name) const {
  auto found = where_.find(name);
  if (found != where_.end()) return found->second;
  std::string near = util::nearest(name, names());
  fail(ErrorKind::kCheckpoint, "the weights ", path_.string(), " have no tensor ", name,
       near.empty() ? "" : concat("; the nearest name in them is ", near));
}

const TensorInfo& Weights::info(const std::string& name) const { return place_of(name).info; }

int64_t Weights::numel(const std::string& name) const {
  const TensorInfo& found = info(name);
  return util::checked_numel(found.shape, static_cast<int64_t>(c10::elementSize(found.dtype)));
}

void Weights::require_convertible(const std::string& name, at::ScalarType dtype) const {
  const TensorPlace& place = place_of(name);
  if (c10::isFloatingType(place.info.dtype) == c10::isFloatingType(dtype)) return;
  fail(ErrorKind::kCheckpoint, "tensor ", name, " in ", place.source->path().string(), " must have the type ",
       util::dtype_name(dtype), ", but has ", util::dtype_name(place.info.dtype));
}

void Weights::read_into(const std::string& name, const at::Tensor& tensor) const {
  const std::vector<int64_t>& found = shape(name);
  if (!std::equal(found.begin(), found.end(), tensor.sizes().begin(), tensor.sizes().end())) {
    fail(ErrorKind::kCheckpoint, "tensor ", name, " in ", place_of(name).source->path().string(),
         " has the shape ", util::shape_text(found), ", but the model expects ",
         util::shape_text(tensor.sizes().vec()),
         "; check the [model] keys against the config that came with the weights");
  }
  FSDP_CHECK(tensor.is_contiguous(), name);
  read_range_into(name, 0, tensor.detach().view({-1}));
}

void Weights::read_range_into(const std::string& name, int64_t begin, const at::Tensor& tensor) const {
  FSDP_CHECK(tensor.device().is_cpu() && tensor.dim() == 1 && tensor.is_contiguous(), name);
  const TensorPlace& place = place_of(name);
  const int64_t end = begin + tensor.numel();
  FSDP_CHECK(begin >= 0 && end <= numel(name), name);
  if (place.info.dtype == tensor.scalar_type()) {
    place.source->read(place.info.name, begin, end, tensor.data_ptr());
    return;
  }
  require_convertible(name, tensor.scalar_type());
  int64_t at = 0;
  stream(name, begin, end, place.info.dtype, [&](const at::Tensor& slice) {
    convert_values(slice, tensor.detach().narrow(0, at, slice.numel()), name, saturates_);
    at += slice.numel();
  });
}

void Weights::read_part_into(const std::string& name, const util::Rectangle& part,
                             const at::Tensor& tensor) const {
  FSDP_CHECK(tensor.device().is_cpu() && tensor.dim() == 1 && tensor.is_contiguous(), name);
  const int64_t numel = this->numel(name);
  FSDP_CHECK(part.fits(numel) && tensor.numel() == part.numel(), name);
  if (part.numel() == 0) return;
  const TensorPlace& place = place_of(name);
  require_convertible(name, tensor.scalar_type());
  const int64_t height = part.height(), columns = part.length(), row_numel = numel / part.rows;
  const auto itemsize_bytes = static_cast<int64_t>(c10::elementSize(place.info.dtype));
  if (height == 1 || columns == row_numel) {
    return read_range_into(name, part.row_begin * row_numel + part.begin, tensor);
  }
  const at::Tensor rows = tensor.detach().view({height, columns});
  if (columns * itemsize_bytes >= kSmallestPieceBytes || row_numel * itemsize_bytes > kSliceBytes) {
    for (int64_t row = 0; row < height; ++row) {
      read_range_into(name, (part.row_begin + row) * row_numel + part.begin, rows[row]);
    }
    return;
  }
  const int64_t step = kSliceBytes / (row_numel * itemsize_bytes);
  for (int64_t row = 0; row < height; row += step) {
    const int64_t count = std::min(step, height - row), first = (part.row_begin + row) * row_numel;
    at::Tensor block = stored_.elements(count * row_numel, place.info.dtype);
    place.source->read(place.info.name, first, first + count * row_numel, block.data_ptr());
    convert_values(block.view({count, row_numel}).narrow(1, part.begin, columns), rows.narrow(0, row, count),
                   name, saturates_);
  }
}

void Weights::stream(const std::string& name, int64_t begin, int64_t end, at::ScalarType dtype,
                     const std::function<void(const at::Tensor&)>& sink) const {
  const TensorPlace& place = place_of(name);
  const int64_t step = kSliceBytes / static_cast<int64_t>(c10::elementSize(place.info.dtype));
  for (int64_t at = begin; at < end; at += step) {
    const int64_t count = std::min(step, end - at);
    at::Tensor slice = stored_.elements(count, place.info.dtype);
    place.source->read(place.info.name, at, at + count, slice.data_ptr());
    if (dtype == place.info.dtype) {
      sink(slice);
    } else {
      at::Tensor converted = converted_.elements(count, dtype);
      convert_values(slice, converted, name, saturates_);
      sink(converted);
    }
  }
}

namespace {

/// The largest finite number of a floating-point type.
double largest_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return 65504;
    case at::kBFloat16:
      return static_cast<double>(std::numeric_limits<c10::BFloat16>::max());
    case at::kFloat:
      return static_cast<double>(std::numeric_limits<float>::max());
    default:
      return std::numeric_limits<double>::max();
  }
}

}  // namespace

void convert_values(const at::Tensor& from, const at::Tensor& to, const std::string& name, bool saturates) {
  to.copy_(from);
  if (!to.is_floating_point() || !from.is_floating_point()) return;
  const double largest = largest_of(to.scalar_type());
  if (largest >= largest_of(from.scalar_type())) return;
  const at::Tensor infinite = at::isinf(to);
  if (!infinite.any().item<bool>()) return;
  const at::Tensor too_large = infinite.logical_and(at::isfinite(from));
  if (!too_large.any().item<bool>()) return;
  if (!saturates) {
    fail(ErrorKind::kCheckpoint, "the values of tensor ", name, " must fit into ",
         util::dtype_name(to.scalar_type()), ", whose largest is ", largest, ", but ",
         too_large.sum().item<int64_t>(),
         " are larger; choose another type, or make them the largest with `saturate`");
  }
  to.copy_(at::where(too_large, at::clamp(from, -largest, largest), from));
}

at::Tensor Weights::SliceScratch::elements(int64_t count, at::ScalarType dtype) {
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(dtype));
  if (!memory_.defined() || memory_.numel() < bytes) {
    memory_.reset();
    memory_ = at::empty({std::max(bytes, kSliceBytes)}, at::TensorOptions().dtype(at::kByte));
  }
  return memory_.narrow(0, 0, bytes).view(dtype);
}

void Weights::add_files_of_index(const fs::path& folder) {
  constexpr int64_t kLargestBytes = 100'000'000;
  const fs::path path = folder / kIndexFileName;
  const json index = read_json(path, kLargestBytes, "index");
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    fail(ErrorKind::kCheckpoint, path.string(), " has no object \"weight_map\"");
  }
  std::map<std::string, std::shared_ptr<const SafetensorsReader>> files;
  for (const auto& [tensor, value] : index["weight_map"].items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    // Names must be plain, so that an index cannot point out of its folder.
    if (file.empty() || file == "." || file == ".." ||
        file.find_first_of(std::string_view("/\0", 2)) != file.npos) {
      fail(ErrorKind::kCheckpoint, path.string(), ": tensor ", tensor,
           " is mapped to something that is not a file of the same folder");
    }
    auto& reader = files[file];
    if (!reader) reader = std::make_shared<SafetensorsReader>(folder / file);
    const SafetensorsReader::SafetensorsEntry& entry = reader->entry(tensor);  // throws if missing
    where_.insert_or_assign(tensor, TensorPlace{{tensor, entry.shape, entry.dtype}, reader});
  }
}

Weights open_weights(const fs::path& given) {
  Weights weights;
  weights.path_ = given;
  const fs::path path = local_weights(given);
  const WeightsFormat format = format_of(path);
  if (format == WeightsFormat::kCheckpoint) {
    const fs::path folder = checkpoint_folder(path);
    const auto shards = std::make_shared<ShardedSource>(folder);
    const std::string where = (folder / kManifestName).string();
    if (const auto adapter = described_adapter(shards->manifest().model, where)) {
      weights.add(merged_source(folder, *adapter));
      return weights;
    }
    weights.add(shards, kWeightsPrefix);
    if (weights.where_.empty()) {
      fail(ErrorKind::kCheckpoint, "the checkpoint ", path.string(),
           " contains no weights (no tensor whose name starts with \"", kWeightsPrefix, "\")");
    }
    return weights;
  }
  if (format == WeightsFormat::kGguf) {
    weights.add(gguf::open_source(path));
    return weights;
  }
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  // The single file is preferred to the index, as in transformers.
  if (is_folder && !fs::exists(path / kSingleFileName, error)) {
    weights.add_files_of_index(path);
  } else {
    weights.add(std::make_shared<SafetensorsReader>(is_folder ? path / kSingleFileName : path));
  }
  return weights;
}

Weights open_state(const fs::path& path) {
  Weights weights;
  weights.path_ = path;
  weights.add(std::make_shared<ShardedSource>(checkpoint_folder(path)));
  return weights;
}

void require_averages(const TensorSource& checkpoint) {
  const std::vector<TensorInfo> infos = checkpoint.infos();
  if (std::any_of(infos.begin(), infos.end(),
                  [](const TensorInfo& info) { return info.name.starts_with(kAveragePrefix); })) {
    return;
  }
  fail(ErrorKind::kCheckpoint, "the checkpoint ", checkpoint.path().string(),
       " contains no averages of weights (no tensor whose name starts with \"", kAveragePrefix,
       "\"); a run keeps them with optimizer.ema_decay");
}

std::optional<c10::ScalarType> common_dtype(const Weights& weights) {
  std::optional<c10::ScalarType> common;
  for (const std::string& name : weights.names()) {
    const c10::ScalarType dtype = weights.dtype(name);
    if (!c10::isFloatingType(dtype)) continue;
    if (common && *common != dtype) return std::nullopt;
    common = dtype;
  }
  return common;
}

}  // namespace fsdp::checkpoint
