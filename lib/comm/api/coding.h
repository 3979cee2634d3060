#pragma once

// Coding: how the parts of one collective are coded on their links (comm/codes/link_codes.h).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "comm/codes/link_codes.h"
#include "comm/options/link_type.h"

namespace fsdp::comm {

/// Errors of the codes of this rank's reductions so far, which it adds to the next ones (error feedback;
/// Seide et al., 2014). Used in the order of the collectives.
struct CodingErrors {
  at::Tensor of_sums;    ///< fp32, [coded_parts() * n]: what this rank sends to be added
  at::Tensor of_result;  ///< fp32, [n]: its part of an all-reduce, which it sends to all; else undefined
};

struct Coding {
  LinkType type = LinkType::kInt8;
  /// Seed of this rank for stochastic rounding; without one, numbers become the nearest.
  std::optional<uint32_t> seed = std::nullopt;
  std::shared_ptr<CodingErrors> errors = nullptr;  ///< null: none are kept

  int64_t bytes(int64_t numel) const { return link_bytes(type, numel, 0); }

  /// The rounding of part number `part` of n elements of what this rank sends to be added.
  CodeRounding of_sum(int64_t part, int64_t numel, at::Device device) const;
  /// The rounding of a result that this rank sends to all.
  CodeRounding of_result(at::Device device) const;
};

}  // namespace fsdp::comm
