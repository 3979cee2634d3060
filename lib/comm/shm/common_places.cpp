#include "comm/shm/common_places.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <optional>
#include <utility>

#include "base/util/error.h"

namespace fsdp::comm {

/// Precedes the data of a place, which stays aligned to a cache line.
struct alignas(64) CommonPlaces::Header {
  std::atomic<uint32_t> holders;  ///< ranks that have not released the place
  bool in_use() const { return holders.load(std::memory_order_acquire) > 0; }
};

/// The context of a DataPtr.
struct CommonPlaces::Hold {
  std::shared_ptr<CommonPlaces> memory;
  void* data;

  static void give_back(void* hold) {
    std::unique_ptr<Hold> owned(static_cast<Hold*>(hold));
    owned->memory->close(owned->data);
  }
};

CommonPlaces::CommonPlaces(std::shared_ptr<HostRanks> host, int maker, int ranks)
    : host_(std::move(host)), maker_(maker), ranks_(ranks) {
  static_assert(sizeof(Header) == kBesidePlace);
}

CommonPlaces::~CommonPlaces() {
  if (taken_.empty() && !arena_) return;
  // Other ranks may still use places that they have open.
  std::vector<const Header*> headers;
  HostRanks::Retired retired;
  for (Taken& taken : taken_) {
    headers.push_back(&header(taken.place));
    if (taken.own) retired.blocks.push_back(std::move(taken.own));
  }
  if (arena_) retired.blocks.push_back(std::move(arena_));
  retired.done = [headers = std::move(headers)] {
    return std::ranges::none_of(headers, [](const Header* one) { return one->in_use(); });
  };
  host_->keep_until_unused(std::move(retired));
}

CommonPlaces::Header& CommonPlaces::header(int64_t place) const {
  return *reinterpret_cast<Header*>(host_->of(maker_).data() + place);
}

void CommonPlaces::reserve(int64_t bytes) {
  std::lock_guard lock(mutex_);
  places_.reserve({.length = bytes, .way = 0});
}

int64_t CommonPlaces::take(int64_t bytes) {
  FSDP_CHECK(host_->rank() == maker_);
  std::lock_guard lock(mutex_);
  free_what_all_gave_back();
  if (places_.live() == 0) grow();
  const int64_t room = bytes + kBesidePlace;
  Taken taken{.place = kNowhere, .in_arena = places_.take(room, util::Arena::Sort::kFirst), .own = nullptr};
  if (taken.in_arena.is_outside) {
    taken.own = SharedSegment::take(host_->own(), room, SharedSegment::Part::kCommon);
    if (!taken.own) {
      places_.give_back(taken.in_arena);
      return kNowhere;
    }
    taken.place = taken.own->offset;
  } else {
    taken.place = arena_->offset + taken.in_arena.offset;
  }
  new (&header(taken.place)) Header{.holders = static_cast<uint32_t>(ranks_)};
  taken_.push_back(std::move(taken));
  return taken_.back().place;
}

void CommonPlaces::drop(int64_t place) { header(place).holders.store(0); }

void CommonPlaces::free_what_all_gave_back() {
  std::erase_if(taken_, [this](const Taken& taken) {
    if (header(taken.place).in_use()) return false;
    places_.give_back(taken.in_arena);
    return true;
  });
}

void CommonPlaces::grow() {
  const std::optional<int64_t> bytes = places_.longer();
  if (!bytes) return;
  arena_.reset();  // frees it before the next one is taken
  places_.clear();
  arena_ = SharedSegment::take(host_->own(), *bytes, SharedSegment::Part::kCommon);
  if (arena_) places_.grow();
}

c10::DataPtr CommonPlaces::open(int64_t place) {
  void* data = &header(place) + 1;
  auto hold = std::make_unique<Hold>(Hold{shared_from_this(), data});
  std::lock_guard lock(mutex_);
  open_.insert(data);
  return {data, hold.release(), &Hold::give_back, at::kCPU};
}

bool CommonPlaces::is_open(const void* data) const {
  std::lock_guard lock(mutex_);
  return open_.contains(data);
}

void CommonPlaces::close(void* data) {
  {
    std::lock_guard lock(mutex_);
    open_.erase(data);
  }
  (static_cast<Header*>(data) - 1)->holders.fetch_sub(1, std::memory_order_release);
}

}  // namespace fsdp::comm
