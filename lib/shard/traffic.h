#pragma once

#include <cstdint>

namespace fsdp::shard {

/// What units have moved, or will: number of collectives and this rank's payload, as in comm/trace.h.
struct Traffic {
  int64_t all_gathers = 0, all_gather_bytes = 0;
  int64_t reduce_scatters = 0, reduce_scatter_bytes = 0;
  int64_t all_reduces = 0, all_reduce_bytes = 0;

  Traffic& operator+=(const Traffic& other) {
    all_gathers += other.all_gathers;
    all_gather_bytes += other.all_gather_bytes;
    reduce_scatters += other.reduce_scatters;
    reduce_scatter_bytes += other.reduce_scatter_bytes;
    all_reduces += other.all_reduces;
    all_reduce_bytes += other.all_reduce_bytes;
    return *this;
  }
  bool operator==(const Traffic&) const = default;
};

}  // namespace fsdp::shard
