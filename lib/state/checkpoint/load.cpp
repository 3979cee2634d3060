#include "state/checkpoint/load.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/shape.h"
#include "base/util/text.h"
#include "state/weights/shard_set.h"

namespace fsdp::checkpoint {

namespace {

/// Throws one error with all misfits. Returns the names of missing tensors that may be missing.
std::set<std::string> refuse_misfits(const std::filesystem::path& folder, const Manifest& manifest,
                                     const std::vector<shard::TensorSlice>& destinations,
                                     const LoadOptions& options) {
  std::set<std::string> wanted, allowed;
  std::vector<std::string> missing, unexpected, misshapen;
  for (const shard::TensorSlice& slice : destinations) {
    if (!wanted.insert(slice.name).second) continue;
    auto found = manifest.tensors.find(slice.name);
    if (found == manifest.tensors.end()) {
      if (util::matches_any(slice.name, options.may_be_missing)) {
        allowed.insert(slice.name);
      } else {
        missing.push_back(slice.name);
      }
      continue;
    }
    const TensorEntry& entry = found->second;
    const bool fits = entry.dtype == slice.dtype() ||
                      (c10::isFloatingType(entry.dtype) && c10::isFloatingType(slice.dtype()) &&
                       util::matches_any(slice.name, options.may_be_converted));
    if (entry.shape != slice.shape || !fits) {
      misshapen.push_back(concat(slice.name, " (", util::dtype_name(entry.dtype), " ",
                                 util::shape_text(entry.shape), " in the checkpoint, ",
                                 util::dtype_name(slice.dtype()), " ", util::shape_text(slice.shape),
                                 " here)"));
    }
  }
  if (options.refuse_unexpected) {
    for (const auto& [name, entry] : manifest.tensors) {
      if (!wanted.contains(name)) unexpected.push_back(name);
    }
  }
  std::vector<std::string> problems;
  auto list = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) problems.push_back(what + util::name_list(names));
  };
  list("missing: ", missing);
  list("unexpected: ", unexpected);
  list("of different shape or type: ", misshapen);
  if (problems.empty()) return allowed;
  fail(ErrorKind::kCheckpoint, "the checkpoint ", folder.string(), " does not fit this model and optimizer; ",
       util::join(problems, "; "),
       "; check the [model] and [optimizer] keys against the run that saved it, or start a "
       "new run from its weights with checkpoint.init_from and another run.output_dir");
}

int64_t bytes_of(const ShardRead& read) {
  return read.blocks.count * read.blocks.blocks * static_cast<int64_t>(c10::elementSize(read.entry->dtype));
}

void read_converted(ShardSet& shards, const shard::TensorSlice& slice, c10::ScalarType stored) {
  const at::NoGradGuard no_grad;
  const at::Tensor read = at::empty(slice.data.sizes(), at::TensorOptions().dtype(stored));
  for (const ShardRead& part : shards.plan(slice.name, slice.range, read.data_ptr())) shards.read(part);
  if (slice.coded) return kernels::encode(read.to(at::kFloat), *slice.coded);
  slice.data.copy_(read);
}

}  // namespace

std::vector<std::string> load_slices(const std::filesystem::path& folder, const Manifest& manifest,
                                     const std::vector<shard::TensorSlice>& destinations,
                                     const LoadOptions& options) {
  for (const shard::TensorSlice& slice : destinations) {
    FSDP_CHECK(slice.data.defined() && slice.data.device().is_cpu() && slice.data.is_contiguous(),
               slice.name);
    FSDP_CHECK(slice.data.numel() == slice.numel(), slice.name);
  }
  const std::set<std::string> absent = refuse_misfits(folder, manifest, destinations, options);

  int64_t bytes = 0;
  for (const shard::TensorSlice& slice : destinations) bytes += static_cast<int64_t>(slice.data.nbytes());
  util::ByteCounter counter(options.progress, "reading the checkpoint", bytes);
  ShardSet shards(folder, manifest);
  std::vector<ShardRead> reads;
  for (const shard::TensorSlice& slice : destinations) {
    if (slice.numel() == 0 || absent.contains(slice.name)) continue;
    const c10::ScalarType stored = manifest.tensors.at(slice.name).dtype;
    if (stored != slice.data.scalar_type() || slice.coded) {
      read_converted(shards, slice, stored);
      counter.add(static_cast<int64_t>(slice.data.nbytes()));
      continue;
    }
    std::vector<ShardRead> more = shards.plan(slice.name, slice.range, slice.data.data_ptr());
    reads.insert(reads.end(), more.begin(), more.end());
  }
  // Reads file by file in ascending order, so that every file is hashed, opened and read once.
  std::sort(reads.begin(), reads.end(), [](const ShardRead& a, const ShardRead& b) {
    return std::tie(a.file, *a.name, a.blocks.offset) < std::tie(b.file, *b.name, b.blocks.offset);
  });
  for (const ShardRead& read : reads) {
    shards.read(read);
    counter.add(bytes_of(read));
  }
  return {absent.begin(), absent.end()};
}

}  // namespace fsdp::checkpoint
