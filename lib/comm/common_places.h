#pragma once

// CommonPlaces: memory that all ranks of a group use at the same place, so that an all-gather into it moves
// only each rank's own part. It lies in the segment of the group's first rank, the maker, who alone chooses
// places; the others are told (ShmGroup::Record). A place is free again when every rank has given it back.
//
// Places lie in one arena, made long enough for what was needed before whenever none is in use (util::Arena);
// a place for which it is too short is a block of its own.
//
// take() and drop() are the maker's, called by one thread; the rest is thread-safe.

#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "comm/host_ranks.h"
#include "comm/shared_segment.h"
#include "util/free_ranges.h"

namespace fsdp::comm {

class CommonPlaces : public std::enable_shared_from_this<CommonPlaces> {
 public:
  static constexpr int64_t kNowhere = -1;

  /// `maker`: its number in the whole run; `ranks`: how many give each place back.
  CommonPlaces(std::shared_ptr<HostRanks> host, int maker, int ranks);
  ~CommonPlaces();
  CommonPlaces(const CommonPlaces&) = delete;
  CommonPlaces& operator=(const CommonPlaces&) = delete;

  /// Makes the arena that long when the first place is asked for.
  void reserve(int64_t bytes);
  /// What a place takes beside the bytes that were asked for.
  static constexpr int64_t kBesidePlace = util::Arena::kAlignment;

  /// A place for `bytes`, in the maker's segment; kNowhere when the system has no memory for it.
  int64_t take(int64_t bytes);
  /// No rank will open this place.
  void drop(int64_t place);

  /// This rank's hold on a place, which goes with the pointer. Every rank opens a place that it is told of.
  c10::DataPtr open(int64_t place);
  /// Whether `data` is the beginning of a place that this rank has open.
  bool is_open(const void* data) const;

 private:
  struct Header;
  struct Hold;
  struct Taken {
    int64_t place;
    util::Arena::Place in_arena;
    std::unique_ptr<SharedSegment::Block> own;  ///< of a place outside of the arena
  };
  Header& header(int64_t place) const;
  void free_what_all_gave_back();
  void grow();
  void close(void* data);

  const std::shared_ptr<HostRanks> host_;
  const int maker_, ranks_;
  std::vector<Taken> taken_;
  std::unique_ptr<SharedSegment::Block> arena_;
  mutable std::mutex mutex_;  ///< of what follows
  util::Arena places_;
  std::set<const void*> open_;
};

}  // namespace fsdp::comm
