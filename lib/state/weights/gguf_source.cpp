#include "state/weights/gguf_source.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "model/families/families.h"
#include "state/gguf/forms.h"
#include "state/gguf/rotary_scaling.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/weights/gguf_dequantise.h"
#include "state/weights/gguf_layout.h"

namespace fsdp::gguf {
namespace fs = std::filesystem;
using checkpoint::TensorInfo;
using nlohmann::json;

namespace {

/// The tensors of a file under our names and in our layout. A tensor in another layout is converted whole,
/// and kept until another is read.
class ConvertedTensors final : public checkpoint::TensorSource {
 public:
  ConvertedTensors(std::shared_ptr<const Reader> file, const GgufForm& form, const nn::ModelOptions& options)
      : file_(std::move(file)), options_(options) {
    const auto shapes = nn::weight_shapes(options);
    for (const auto& [name, tensor] : file_->tensors()) {
      if (is_divisor_tensor(name)) continue;
      auto ours = our_tensor(form, name);
      const bool is_stacked = ours && ours->stored == Stored::kStacked;
      if (is_stacked && shapes.contains(ours->name) && tensor.shape.size() == 3 &&
          tensor.shape[0] == options.num_experts) {
        for (int64_t i = 0; i < options.num_experts; ++i) {
          tensors_.emplace(our_tensor(form, name, i)->name,
                           ImportedTensor{&tensor, Stored::kStacked, {tensor.shape[1], tensor.shape[2]}, i});
        }
        continue;
      }
      // An unknown name stays, and is unexpected.
      if (!ours || is_stacked) ours = NamedStorage{name, Stored::kSame};
      std::vector<int64_t> shape = tensor.shape;
      if (ours->stored == Stored::kTransposed) std::reverse(shape.begin(), shape.end());
      tensors_.emplace(ours->name, ImportedTensor{&tensor, ours->stored, std::move(shape)});
    }
  }

  const fs::path& path() const override { return file_->path(); }

  std::vector<TensorInfo> infos() const override {
    std::vector<TensorInfo> infos;
    for (const auto& [name, entry] : tensors_) infos.push_back({name, entry.shape, dtype_of(entry)});
    return infos;
  }

  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override {
    const ImportedTensor& entry = tensors_.at(name);
    const int64_t count = end - begin;
    if (entry.stored == Stored::kSame || entry.stored == Stored::kStacked) {
      if (entry.expert > 0) begin += entry.expert * entry.shape[0] * entry.shape[1];
      return read_stored(*entry.tensor, begin, begin + count, out);
    }
    if (converted_name_ != name) {
      converted_name_.clear();
      at::Tensor whole = at::empty(entry.tensor->shape, at::TensorOptions().dtype(dtype_of(entry)));
      read_stored(*entry.tensor, 0, whole.numel(), whole.mutable_data_ptr());
      converted_ = to_ours(whole, entry.stored, options_).contiguous();
      converted_name_ = name;
    }
    const at::Tensor piece = converted_.view({-1}).narrow(0, begin, count);
    std::memcpy(out, piece.const_data_ptr(), piece.nbytes());
  }

 private:
  struct ImportedTensor {
    const Tensor* tensor;
    Stored stored;
    std::vector<int64_t> shape;  ///< ours
    int64_t expert = 0;
  };
  static c10::ScalarType dtype_of(const ImportedTensor& entry) { return value_dtype(entry.tensor->type); }

  /// Reads elements [begin, end) in the file's layout.
  void read_stored(const Tensor& tensor, int64_t begin, int64_t end, void* out) const {
    if (is_quantised(tensor.type)) {
      return read_dequantised(*file_, tensor, begin, end, static_cast<float*>(out));
    }
    const int64_t itemsize_bytes = traits_of(tensor.type).block_bytes;
    file_->read(tensor, begin * itemsize_bytes, (end - begin) * itemsize_bytes, out);
  }

  std::shared_ptr<const Reader> file_;
  nn::ModelOptions options_;
  std::map<std::string, ImportedTensor> tensors_;
  mutable std::string converted_name_;
  mutable at::Tensor converted_;
};

/// The scaling that the tensor says must be that of the config, if the file's metadata do not make the
/// config.
void compare_scaling(const Reader& file, const nn::ModelOptions& options, const std::string& config) {
  const auto tensors = divisor_tensors(options);
  for (const char* name : {kRopeFrequencies, kShortFactors, kLongFactors}) {
    const auto found = file.tensors().find(name);
    const auto own = std::ranges::find(tensors, name, &DivisorTensor::name);
    const bool is_needed = own != tensors.end();
    std::vector<float> expected(static_cast<size_t>(nn::rotary_width(options)) / 2, 1.0F);
    if (is_needed) expected = own->divisors;
    std::vector<float> stored(expected.size(), 1.0F);
    bool same = true;
    if (found != file.tensors().end()) {
      const Tensor& tensor = found->second;
      same = tensor.type == TensorType::kF32 && bytes_of(tensor) == static_cast<int64_t>(4 * stored.size());
      if (same) file.read(tensor, 0, bytes_of(tensor), stored.data());
    }
    same = same && std::equal(stored.begin(), stored.end(), expected.begin(),
                              [](float a, float b) { return std::fabs(a - b) <= 1e-4F * std::fabs(b); });
    if (same) continue;
    fail(ErrorKind::kCheckpoint, file.path().string(), ": ", name, " must be the rotary scaling of ", config,
         ", but is another; give the config.json of this model");
  }
}

}  // namespace

std::shared_ptr<const checkpoint::TensorSource> open_source(std::shared_ptr<const Reader> file,
                                                            const json& config, const std::string& where) {
  require_model(*file);
  const nn::ModelOptions options = checkpoint::options_from_hugging_face(config, where);
  const auto* architecture = file->find<std::string>("general.architecture");
  const GgufForm& form = form_of(config, where);
  if (architecture == nullptr || *architecture != form.architecture) {
    fail(ErrorKind::kCheckpoint, file->path().string(), " must have the architecture ", form.architecture,
         " for ", where, ", but has another; give the config.json of this model");
  }
  compare_scaling(*file, options, where);
  return std::make_shared<ConvertedTensors>(std::move(file), form, options);
}

std::shared_ptr<const checkpoint::TensorSource> open_source(const fs::path& path) {
  const auto file = std::make_shared<const Reader>(path);
  return open_source(file, described_config(*file), path.string());
}

}  // namespace fsdp::gguf
