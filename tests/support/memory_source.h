#pragma once

// Tensors in memory as checkpoints read them from disk.

#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "state/dcp/dcp_writer.h"
#include "state/weights/weights.h"
#include "support/checkpoint_fixtures.h"

namespace fsdp::testing {

class MemorySource final : public checkpoint::TensorSource {
 public:
  explicit MemorySource(NamedTensors tensors) : tensors_(std::move(tensors)) {}

  const std::filesystem::path& path() const override { return path_; }
  std::vector<checkpoint::TensorInfo> infos() const override {
    std::vector<checkpoint::TensorInfo> infos;
    for (const auto& [name, tensor] : tensors_) {
      infos.push_back({name, tensor.sizes().vec(), tensor.scalar_type()});
    }
    return infos;
  }
  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override {
    for (const auto& [known, tensor] : tensors_) {
      if (known != name) continue;
      const auto bytes = static_cast<int64_t>(tensor.itemsize());
      std::memcpy(out, static_cast<const char*>(tensor.data_ptr()) + begin * bytes,
                  static_cast<size_t>((end - begin) * bytes));
    }
  }

 private:
  NamedTensors tensors_;
  std::filesystem::path path_ = "memory";
};

/// A checkpoint of torch.distributed.checkpoint in `folder`, which must not exist.
inline void write_dcp(const std::filesystem::path& folder, const NamedTensors& tensors,
                      const std::vector<checkpoint::DcpValue>& values, int64_t files = 2) {
  const auto source = std::make_shared<MemorySource>(tensors);
  checkpoint::Weights weights;
  weights.add(source);
  std::vector<checkpoint::DcpTensor> written;
  for (const checkpoint::TensorInfo& info : source->infos()) written.push_back({.info = info});
  std::filesystem::create_directories(folder);
  checkpoint::write_dcp_files({.folder = folder, .files = files}, weights, written, values);
}

}  // namespace fsdp::testing
