#pragma once

// CommonPlaces: memory that all ranks of a group use at the same place, so that an all-gather into it moves
// only each rank's own part. It lies in the segment of the group's first rank, the maker, which alone chooses
// places and announces them (ShmGroup::Record). A place is free again when every rank has released it.
//
// Places lie in one arena (util::Arena), which grows to the largest need so far whenever no place is in use;
// a place that does not fit into the arena is a separate block.
//
// take() and drop() are called by one thread of the maker; the rest is thread-safe.

#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/util/free_ranges.h"
#include "comm/shm/host_ranks.h"
#include "comm/shm/shared_segment.h"

namespace fsdp::comm {

class CommonPlaces : public std::enable_shared_from_this<CommonPlaces> {
 public:
  static constexpr int64_t kNowhere = -1;

  /// `maker`: global rank of the maker; `ranks`: number of ranks that release each place.
  CommonPlaces(std::shared_ptr<HostRanks> host, int maker, int ranks);
  ~CommonPlaces();
  CommonPlaces(const CommonPlaces&) = delete;
  CommonPlaces& operator=(const CommonPlaces&) = delete;

  /// Sets the length of the arena at the first request.
  void reserve(int64_t bytes);
  /// Bytes that a place takes in addition to those requested.
  static constexpr int64_t kBesidePlace = util::Arena::kAlignment;

  /// The offset in the maker's segment of a place for `bytes`; kNowhere when the system has no memory for it.
  int64_t take(int64_t bytes);
  /// Frees a place that no rank will open.
  void drop(int64_t place);

  /// Destroying the pointer releases the place for this rank. Every rank must open each place announced to
  /// it.
  c10::DataPtr open(int64_t place);
  /// Whether `data` is the beginning of a place that this rank has open.
  bool is_open(const void* data) const;

 private:
  struct Header;
  struct Hold;
  struct Taken {
    int64_t place;
    util::Arena::Allocation in_arena;
    std::unique_ptr<SharedSegment::Block> own;  ///< block of a place outside the arena; otherwise null
  };
  Header& header(int64_t place) const;
  void free_what_all_gave_back();
  void grow();
  void close(void* data);

  const std::shared_ptr<HostRanks> host_;
  const int maker_, ranks_;
  std::vector<Taken> taken_;
  std::unique_ptr<SharedSegment::Block> arena_;
  mutable std::mutex mutex_;  ///< guards the members below
  util::Arena places_;
  std::set<const void*> open_;
};

}  // namespace fsdp::comm
