#include "comm/api/forwarding_communicator.h"

namespace fsdp::comm {

const char* Collective::name() const {
  static constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce",
                                           "broadcast",  "shift",          "barrier"};
  return kNames[static_cast<size_t>(kind)];
}

std::unique_ptr<Work> Collective::issue(Communicator& communicator, const CallSite& site) const {
  switch (kind) {
    case Kind::kAllGather:
      return communicator.all_gather(output, input, site);
    case Kind::kReduceScatter:
      return finish ? communicator.reduce_scatter_and_finish(output, input, finish, site)
                    : communicator.reduce_scatter(output, input, site);
    case Kind::kAllReduce:
      return communicator.all_reduce(output, op, site);
    case Kind::kBroadcast:
      return communicator.broadcast(output, root, site);
    case Kind::kShift:
      return communicator.shift(output, input, site);
    case Kind::kBarrier:
      communicator.barrier(site);
  }
  return done_work();
}

std::unique_ptr<Work> UniformCommunicator::all_gather(const at::Tensor& output, const at::Tensor& input,
                                                      const CallSite& site) {
  return collective({.kind = Collective::Kind::kAllGather, .output = output, .input = input}, site);
}

std::unique_ptr<Work> UniformCommunicator::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                                          const CallSite& site) {
  return collective({.kind = Collective::Kind::kReduceScatter, .output = output, .input = input}, site);
}

std::unique_ptr<Work> UniformCommunicator::reduce_scatter_and_finish(const at::Tensor& output,
                                                                     const at::Tensor& input,
                                                                     FinishSums finish,
                                                                     const CallSite& site) {
  return collective({.kind = Collective::Kind::kReduceScatter,
                     .output = output,
                     .input = input,
                     .finish = std::move(finish)},
                    site);
}

std::unique_ptr<Work> UniformCommunicator::all_reduce(const at::Tensor& tensor, ReduceOp op,
                                                      const CallSite& site) {
  return collective({.kind = Collective::Kind::kAllReduce, .output = tensor, .input = tensor, .op = op},
                    site);
}

std::unique_ptr<Work> UniformCommunicator::broadcast(const at::Tensor& tensor, int root,
                                                     const CallSite& site) {
  return collective({.kind = Collective::Kind::kBroadcast, .output = tensor, .input = tensor, .root = root},
                    site);
}

std::unique_ptr<Work> UniformCommunicator::shift(const at::Tensor& output, const at::Tensor& input,
                                                 const CallSite& site) {
  return collective({.kind = Collective::Kind::kShift, .output = output, .input = input}, site);
}

void UniformCommunicator::barrier(const CallSite& site) {
  collective({.kind = Collective::Kind::kBarrier}, site)->wait();
}

}  // namespace fsdp::comm
