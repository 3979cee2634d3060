#include "base/util/free_ranges.h"

#include <algorithm>
#include <iterator>

#include "base/util/error.h"

namespace fsdp::util {
namespace {

int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

int64_t room_of(int64_t bytes) { return rounded_up(std::max<int64_t>(bytes, 1), Arena::kAlignment); }

}  // namespace

std::optional<int64_t> FreeRanges::take(int64_t bytes, int64_t alignment) {
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const int64_t lost = rounded_up(range->first, alignment) - range->first;
    if (range->second - lost < bytes) continue;
    if (best == free_.end() || range->second < best->second) best = range;
  }
  if (best == free_.end()) return std::nullopt;
  const auto [begin, length] = *best;
  free_.erase(best);
  const int64_t offset = rounded_up(begin, alignment);
  if (offset > begin) free_[begin] = offset - begin;
  if (offset + bytes < begin + length) free_[offset + bytes] = begin + length - offset - bytes;
  return offset;
}

void FreeRanges::give_back(int64_t offset, int64_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

std::pair<int64_t, int64_t> FreeRanges::largest() const {
  std::pair<int64_t, int64_t> found;
  for (const auto& [offset, bytes] : free_) {
    if (bytes > found.second) found = {offset, bytes};
  }
  return found;
}

void FreeRanges::shorten(int64_t offset, int64_t bytes) {
  const auto range = free_.find(offset);
  FSDP_CHECK(range != free_.end() && range->second >= bytes);
  range->second -= bytes;
  if (range->second == 0) free_.erase(range);
}

Arena::Allocation Arena::take(int64_t bytes, Sort sort) {
  const int64_t room = room_of(bytes);
  Allocation place = {.sort = sort, .bytes = bytes};
  for (size_t i = 0; i < ways_.size(); ++i) {
    ArenaWay& way = ways_[i];
    const std::optional<int64_t> distance = (is_high(i, sort) ? way.high : way.low).take(room, kAlignment);
    FSDP_CHECK(distance, "a buffer of ", bytes, " bytes");
    place.distances[i] = *distance;
    way.needed = std::max(way.needed, way.low.last_begin() + way.high.last_begin());
  }
  ++live_;
  const ArenaWay& way = ways_[way_];
  const bool high = is_high(way_, sort);
  const int64_t reach = place.distances[way_] + room;
  place.is_outside = reach + (high ? way.low : way.high).last_begin() > length_;
  place.offset = high ? length_ - reach : place.distances[way_];
  return place;
}

void Arena::give_back(const Allocation& place) {
  for (size_t i = 0; i < ways_.size(); ++i) {
    (is_high(i, place.sort) ? ways_[i].high : ways_[i].low)
        .give_back(place.distances[i], room_of(place.bytes));
  }
  --live_;
}

std::optional<int64_t> Arena::longer() const {
  if (reserved_is_longer()) return reserved_.length;
  if (ways_[way_].needed <= length_) return std::nullopt;
  return std::min(ways_[0].needed, ways_[1].needed);
}

void Arena::grow() {
  FSDP_CHECK(live_ == 0, live_, " places are taken");
  if (reserved_is_longer()) {
    way_ = reserved_.way;
    length_ = reserved_.length;
    return;
  }
  way_ = ways_[1].needed < ways_[0].needed ? 1 : 0;
  length_ = ways_[way_].needed;
}

void Arena::clear() {
  FSDP_CHECK(live_ == 0, live_, " places are taken");
  length_ = 0;
}

}  // namespace fsdp::util
