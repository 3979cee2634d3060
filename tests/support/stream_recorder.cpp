#include "support/stream_recorder.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/util/error.h"

namespace fsdp::testing {
namespace {

/// Lines of a report of what came between two operations.
constexpr size_t kLines = 12;

}  // namespace

std::string StreamName::text() const {
  if (*this == kHost) return "the host";
  if (device == 0) return concat("stream ", id);
  return concat("stream ", id, " of device ", device);
}

bool Entry::touches(const void* memory) const {
  const auto at = reinterpret_cast<uintptr_t>(memory);
  auto holds = [at](const MemoryRange& range) { return range.begin <= at && at < range.end; };
  return kind == Kind::kOperation &&
         (std::any_of(reads.begin(), reads.end(), holds) || std::any_of(writes.begin(), writes.end(), holds));
}

std::string Entry::text() const {
  const size_t bytes = writes.empty() ? 0 : writes.front().end - writes.front().begin;
  switch (kind) {
    case Kind::kOperation:
      return concat(name, " on ", stream.text());
    case Kind::kRecord:
      return concat("event ", event, " is recorded on ", stream.text());
    case Kind::kWait:
      if (event < 0) return concat(stream.text(), " waits for ", other.text());
      return concat(stream.text(), " waits for event ", event);
    case Kind::kAllocate:
      return concat(bytes, " bytes are allocated on ", stream.text());
    case Kind::kFree:
      return concat(bytes, " bytes of ", stream.text(), " are freed");
  }
  return "";
}

void StreamRecorder::begin() {
  std::lock_guard lock(mutex_);
  cells_.clear();
  freed_.clear();
  log_.clear();
  races_.clear();
  reported_.clear();
}

size_t StreamRecorder::index(StreamName stream) {
  const auto [place, added] = streams_.try_emplace(stream, clocks_.size());
  if (added) clocks_.emplace_back();
  return place->second;
}

StreamRecorder::Clock& StreamRecorder::clock(size_t stream) {
  Clock& clock = clocks_[stream];
  if (clock.size() < clocks_.size()) clock.resize(clocks_.size());
  return clock;
}

void StreamRecorder::join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

bool StreamRecorder::reached(const Clock& clock, const Moment& moment) {
  return moment.stream < clock.size() && clock[moment.stream] >= moment.time;
}

StreamRecorder::Moment StreamRecorder::operation(StreamName stream, std::string name,
                                                 std::vector<MemoryRange> reads,
                                                 std::vector<MemoryRange> writes) {
  std::lock_guard lock(mutex_);
  const size_t at = index(stream);
  if (at != 0) join(clock(at), clocks_[0]);
  const Touch now{.stream = at, .time = ++clock(at)[at], .entry = log_.size()};
  append({.kind = Entry::Kind::kOperation,
          .stream = stream,
          .name = std::move(name),
          .reads = std::move(reads),
          .writes = std::move(writes)});
  for (const MemoryRange& range : log_.back().reads) touch(range, now, false);
  for (const MemoryRange& range : log_.back().writes) touch(range, now, true);
  return {at, now.time};
}

void StreamRecorder::record(StreamName stream, Event& event) {
  std::lock_guard lock(mutex_);
  const size_t at = index(stream);
  if (at != 0) join(clock(at), clocks_[0]);
  event.number = events_++;
  event.clock = clock(at);
  append({.kind = Entry::Kind::kRecord, .stream = stream, .event = event.number});
}

void StreamRecorder::wait(StreamName stream, const Event& event) {
  std::lock_guard lock(mutex_);
  join(clock(index(stream)), event.clock);
  append({.kind = Entry::Kind::kWait, .stream = stream, .event = event.number});
}

void StreamRecorder::host_waits_for(StreamName stream) {
  std::lock_guard lock(mutex_);
  join(clock(0), Clock(clock(index(stream))));
  append({.kind = Entry::Kind::kWait, .stream = kHost, .other = stream});
}

void StreamRecorder::host_waits_for_device(int device) {
  std::vector<StreamName> names;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [name, place] : streams_) {
      if (name.device == device) names.push_back(name);
    }
  }
  for (const StreamName& name : names) host_waits_for(name);
}

bool StreamRecorder::known(StreamName by, const Moment& moment) {
  std::lock_guard lock(mutex_);
  return reached(clock(index(by)), moment) || reached(clocks_[0], moment);
}

bool StreamRecorder::known(StreamName by, const Event& event) {
  std::lock_guard lock(mutex_);
  const Clock& clock = this->clock(index(by));
  for (size_t i = 0; i < event.clock.size(); ++i) {
    if (!reached(clock, {i, event.clock[i]})) return false;
  }
  return true;
}

bool StreamRecorder::host_knows_all_of(StreamName stream) {
  std::lock_guard lock(mutex_);
  const size_t at = index(stream);
  return reached(clocks_[0], {at, clock(at)[at]});
}

void StreamRecorder::allocate(StreamName stream, const MemoryRange& block) {
  std::lock_guard lock(mutex_);
  freed_.erase(block.begin);
  append({.kind = Entry::Kind::kAllocate, .stream = stream, .writes = {block}});
}

void StreamRecorder::free(StreamName stream, const MemoryRange& block) {
  std::lock_guard lock(mutex_);
  freed_[block.begin] = {block.end, log_.size()};
  append({.kind = Entry::Kind::kFree, .stream = stream, .writes = {block}});
}

void StreamRecorder::add_race(std::string text) {
  std::lock_guard lock(mutex_);
  races_.push_back(std::move(text));
}

std::vector<std::string> StreamRecorder::races() {
  std::lock_guard lock(mutex_);
  return races_;
}

std::vector<Entry> StreamRecorder::log() {
  std::lock_guard lock(mutex_);
  return log_;
}

void StreamRecorder::observe(std::function<void(size_t entry)> observer) {
  std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
}

void StreamRecorder::append(Entry entry) {
  if (observer_) observer_(log_.size());
  log_.push_back(std::move(entry));
}

void StreamRecorder::split(uintptr_t at) {
  auto next = cells_.upper_bound(at);
  if (next == cells_.begin()) return;
  auto cell = std::prev(next);
  if (cell->first == at || cell->second.end <= at) return;
  cells_.emplace_hint(next, at, cell->second);
  cell->second.end = at;
}

void StreamRecorder::touch(const MemoryRange& range, const Touch& touch, bool writes) {
  if (range.begin >= range.end) return;
  check_freed(range, touch.entry);
  split(range.begin);
  split(range.end);
  auto cell = cells_.lower_bound(range.begin);
  for (uintptr_t at = range.begin; at < range.end;) {
    if (cell == cells_.end() || cell->first > at) {  // touched for the first time
      const uintptr_t end = cell == cells_.end() ? range.end : std::min(range.end, cell->first);
      cell = cells_.emplace_hint(cell, at, Cell{.end = end, .write = {}, .reads = {}});
    }
    Cell& state = cell->second;
    if (state.write) check(*state.write, touch, range);
    if (writes) {
      for (const Touch& read : state.reads) check(read, touch, range);
    } else {
      std::erase_if(state.reads, [&](const Touch& read) { return read.stream == touch.stream; });
      state.reads.push_back(touch);
    }
    at = state.end;
    ++cell;
  }
  if (!writes) return;
  cells_.erase(cells_.lower_bound(range.begin), cells_.lower_bound(range.end));
  cells_[range.begin] = Cell{.end = range.end, .write = touch, .reads = {}};
}

void StreamRecorder::check(const Touch& before, const Touch& now, const MemoryRange& range) {
  if (before.stream == now.stream || reached(clocks_[now.stream], {before.stream, before.time})) return;
  if (!reported_.insert({before.entry, now.entry}).second) return;
  const Entry &first = log_[before.entry], &second = log_[now.entry];
  auto verb = [&](const Entry& entry) {
    auto overlaps = [&](const MemoryRange& other) { return other.overlaps(range); };
    return std::any_of(entry.writes.begin(), entry.writes.end(), overlaps) ? "writes" : "reads";
  };
  races_.push_back(concat(first.text(), " ", verb(first), " and ", second.text(), " ", verb(second),
                          " the same memory in no order (of ", range.end - range.begin, " bytes); ",
                          between(before, now)));
}

void StreamRecorder::check_freed(const MemoryRange& range, size_t entry) {
  auto block = freed_.lower_bound(range.end);
  while (block != freed_.begin()) {
    --block;
    const auto [end, freed_at] = block->second;
    if (end <= range.begin) return;
    if (reported_.insert({freed_at, entry}).second) {
      races_.push_back(
          concat(log_[entry].text(), " touches memory that was freed (", log_[freed_at].text(), ")"));
    }
  }
}

std::string StreamRecorder::between(const Touch& before, const Touch& now) const {
  const StreamName one = log_[before.entry].stream, other = log_[now.entry].stream;
  std::string lines;
  size_t count = 0;
  for (size_t i = before.entry + 1; i < now.entry; ++i) {
    const Entry& entry = log_[i];
    const bool orders = entry.kind == Entry::Kind::kRecord || entry.kind == Entry::Kind::kWait;
    if (!orders || (entry.stream != one && entry.stream != other && entry.stream != kHost)) continue;
    if (++count <= kLines) lines += concat(lines.empty() ? "" : ", ", entry.text());
  }
  if (count == 0) return "nothing orders their streams in between";
  if (count > kLines) lines += concat(" and ", count - kLines, " more");
  return "in between: " + lines;
}

}  // namespace fsdp::testing
