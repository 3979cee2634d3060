#include "state/convert/average.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/file.h"
#include "base/util/shape.h"
#include "state/convert/sharded_writer.h"
#include "state/description/described_model.h"
#include "state/manifest/folders.h"
#include "state/manifest/manifest.h"
#include "state/manifest/staged_output.h"
#include "state/weights/safetensors.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr const char* kInputRemedy = "average checkpoints of one run, or of runs with the same model";

/// A source that computes a range when the range is read.
class AveragedSource final : public TensorSource {
 public:
  AveragedSource(MergeOptions options, std::vector<Weights> inputs, std::optional<Weights> base)
      : merge_(std::move(options), std::move(inputs), std::move(base)) {
    for (const Weights& input : inputs_) require_same_tensors(inputs_.front(), input);
    if (merge_.base()) require_same_tensors(inputs_.front(), *merge_.base());
  }

  const fs::path& path() const override { return inputs_.front().path(); }

  std::vector<TensorInfo> infos() const override {
    std::vector<TensorInfo> infos;
    for (const std::string& name : inputs_.front().names()) {
      const TensorInfo& info = inputs_.front().info(name);
      infos.push_back({name, info.shape, info.dtype});
    }
    return infos;
  }

  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override {
    const at::ScalarType dtype = inputs_.front().dtype(name);
    auto* bytes = static_cast<char*>(out);
    for (int64_t at = begin; at < end; at += Merge::kElementsAtOnce) {
      const int64_t count = std::min(Merge::kElementsAtOnce, end - at);
      const at::Tensor part = c10::isFloatingType(dtype) ? merge_.merged(name, at, count).to(dtype)
                                                         : common_value(name, at, count);
      std::memcpy(bytes, part.const_data_ptr(), part.nbytes());
      bytes += part.nbytes();
    }
  }

 private:
  static void require_same_tensors(const Weights& first, const Weights& other) {
    const auto refuse = [&](const std::string& name, const auto&... found) {
      fail(ErrorKind::kCheckpoint, other.path().string(), ": expected the tensors of ", first.path().string(),
           "; found ", name, found..., "; ", kInputRemedy);
    };
    for (const std::string& name : other.names()) {
      if (!first.contains(name)) refuse(name, ", which is not among them");
    }
    for (const std::string& name : first.names()) {
      if (!other.contains(name)) refuse("no ", name);
      if (first.shape(name) != other.shape(name)) {
        refuse(name, " of the shape ", util::shape_text(other.shape(name)), " instead of ",
               util::shape_text(first.shape(name)));
      }
      if (first.dtype(name) != other.dtype(name)) {
        refuse(name, " of the type ", util::dtype_name(other.dtype(name)), " instead of ",
               util::dtype_name(first.dtype(name)));
      }
    }
  }

  /// Requires equal integers, because they are counts, masks or indices, which have no meaningful mean.
  at::Tensor common_value(const std::string& name, int64_t begin, int64_t count) const {
    const auto options = at::TensorOptions().dtype(inputs_.front().dtype(name));
    at::Tensor value = at::empty({count}, options), each = at::empty({count}, options);
    inputs_.front().read_range_into(name, begin, value);
    for (const Weights& input : inputs_) {
      input.read_range_into(name, begin, each);
      if (std::memcmp(value.const_data_ptr(), each.const_data_ptr(), value.nbytes()) == 0) continue;
      fail(ErrorKind::kCheckpoint, input.path().string(), ": expected the values of ", path().string(),
           " in ", name, ", because only floating-point tensors have a mean and its type is ",
           util::dtype_name(value.scalar_type()), "; found others; ", kInputRemedy);
    }
    return value;
  }

  mutable Merge merge_;
  const std::vector<Weights>& inputs_ = merge_.models();
};

void write_file(const Weights& source, std::vector<TensorInfo> infos, const AverageRequest& request,
                int64_t bytes) {
  util::ByteCounter counter(request.progress, "averaging", bytes);
  SafetensorsWriter writer(request.output, std::move(infos));
  for (const TensorInfo& info : writer.infos()) writer.append(info, source, info.name, counter);
  writer.finish();
}

/// Sets all of the new checkpoint except its tensors, from the first input.
void describe(const fs::path& first, ShardedWrite& request) {
  if (format_of(first) == WeightsFormat::kCheckpoint) {
    const fs::path folder = checkpoint_folder(first);
    const Manifest manifest = read_manifest(folder);
    request.step = manifest.step;
    request.model = manifest.model;
    request.model_files = model_files_in(kept_model_files(folder));
    return;
  }
  const fs::path config = config_beside(first);
  if (util::is_there(config)) request.model = read_config_json(config);
  request.model_files = model_files_in(config.parent_path());
}

}  // namespace

AverageResult average(const AverageRequest& request) {
  check_merge(request.merge, request.inputs.size(), request.base.has_value());
  std::error_code error;
  const bool is_file =
      util::extension_of(request.output) == ".safetensors" && !fs::is_directory(request.output, error);
  if (is_file || !is_empty_folder(request.output)) {
    refuse_existing(request.output, "choose another output or remove it");
  }
  std::vector<Weights> inputs;
  for (const fs::path& input : request.inputs) inputs.push_back(open_weights(input));
  std::optional<Weights> base;
  if (request.base) base = open_weights(*request.base);
  const auto averaged = std::make_shared<AveragedSource>(request.merge, std::move(inputs), std::move(base));
  Weights source;
  source.add(averaged);
  const std::vector<TensorInfo> infos = averaged->infos();
  const AverageResult result{
      .output = request.output, .tensors = std::ssize(infos), .bytes = bytes_of(infos)};
  util::make_writable_folder(request.output.has_parent_path() ? request.output.parent_path() : ".");
  if (is_file) {
    write_file(source, infos, request, result.bytes);
    return result;
  }
  ShardedWrite written{.folder = request.output,
                       .contents = Contents::kWeights,
                       .training = nullptr,
                       .model = nullptr,
                       .progress = request.progress};
  describe(request.inputs.front(), written);
  std::vector<ShardedTensor> tensors;
  for (const TensorInfo& info : infos) {
    tensors.push_back({info.name, {kWeightsPrefix + info.name, info.shape, info.dtype}});
  }
  write_sharded(written, source, tensors);
  return result;
}

std::vector<fs::path> last_checkpoints(const fs::path& run, int64_t count) {
  const std::vector<CompleteCheckpoint> found = find_checkpoints(run).complete;
  if (static_cast<int64_t>(found.size()) < count) {
    fail(ErrorKind::kCheckpoint, run.string(), ": expected at least ", count, " complete checkpoints; found ",
         found.size(), "; average fewer, or keep more with checkpoint.keep_last");
  }
  std::vector<fs::path> last;
  for (auto each = found.end() - count; each != found.end(); ++each) last.push_back(each->folder);
  return last;
}

}  // namespace fsdp::checkpoint
