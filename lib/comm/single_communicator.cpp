#include "comm/single_communicator.h"

#include <ATen/ops/empty.h>

#include "util/error.h"

namespace fsdp::comm {
namespace {

std::unique_ptr<Work> copy_into(const at::Tensor& output, const at::Tensor& input) {
  FSDP_CHECK(output.numel() == input.numel(), output.numel(), " elements out, ", input.numel(), " in");
  if (output.data_ptr() != input.data_ptr()) output.copy_(input);
  return done_work();
}

}  // namespace

std::unique_ptr<Work> SingleCommunicator::all_gather(const at::Tensor& output, const at::Tensor& input,
                                                     const CallSite&) {
  return copy_into(output, input);
}

std::unique_ptr<Work> SingleCommunicator::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                                         const CallSite&) {
  return copy_into(output, input);
}

std::unique_ptr<Work> SingleCommunicator::all_reduce(const at::Tensor&, ReduceOp, const CallSite&) {
  return done_work();
}

std::unique_ptr<Work> SingleCommunicator::broadcast(const at::Tensor&, int root, const CallSite&) {
  FSDP_CHECK(root == 0);
  return done_work();
}

void SingleCommunicator::barrier(const CallSite&) {}

at::Tensor SingleCommunicator::allocate(int64_t numel, at::ScalarType dtype) {
  return at::empty({numel}, at::TensorOptions().dtype(dtype));
}

std::shared_ptr<Communicator> SingleCommunicator::subgroup(const std::string& name,
                                                           const std::vector<int>& ranks) {
  return existing_subgroup(name, ranks);
}

}  // namespace fsdp::comm
