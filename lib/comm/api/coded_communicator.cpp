#include "comm/api/coded_communicator.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "base/util/error.h"
#include "base/util/hash.h"

namespace fsdp::comm {

CodedCommunicator::CodedCommunicator(std::shared_ptr<Communicator> inner, const LinkCoding& coding,
                                     int rank_of_run)
    : ForwardingCommunicator(std::move(inner)), coding_(coding), rank_of_run_(rank_of_run) {
  FSDP_CHECK(coding.type != LinkType::kExact);
}

int64_t CodedCommunicator::link_bytes_of_part(const at::Tensor& part) const {
  return link_bytes(is_coded(part) ? coding_.type : LinkType::kExact, part.numel(), part.element_size());
}

int64_t CodedCommunicator::link_bytes_of_all_reduce(const at::Tensor& tensor) const {
  return all_reduce_link_bytes(is_coded(tensor) ? coding_.type : LinkType::kExact, tensor.numel(),
                               tensor.element_size(), world_size());
}

std::shared_ptr<Communicator> CodedCommunicator::new_group(const std::string& name,
                                                           const std::vector<int>& ranks) {
  return std::make_shared<CodedCommunicator>(inner().new_group(name, ranks), coding_, rank_of_run_);
}

WorkPtr CodedCommunicator::collective(const Collective& call, const CallSite& site) {
  using Kind = Collective::Kind;
  const bool gathers = call.kind == Kind::kAllGather, scatters = call.kind == Kind::kReduceScatter;
  const bool sums = call.kind == Kind::kAllReduce && call.op == ReduceOp::kSum;
  if (!(gathers || scatters || sums) || !is_coded(call.payload())) return call.issue(inner(), site);
  auto coding = std::make_shared<Coding>();
  coding->type = coding_.type;
  if (!gathers && coding_.stochastic) {
    // Other units have other random numbers, even if their gradients are equal.
    const uint64_t of_unit = util::hash_of(coding_.seed, site.unit);
    coding->seed = static_cast<uint32_t>(util::mix64(of_unit + static_cast<uint64_t>(rank_of_run_)));
  }
  if (scatters) coding->errors = errors_of_part(site.unit, call.output.numel());
  if (sums) coding->errors = errors_of_all_reduce(site.unit, call.output.numel());
  Collective coded = call;
  coded.coding = std::move(coding);
  return coded.issue(inner(), site);
}

std::shared_ptr<CodingErrors> CodedCommunicator::errors_of_part(const std::string& unit, int64_t numel) {
  return errors_of(unit, numel, /*of_result=*/false);
}

std::shared_ptr<CodingErrors> CodedCommunicator::errors_of_all_reduce(const std::string& unit,
                                                                      int64_t numel) {
  return errors_of(unit, (numel + world_size() - 1) / world_size(), /*of_result=*/true);
}

std::shared_ptr<CodingErrors> CodedCommunicator::errors_of(const std::string& unit, int64_t numel,
                                                           bool of_result) {
  if (!coding_.error_feedback) return nullptr;
  auto& errors = errors_[unit];
  if (!errors) {
    const auto floats = at::TensorOptions().dtype(at::kFloat).device(device());
    errors = std::make_shared<CodingErrors>();
    errors->of_sums = at::zeros({coded_parts() * numel}, floats);
    if (of_result) errors->of_result = at::zeros({numel}, floats);
  }
  FSDP_CHECK(errors->of_sums.numel() == coded_parts() * numel, "unit ", unit, ": errors of ",
             errors->of_sums.numel(), " sums are kept for ", coded_parts(), " parts of ", numel);
  return errors;
}

}  // namespace fsdp::comm
