#include "state/outer/exchange.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/api/coded_communicator.h"

namespace fsdp::optim {
namespace {

/// How the type travels, if it is none of tensors.
comm::LinkType link_type_of(util::Named<ExchangeType> type) {
  switch (type.value()) {
    case ExchangeType::kInt8:
      return comm::LinkType::kInt8;
    case ExchangeType::kInt4:
      return comm::LinkType::kInt4;
    case ExchangeType::kFloat32:
    case ExchangeType::kBFloat16:
      break;
  }
  return comm::LinkType::kExact;
}

/// Calls visit(begin, count) for pieces of n numbers.
template <typename Visit>
void for_each_sent_piece(int64_t n, Visit visit) {
  for (int64_t begin = 0; begin < n; begin += Exchange::kPiece) {
    visit(begin, std::min(Exchange::kPiece, n - begin));
  }
}

}  // namespace

Exchange::Exchange(at::Tensor numbers, util::Named<ExchangeType> type,
                   std::shared_ptr<comm::Communicator> replicas, uint64_t seed, const comm::CallSite& site)
    : numbers_(std::move(numbers)), sent_(numbers_) {
  const int rank = replicas->rank();
  if (replicas->world_size() == 1) return;
  at::NoGradGuard no_grad;
  if (type == ExchangeType::kBFloat16) sent_ = numbers_.to(at::kBFloat16);
  if (const comm::LinkType link = link_type_of(type); link != comm::LinkType::kExact) {
    replicas = std::make_shared<comm::CodedCommunicator>(
        std::move(replicas), comm::LinkCoding{.type = link, .stochastic = true, .seed = seed}, rank);
  }
  for_each_sent_piece(numbers_.numel(), [&](int64_t begin, int64_t count) {
    works_.push_back(replicas->all_reduce(sent_.narrow(0, begin, count), comm::ReduceOp::kSum, site));
  });
}

Exchange::~Exchange() {
  try {
    wait();
  } catch (const std::exception&) {
    // The step that failed reports its own error.
  }
}

void Exchange::wait() {
  for (comm::WorkPtr& work : std::exchange(works_, {})) work->wait();
}

at::Tensor Exchange::mean(double contributors) {
  at::NoGradGuard no_grad;
  if (!sent_.is_same(numbers_)) numbers_.copy_(sent_);
  return numbers_.div_(contributors);
}

int64_t Exchange::payload_bytes(int64_t n, util::Named<ExchangeType> type, int64_t replicas) {
  int64_t bytes = 0;
  for_each_sent_piece(n, [&](int64_t, int64_t count) {
    bytes += comm::all_reduce_link_bytes(link_type_of(type), count, type == ExchangeType::kBFloat16 ? 2 : 4,
                                         replicas);
  });
  return bytes;
}

}  // namespace fsdp::optim
