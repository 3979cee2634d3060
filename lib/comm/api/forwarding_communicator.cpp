#include "comm/api/forwarding_communicator.h"

#include "comm/api/coding.h"

namespace fsdp::comm {

const char* Collective::name() const {
  static constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce",
                                           "broadcast",  "shift",          "barrier"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t Collective::link_bytes(int ranks) const {
  const auto exact = static_cast<int64_t>(payload().nbytes());
  if (!coding) return exact;
  if (kind == Kind::kAllReduce) return all_reduce_link_bytes(coding->type, payload().numel(), 0, ranks);
  return coding->bytes(payload().numel());
}

WorkPtr Collective::issue(Communicator& communicator, const CallSite& site) const {
  if (coding && kind == Kind::kAllGather) return communicator.coded_all_gather(output, input, coding, site);
  if (coding && kind == Kind::kReduceScatter) {
    return communicator.coded_reduce_scatter(output, input, coding, finish, site);
  }
  if (coding && kind == Kind::kAllReduce) return communicator.coded_all_reduce(output, coding, site);
  if (kind == Kind::kAllGather) return communicator.all_gather(output, input, site);
  if (kind == Kind::kReduceScatter && finish) {
    return communicator.reduce_scatter_and_finish(output, input, finish, site);
  }
  if (kind == Kind::kReduceScatter) return communicator.reduce_scatter(output, input, site);
  if (kind == Kind::kAllReduce) return communicator.all_reduce(output, op, site);
  if (kind == Kind::kBroadcast) return communicator.broadcast(output, root, site);
  if (kind == Kind::kShift) return communicator.shift(output, input, site);
  communicator.barrier(site);
  return done_work();
}

WorkPtr UniformCommunicator::all_gather(const at::Tensor& output, const at::Tensor& input,
                                        const CallSite& site) {
  return collective({.kind = Collective::Kind::kAllGather, .output = output, .input = input}, site);
}

WorkPtr UniformCommunicator::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                            const CallSite& site) {
  return collective({.kind = Collective::Kind::kReduceScatter, .output = output, .input = input}, site);
}

WorkPtr UniformCommunicator::reduce_scatter_and_finish(const at::Tensor& output, const at::Tensor& input,
                                                       FinishSums finish, const CallSite& site) {
  return collective({.kind = Collective::Kind::kReduceScatter,
                     .output = output,
                     .input = input,
                     .finish = std::move(finish)},
                    site);
}

WorkPtr UniformCommunicator::all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) {
  return collective({.kind = Collective::Kind::kAllReduce, .output = tensor, .input = tensor, .op = op},
                    site);
}

WorkPtr UniformCommunicator::broadcast(const at::Tensor& tensor, int root, const CallSite& site) {
  return collective({.kind = Collective::Kind::kBroadcast, .output = tensor, .input = tensor, .root = root},
                    site);
}

WorkPtr UniformCommunicator::shift(const at::Tensor& output, const at::Tensor& input, const CallSite& site) {
  return collective({.kind = Collective::Kind::kShift, .output = output, .input = input}, site);
}

void UniformCommunicator::barrier(const CallSite& site) {
  collective({.kind = Collective::Kind::kBarrier}, site)->wait();
}

WorkPtr UniformCommunicator::coded_all_gather(const at::Tensor& output, const at::Tensor& input,
                                              const CodingPtr& coding, const CallSite& site) {
  return collective(
      {.kind = Collective::Kind::kAllGather, .output = output, .input = input, .coding = coding}, site);
}

WorkPtr UniformCommunicator::coded_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                                  const CodingPtr& coding, const FinishSums& finish,
                                                  const CallSite& site) {
  return collective({.kind = Collective::Kind::kReduceScatter,
                     .output = output,
                     .input = input,
                     .finish = finish,
                     .coding = coding},
                    site);
}

WorkPtr UniformCommunicator::coded_all_reduce(const at::Tensor& tensor, const CodingPtr& coding,
                                              const CallSite& site) {
  return collective(
      {.kind = Collective::Kind::kAllReduce, .output = tensor, .input = tensor, .coding = coding}, site);
}

}  // namespace fsdp::comm
