#pragma once

// LinkType: how the numbers of a collective travel between ranks. Needs no libtorch, so that a step's bytes
// can be computed without tensors.
//
// Coded numbers form blocks of 256, each with a scale of 16 bits. The code of a part of n numbers has
//
//   2 * ceil(n / 256)   bytes of scales
//   ceil(n * bits / 8)  bytes of codes
//
// and at most one byte of padding, which makes the number of bytes even.

#include <array>
#include <cstdint>

#include "base/util/enum_names.h"

namespace fsdp::comm {

enum class LinkType {
  kExact,  ///< the type of the tensor
  kInt8,
  kInt4,
};
constexpr auto enum_names(LinkType) {
  return std::to_array<util::EnumName<LinkType>>(
      {{LinkType::kExact, "exact"}, {LinkType::kInt8, "int8"}, {LinkType::kInt4, "int4"}});
}

/// Number of consecutive numbers with one scale.
inline constexpr int64_t kCodeBlock = 256;

/// Number of consecutive numbers that a rank codes at once where it codes beside the transfer. They take 1 ms
/// of 1 Gbit/s in int8, which is long against the cost of a message and short against a unit.
inline constexpr int64_t kCodedPiece = 512 * kCodeBlock;

/// Bytes that represent a part of `numel` numbers, each of which has `element_size` bytes in memory.
constexpr int64_t link_bytes(LinkType type, int64_t numel, int64_t element_size) {
  if (type == LinkType::kExact) return numel * element_size;
  const int64_t scales = 2 * ((numel + kCodeBlock - 1) / kCodeBlock);
  const int64_t codes = type == LinkType::kInt8 ? numel : (numel + 1) / 2;
  return (scales + codes + 1) / 2 * 2;
}

/// Bytes by which a trace counts an all-reduce of `numel` numbers over `ranks` ranks: a coded tensor travels
/// in one part for each rank.
constexpr int64_t all_reduce_link_bytes(LinkType type, int64_t numel, int64_t element_size, int64_t ranks) {
  if (type == LinkType::kExact) return numel * element_size;
  return ranks * link_bytes(type, (numel + ranks - 1) / ranks, element_size);
}

/// The links on which collectives are coded.
enum class CodedLinks {
  kBetweenHosts,  ///< those of groups whose ranks are on several hosts
  kAll,
};
constexpr auto enum_names(CodedLinks) {
  return std::to_array<util::EnumName<CodedLinks>>(
      {{CodedLinks::kBetweenHosts, "between_hosts"}, {CodedLinks::kAll, "all"}});
}

}  // namespace fsdp::comm
