#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace fsdp::data {

/// What makes ids of a piece of normalized text. Thread-safe.
class PieceModel {
 public:
  virtual ~PieceModel() = default;
  /// Appends the ids of a piece, which is valid UTF-8.
  virtual void encode(std::string_view piece, std::vector<int64_t>& ids) const = 0;
};

}  // namespace fsdp::data
