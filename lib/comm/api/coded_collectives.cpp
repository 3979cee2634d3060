// Collectives whose parts are coded on their links, for communicators that complete collectives at the call.
// Every rank decodes the same bytes of a gathered part, the part's owner too, so that all have the same
// numbers. What a rank adds to its own sum is not coded.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "comm/api/coding.h"
#include "comm/api/communicator.h"
#include "comm/api/memory_operations.h"

namespace fsdp::comm {
namespace {

/// The errors, moved to the device on which they are added.
at::Tensor& on_device(at::Tensor& errors, at::Device device) {
  if (errors.device() != device) errors = errors.to(device);
  return errors;
}

std::optional<uint32_t> seed_of(std::optional<uint32_t> seed, int64_t part) {
  if (!seed) return seed;
  return static_cast<uint32_t>(util::mix64((uint64_t{*seed} << 32) + static_cast<uint64_t>(part)));
}

at::Tensor bytes_like(const at::Tensor& tensor, int64_t bytes) {
  return at::empty({bytes}, tensor.options().dtype(at::kByte));
}

at::Tensor part_of(const at::Tensor& whole, int part, int64_t numel) {
  return whole.view({-1}).narrow(0, part * numel, numel);
}

}  // namespace

CodeRounding Coding::of_sum(int64_t part, int64_t numel, at::Device device) const {
  if (!errors) return {.seed = seed_of(seed, part)};
  FSDP_CHECK((part + 1) * numel <= errors->of_sums.numel(), errors->of_sums.numel(), " errors kept for part ",
             part, " of ", numel);
  return {.seed = seed_of(seed, part),
          .error = on_device(errors->of_sums, device).narrow(0, part * numel, numel)};
}

CodeRounding Coding::of_result(at::Device device) const {
  CodeRounding rounding{.seed = seed_of(seed, -1)};
  if (errors && errors->of_result.defined()) rounding.error = on_device(errors->of_result, device);
  return rounding;
}

WorkPtr Communicator::coded_all_gather(const at::Tensor& output, const at::Tensor& input,
                                       const CodingPtr& coding, const CallSite& site) {
  check_whole(output, input);
  const int64_t n = input.numel(), bytes = coding->bytes(n);
  const at::Tensor all = bytes_like(input, world_size() * bytes);
  const at::Tensor own = part_of(all, rank(), bytes);
  encode(coding->type, input.view({-1}), own, coding->of_result(input.device()));
  all_gather(all, own, site)->wait();
  for (int from = 0; from < world_size(); ++from) {
    decode(coding->type, part_of(all, from, bytes), part_of(output, from, n));
  }
  return done_work();
}

WorkPtr Communicator::coded_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                           const CodingPtr& coding, const FinishSums& finish,
                                           const CallSite& site) {
  check_whole(input, output);
  const int64_t n = output.numel(), bytes = coding->bytes(n);
  const at::Tensor sent = bytes_like(input, world_size() * bytes), received = at::empty_like(sent);
  for (int to = 0; to < world_size(); ++to) {
    if (to == rank()) continue;
    encode(coding->type, part_of(input, to, n), part_of(sent, to, bytes),
           coding->of_sum(to, n, input.device()));
  }
  all_to_all(received, sent, site)->wait();
  CodedSum sum(output, coding);
  for (int from = 0; from < world_size(); ++from) {
    from == rank() ? sum.add(part_of(input, from, n)) : sum.add_coded(part_of(received, from, bytes));
  }
  sum.finish(finish);
  return done_work();
}

WorkPtr Communicator::coded_all_reduce(const at::Tensor& tensor, const CodingPtr& coding,
                                       const CallSite& site) {
  const at::NoGradGuard no_grad;
  const int64_t numel = tensor.numel(), n = (numel + world_size() - 1) / world_size();
  if (numel == 0) return done_work();
  const at::Tensor flat = tensor.contiguous().view({-1});
  at::Tensor whole = flat;
  if (n * world_size() > numel) {
    whole = at::zeros({n * world_size()}, flat.options());
    whole.narrow(0, 0, numel).copy_(flat);
  }
  const at::Tensor part = part_of(whole, rank(), n);
  coded_reduce_scatter(part, whole, coding, {}, site)->wait();
  coded_all_gather(whole, part, coding, site)->wait();
  if (whole.data_ptr() != tensor.data_ptr()) {
    tensor.copy_(whole.narrow(0, 0, numel).view(tensor.sizes()));
  }
  return done_work();
}

WorkPtr Communicator::all_to_all(const at::Tensor&, const at::Tensor&, const CallSite& site) {
  util::fail(ErrorKind::kUnexpected, backend_name(), " has no exchange of parts for ", site.unit,
             "; coded collectives of a decorator are those of the communicator inside it");
}

/// The output may be a part of the input, which is read until the last part has been added.
void CodedSum::add(const at::Tensor& part) {
  const at::NoGradGuard no_grad;
  if (sum_.defined()) {
    sum_.add_(part);
  } else {
    sum_ = part.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }
}

void CodedSum::add_coded(const at::Tensor& bytes) {
  if (sum_.defined()) return decode_and_add(coding_->type, bytes, sum_);
  sum_ = at::empty({output_.numel()}, output_.options().dtype(at::kFloat));
  decode(coding_->type, bytes, sum_);
}

void CodedSum::finish(const FinishSums& finish) {
  const at::NoGradGuard no_grad;
  if (finish) finish_sums(sum_, finish);
  output_.view({-1}).copy_(sum_);
}

}  // namespace fsdp::comm
