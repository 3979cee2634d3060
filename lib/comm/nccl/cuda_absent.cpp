// NCCL in a program that was built without CUDA.

#include "base/device/cuda.h"
#include "base/util/error.h"
#include "comm/nccl/nccl_communicator.h"

namespace fsdp::comm {

std::shared_ptr<Communicator> make_nccl_communicator(const NcclPlace&) {
  const util::CudaStatus& status = util::cuda_status();
  util::fail(ErrorKind::kUsage, "NCCL: expected a program with CUDA; found ", status.obstacle, "; ",
             status.remedy);
}

}  // namespace fsdp::comm
