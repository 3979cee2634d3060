#include "checkpoint/rank_tensors.h"

#include <algorithm>

#include "util/dtype.h"
#include "util/error.h"

namespace fsdp::checkpoint {
using nlohmann::json;

std::map<std::string, RankTensor> group_by_tensor(const std::vector<shard::TensorSlice>& slices) {
  std::map<std::string, RankTensor> tensors;
  for (const shard::TensorSlice& slice : slices) {
    FSDP_CHECK(is_tensor_name(slice.name), "\"", slice.name, "\"");
    FSDP_CHECK(slice.data.defined() && slice.data.device().is_cpu() && slice.data.is_contiguous(),
               slice.name);
    FSDP_CHECK(slice.data.dim() == 1 && slice.data.numel() == slice.numel(), slice.name);
    int64_t numel = checked_numel(slice.shape, slice.data.element_size());
    FSDP_CHECK(slice.range.rows > 0 && numel % slice.range.rows == 0, slice.name);
    FSDP_CHECK(slice.range.begin >= 0 && slice.range.begin <= slice.range.end &&
                   slice.range.end <= numel / slice.range.rows,
               slice.name);
    RankTensor& tensor = tensors[slice.name];
    if (!tensor.any) tensor.any = &slice;
    FSDP_CHECK(tensor.any->shape == slice.shape && tensor.any->range.rows == slice.range.rows &&
                   tensor.any->data.scalar_type() == slice.data.scalar_type(),
               slice.name);
    if (slice.range.begin < slice.range.end) tensor.slices.push_back(&slice);
  }
  for (auto& [name, tensor] : tensors) {
    std::sort(tensor.slices.begin(), tensor.slices.end(),
              [](const shard::TensorSlice* a, const shard::TensorSlice* b) {
                return a->range.begin < b->range.begin;
              });
  }
  return tensors;
}

json describe(const std::map<std::string, RankTensor>& tensors) {
  json described = json::object();
  for (const auto& [name, tensor] : tensors) {
    json ranges = json::array();
    for (const shard::TensorSlice* slice : tensor.slices)
      ranges.push_back({slice->range.begin, slice->range.end});
    described[name] = {{"shape", tensor.any->shape},
                       {"dtype", util::dtype_name(tensor.any->data.scalar_type())},
                       {"rows", tensor.any->range.rows},
                       {"ranges", std::move(ranges)}};
  }
  return described;
}

void add_described(Manifest& manifest, const json& described, size_t file, const std::string& who) {
  for (const auto& [name, value] : described.items()) {
    auto shape = value["shape"].get<std::vector<int64_t>>();
    auto dtype = util::dtype_from_name(value["dtype"].get<std::string>());
    auto rows = value["rows"].get<int64_t>();
    auto [at, is_new] =
        manifest.tensors.try_emplace(name, TensorEntry{.shape = shape, .dtype = dtype, .rows = rows});
    TensorEntry& entry = at->second;
    if (!is_new && (entry.shape != shape || entry.dtype != dtype || entry.rows != rows)) {
      util::fail(util::ErrorKind::kCheckpoint, "the ranks disagree about the tensor ", name, ": ", who,
                 " has ", util::dtype_name(dtype), " ", shape_text(shape), " in ", rows,
                 " rows, others have ", util::dtype_name(entry.dtype), " ", shape_text(entry.shape), " in ",
                 entry.rows);
    }
    for (const json& range : value["ranges"]) {
      entry.ranges.push_back(
          {.begin = range[0].get<int64_t>(), .end = range[1].get<int64_t>(), .file = file});
    }
  }
}

}  // namespace fsdp::checkpoint
