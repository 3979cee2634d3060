#include "torch_backend/c10d_backend.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"
#include "comm/api/group_failure.h"
#include "comm/api/run_store.h"
#include "comm/shm/shm_group.h"

namespace fsdp::comm {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;

/// Address space for the segments of all ranks of a group: a process has room for a hundred groups.
constexpr int64_t kGroupAddresses = int64_t{1} << 40;
/// Bounds for one rank's segment.
constexpr int64_t kFewestAddresses = int64_t{1} << 30, kMostAddresses = int64_t{64} << 30;

/// The only group that these HostRanks serve.
constexpr const char* kGroupKey = "c10d";

std::string name_of_group(const c10d::DistributedBackendOptions& group) { return "group " + group.group_id; }

/// Ranks are numbered in the group. The default group, of all processes, gives no global ranks.
GroupIdentity identity_of(const c10d::DistributedBackendOptions& group) {
  GroupIdentity identity;
  for (int rank = 0; rank < group.group_size; ++rank) identity.ranks.push_back(rank);
  identity.rank = group.group_rank;
  identity.run_size = group.group_size;
  identity.timeout_source = "the time-out of the process group";
  std::vector<std::string> global;
  for (const int64_t rank : group.global_ranks_in_group) global.push_back(std::to_string(rank));
  if (!global.empty()) identity.name = group.group_id + " of processes " + util::join(global, ", ");
  return identity;
}

std::shared_ptr<HostRanks> meet_ranks(const c10d::DistributedBackendOptions& group, HostRanks::Options host) {
  LaunchEnvironment environment;
  environment.rank = group.group_rank;
  environment.world_size = environment.local_world_size = group.group_size;
  environment.master_addr = "the store of " + name_of_group(group);
  environment.master_port = 0;
  if (host.segment_bytes == 0) {
    host.segment_bytes = std::clamp(kGroupAddresses / group.group_size, kFewestAddresses, kMostAddresses);
  }
  // Entries of an earlier group with this name may be left in the store.
  const std::string made = concat(C10dBackend::kName, "/", group.group_rank);
  RunStore store = c10::make_intrusive<c10d::PrefixStore>(
      concat(C10dBackend::kName, "/", group.store->add(made, 1)), group.store);
  HostRanks::Meeting meeting = HostRanks::meet(environment, store, host);
  if (!meeting.ranks || !meeting.apart.empty()) {
    leave_store(store, environment);
    fail(ErrorKind::kUsage, "the backend ", C10dBackend::kName, " requires all ranks of ",
         name_of_group(group), " on one host, where they can share memory, but ",
         meeting.apart.empty() ? meeting.obstacle : meeting.apart, "; use gloo for this group");
  }
  return std::move(meeting.ranks);
}

void check_tensors(const char* name, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_cpu() && tensor.layout() == at::kStrided) continue;
    fail(ErrorKind::kUsage, name, " of ", C10dBackend::kName, " expects dense tensors in host memory, found ",
         tensor.toString());
  }
}

const at::Tensor& only(const char* name, const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1) {
    fail(ErrorKind::kUsage, name, " of ", C10dBackend::kName, " expects one tensor, found ", tensors.size());
  }
  check_tensors(name, tensors);
  return tensors.front();
}

const std::vector<at::Tensor>& only_list(const char* name,
                                         const std::vector<std::vector<at::Tensor>>& lists) {
  if (lists.size() != 1) {
    fail(ErrorKind::kUsage, name, " of ", C10dBackend::kName, " expects one list of tensors, found ",
         lists.size());
  }
  check_tensors(name, lists.front());
  return lists.front();
}

void check_pairs(const char* name, const std::vector<at::Tensor>& outputs,
                 const std::vector<at::Tensor>& inputs) {
  check_tensors(name, outputs);
  check_tensors(name, inputs);
  if (outputs.size() == inputs.size()) return;
  fail(ErrorKind::kUsage, name, " expects as many outputs as inputs, found ", outputs.size(), " and ",
       inputs.size());
}

/// The rows of `tensor` for each rank.
std::vector<at::Tensor> rows_by_rank(const at::Tensor& tensor, std::vector<int64_t> rows, int ranks) {
  c10d::checkSplitSizes(rows, tensor, ranks);
  if (rows.empty()) rows.assign(static_cast<size_t>(ranks), tensor.size(0) / ranks);
  return tensor.split_with_sizes(rows, 0);
}

}  // namespace

C10dBackend::C10dBackend(const c10d::DistributedBackendOptions& group, const HostRanks::Options& host)
    : c10d::Backend(group.group_rank, group.group_size),
      timeout_(std::chrono::duration_cast<milliseconds>(group.timeout)) {
  const GroupIdentity identity = identity_of(group);
  const std::shared_ptr<HostRanks> ranks = meet_ranks(group, host);
  const std::shared_ptr<ShmGroup> shm = ShmGroup::connect(ranks, identity, timeout_seconds(), kGroupKey);
  collectives_ = std::make_shared<TensorCollectives>(shm, name_of_group(group));
  mailboxes_ = std::make_shared<Mailboxes>(ranks, identity, collectives_->communicator());
  queue_ = std::make_shared<C10dQueue>(collectives_);
}

C10dBackend::~C10dBackend() {
  if (queue_) queue_->end();
}

void C10dBackend::shutdown() { queue_->end(); }

double C10dBackend::timeout_seconds() const { return std::chrono::duration<double>(timeout_.load()).count(); }

void C10dBackend::setTimeout(milliseconds timeout) { timeout_ = timeout; }

c10::intrusive_ptr<c10d::Backend::Options> C10dBackend::getBackendOptions() {
  return c10::make_intrusive<c10d::Backend::Options>(kName, timeout_.load());
}

uint64_t C10dBackend::getSequenceNumberForGroup() { return queue_->issued(); }

at::Tensor C10dBackend::allocateTensor(long size, at::TensorOptions options) {
  return collectives_->communicator().allocate(size, c10::typeMetaToScalarType(options.dtype()));
}

template <typename CallOptions>
C10dBackend::WorkPtr C10dBackend::run(OpType type, const char* title, const CallOptions& options,
                                      Tensors outputs, std::function<void(TensorCollectives&)> body) {
  const double given = std::chrono::duration<double>(options.timeout).count();
  auto work = c10::make_intrusive<CollectiveWork>(
      getRank(), C10dOperation{.type = type,
                               .title = title,
                               .async = options.asyncOp,
                               .timeout_seconds = given > 0 ? given : timeout_seconds(),
                               .outputs = std::move(outputs),
                               .body = std::move(body)});
  queue_->add(work);
  return work;
}

C10dBackend::WorkPtr C10dBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor tensor = only("broadcast", tensors);
  return run(OpType::BROADCAST, "fsdp_shm:broadcast", options, {tensor},
             [tensor, root = static_cast<int>(options.rootRank)](TensorCollectives& group) {
               group.broadcast(tensor, root);
             });
}

C10dBackend::WorkPtr C10dBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = only("all_reduce", tensors);
  return run(OpType::ALLREDUCE, "fsdp_shm:all_reduce", options, {tensor},
             [tensor, op = options.reduceOp.op_](TensorCollectives& group) { group.all_reduce(tensor, op); });
}

C10dBackend::WorkPtr C10dBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& options) {
  check_tensors("all_reduce_coalesced", tensors);
  return run(OpType::ALLREDUCE_COALESCED, "fsdp_shm:all_reduce", options, tensors,
             [tensors, op = options.reduceOp.op_](TensorCollectives& group) {
               for (const at::Tensor& tensor : tensors) group.all_reduce(tensor, op);
             });
}

C10dBackend::WorkPtr C10dBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor tensor = only("reduce", tensors);
  return run(OpType::REDUCE, "fsdp_shm:reduce", options, {tensor},
             [tensor, op = options.reduceOp.op_, root = static_cast<int>(options.rootRank)](
                 TensorCollectives& group) { group.reduce(tensor, op, root); });
}

C10dBackend::WorkPtr C10dBackend::allgather(Lists& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  const Tensors parts = only_list("all_gather", outputs);
  const at::Tensor input = only("all_gather", inputs);
  return run(OpType::ALLGATHER, "fsdp_shm:all_gather", options, parts,
             [parts, input](TensorCollectives& group) { group.all_gather(parts, input); });
}

C10dBackend::WorkPtr C10dBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& options) {
  check_tensors("all_gather", {output, input});
  return run(OpType::_ALLGATHER_BASE, "fsdp_shm:all_gather", options, {output},
             [output, input](TensorCollectives& group) { group.all_gather(output, input); });
}

C10dBackend::WorkPtr C10dBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  Lists by_input(inputs.size());
  for (const Tensors& of_rank : outputs) {
    check_pairs("all_gather_coalesced", of_rank, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) by_input[i].push_back(of_rank[i]);
  }
  Tensors all;
  for (const Tensors& parts : by_input) all.insert(all.end(), parts.begin(), parts.end());
  return run(OpType::ALLGATHER_COALESCED, "fsdp_shm:all_gather", options, all,
             [by_input, inputs](TensorCollectives& group) {
               for (size_t i = 0; i < inputs.size(); ++i) group.all_gather(by_input[i], inputs[i]);
             });
}

C10dBackend::WorkPtr C10dBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                  const c10d::AllgatherOptions& options) {
  check_pairs("all_gather_into_tensor_coalesced", outputs, inputs);
  return run(OpType::COALESCED, "fsdp_shm:all_gather", options, outputs,
             [outputs, inputs](TensorCollectives& group) {
               for (size_t i = 0; i < inputs.size(); ++i) group.all_gather(outputs[i], inputs[i]);
             });
}

C10dBackend::WorkPtr C10dBackend::gather(Lists& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  const at::Tensor input = only("gather", inputs);
  const Tensors parts = getRank() == root ? only_list("gather", outputs) : Tensors();
  return run(OpType::GATHER, "fsdp_shm:gather", options, parts,
             [parts, input, root](TensorCollectives& group) { group.gather(parts, input, root); });
}

C10dBackend::WorkPtr C10dBackend::scatter(Tensors& outputs, Lists& inputs,
                                          const c10d::ScatterOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  const at::Tensor output = only("scatter", outputs);
  const Tensors parts = getRank() == root ? only_list("scatter", inputs) : Tensors();
  return run(OpType::SCATTER, "fsdp_shm:scatter", options, {output},
             [output, parts, root](TensorCollectives& group) { group.scatter(output, parts, root); });
}

C10dBackend::WorkPtr C10dBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  const at::Tensor output = only("reduce_scatter", outputs);
  const Tensors parts = only_list("reduce_scatter", inputs);
  return run(OpType::REDUCE_SCATTER, "fsdp_shm:reduce_scatter", options, {output},
             [output, parts, op = options.reduceOp.op_](TensorCollectives& group) {
               group.reduce_scatter(output, parts, op);
             });
}

C10dBackend::WorkPtr C10dBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  check_tensors("reduce_scatter", {output, input});
  return run(OpType::_REDUCE_SCATTER_BASE, "fsdp_shm:reduce_scatter", options, {output},
             [output, input, op = options.reduceOp.op_](TensorCollectives& group) {
               group.reduce_scatter(output, input, op);
             });
}

C10dBackend::WorkPtr C10dBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                  const c10d::ReduceScatterOptions& options) {
  check_pairs("reduce_scatter_tensor_coalesced", outputs, inputs);
  return run(OpType::COALESCED, "fsdp_shm:reduce_scatter", options, outputs,
             [outputs, inputs, op = options.reduceOp.op_](TensorCollectives& group) {
               for (size_t i = 0; i < inputs.size(); ++i) group.reduce_scatter(outputs[i], inputs[i], op);
             });
}

C10dBackend::WorkPtr C10dBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& options) {
  check_tensors("all_to_all", {output, input});
  const Tensors to = rows_by_rank(output, output_splits, getSize());
  const Tensors from = rows_by_rank(input, input_splits, getSize());
  return run(OpType::ALLTOALL_BASE, "fsdp_shm:all_to_all", options, {output},
             [to, from](TensorCollectives& group) { group.all_to_all(to, from); });
}

C10dBackend::WorkPtr C10dBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& options) {
  check_pairs("all_to_all", outputs, inputs);
  return run(OpType::ALLTOALL, "fsdp_shm:all_to_all", options, outputs,
             [outputs, inputs](TensorCollectives& group) { group.all_to_all(outputs, inputs); });
}

C10dBackend::WorkPtr C10dBackend::barrier(const c10d::BarrierOptions& options) {
  return run(OpType::BARRIER, "fsdp_shm:barrier", options, {},
             [](TensorCollectives& group) { group.barrier(); });
}

C10dBackend::WorkPtr C10dBackend::send(Tensors& tensors, int to, int tag) {
  const at::Tensor& tensor = only("send", tensors);
  if (to < 0 || to >= getSize()) fail(ErrorKind::kUsage, "send: the group has no rank ", to);
  auto work = c10::make_intrusive<CollectiveWork>(
      getRank(), C10dOperation{.type = OpType::SEND, .title = "fsdp_shm:send"});
  mailboxes_->send(to, tag, tensor);
  work->complete(nullptr);
  return work;
}

C10dBackend::WorkPtr C10dBackend::recv(Tensors& tensors, int from, int tag) {
  const at::Tensor& tensor = only("recv", tensors);
  if (!tensor.is_contiguous()) {
    fail(ErrorKind::kUsage, "recv expects a contiguous tensor");
  }
  if (from >= getSize()) fail(ErrorKind::kUsage, "recv: the group has no rank ", from);
  auto receive = std::make_shared<Mailboxes::Receive>();
  receive->from = from;
  receive->tag = tag;
  receive->tensor = tensor;
  mailboxes_->post(receive);
  return c10::make_intrusive<ReceiveWork>(getRank(), mailboxes_, receive, timeout_seconds());
}

C10dBackend::WorkPtr C10dBackend::recvAnysource(Tensors& tensors, int tag) {
  return recv(tensors, Mailboxes::kAnyRank, tag);
}

}  // namespace fsdp::comm
