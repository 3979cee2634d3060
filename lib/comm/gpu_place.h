#pragma once

// Which GPU each rank computes on.

#include <string>
#include <vector>

namespace fsdp::comm {

struct GpuPlace {
  std::string host;    ///< what tells hosts apart, such as HostIdentity::boot_id
  std::string bus_id;  ///< the GPU's place there (util::CudaDevice); empty: the rank computes on the CPU

  /// One line, for exchange_texts().
  std::string text() const;
  static GpuPlace parse(const std::string& text);
};

/// "ranks 0 and 2 share a GPU (0000:1b:00.0)", of the first that do; empty where each rank has a GPU of its
/// own. NCCL refuses to connect ranks that share one.
std::string shared_gpu(const std::vector<GpuPlace>& places);

}  // namespace fsdp::comm
