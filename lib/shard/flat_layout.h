#pragma once

// Arithmetic of the flat layout: a unit's parameters one after another, padded to a multiple of the number of
// ranks, and cut into equal shards.
//
//   | parameter 0 | parameter 1 |  ...  | padding |        padded_numel() = world_size * shard_numel()
//   | shard of rank 0 | shard of rank 1 |   ...   |
//
// A rank's shard may begin and end inside a parameter, may hold several, and may hold padding only.

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::shard {

/// Where a parameter lies in its unit.
struct ParameterPlace {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel = 0;
  int64_t offset = 0;  ///< of its first element in the flat unit
};

/// The part of a parameter that lies in one rank's shard; empty when begin == end.
struct LocalRange {
  int64_t begin = 0, end = 0;  ///< elements of the flattened parameter
  int64_t shard_offset = 0;    ///< of element `begin` in the shard
};

class FlatLayout {
 public:
  struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
  };

  FlatLayout(const std::vector<Parameter>& parameters, int world_size);

  const std::vector<ParameterPlace>& parameters() const { return parameters_; }
  int64_t numel() const { return numel_; }  ///< without padding
  int64_t padded_numel() const { return shard_numel_ * world_size_; }
  int64_t shard_numel() const { return shard_numel_; }

  LocalRange local_range(size_t parameter, int rank) const;

 private:
  std::vector<ParameterPlace> parameters_;
  int world_size_;
  int64_t numel_ = 0;
  int64_t shard_numel_ = 0;
};

}  // namespace fsdp::shard
