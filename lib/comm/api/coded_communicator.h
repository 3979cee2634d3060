#pragma once

// CodedCommunicator: a decorator whose all-gathers, reduce-scatters and sums are coded on the links.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/api/coding.h"
#include "comm/api/forwarding_communicator.h"

namespace fsdp::comm {

/// How a CodedCommunicator rounds.
struct LinkCoding {
  LinkType type = LinkType::kInt8;
  /// Whether reductions round stochastically. Off, as all-gathers: to the nearest.
  bool stochastic = false;
  uint64_t seed = 0;  ///< the same on all ranks
  /// Whether reductions add what their codes have lacked to the next reduction of the same unit.
  bool error_feedback = false;
};

/// Codes tensors of floating-point types; all other collectives pass unchanged. It has no common memory,
/// because every rank decodes its own copy of what is gathered.
class CodedCommunicator final : public ForwardingCommunicator {
 public:
  /// `rank_of_run`: number by which this rank's random numbers differ from those of other ranks.
  CodedCommunicator(std::shared_ptr<Communicator> inner, const LinkCoding& coding, int rank_of_run);

  CommonMemory* common_memory() override { return nullptr; }
  int64_t link_bytes_of_part(const at::Tensor& part) const override;
  int64_t link_bytes_of_all_reduce(const at::Tensor& tensor) const override;
  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override;

  /// The errors that are kept for reduce-scatters of a unit into parts of `numel` elements, or for its
  /// all-reduces: made at the first call, as zeros. Null without error feedback. Not collective; used by the
  /// thread that issues collectives.
  std::shared_ptr<CodingErrors> errors_of_part(const std::string& unit, int64_t numel);
  std::shared_ptr<CodingErrors> errors_of_all_reduce(const std::string& unit, int64_t numel);

 protected:
  WorkPtr collective(const Collective& call, const CallSite& site) override;

 private:
  bool is_coded(const at::Tensor& tensor) const { return tensor.is_floating_point(); }
  std::shared_ptr<CodingErrors> errors_of(const std::string& unit, int64_t numel, bool of_result);

  const LinkCoding coding_;
  const int rank_of_run_;
  std::map<std::string, std::shared_ptr<CodingErrors>> errors_;
};

}  // namespace fsdp::comm
