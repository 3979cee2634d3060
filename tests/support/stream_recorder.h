#pragma once

// StreamRecorder: who touched which memory on which stream of a device, and whether that was in order.
//
// Every stream has a vector clock, as has the host. An operation ticks the clock of its stream; recording an
// event keeps the clock, waiting for one takes it over, and an operation knows all that the host knew when it
// launched it. That one operation was launched before another orders nothing. Two accesses to the same bytes,
// of which one writes, are a race unless the later one's clock has reached the earlier one (Lamport, "Time,
// clocks, and the ordering of events in a distributed system", 1978; Fidge, "Timestamps in message-passing
// systems", 1988). The host's threads count as one, in the order in which they call.
//
// Accesses are kept by address: memory that was freed and handed out again still knows its former users.
// Thread-safe.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::testing {

struct StreamName {
  int device = 0;
  int64_t id = 0;  ///< 0 is the default stream
  auto operator<=>(const StreamName&) const = default;
  std::string text() const;  ///< "stream 3", "stream 3 of device 1" or "the host"
};

inline constexpr StreamName kHost{-1, 0};

/// Bytes [begin, end) of memory.
struct MemoryRange {
  uintptr_t begin = 0, end = 0;
  bool overlaps(const MemoryRange& other) const { return begin < other.end && other.begin < end; }
};

/// One thing that happened, in the order of the host's calls.
struct Entry {
  enum class Kind { kOperation, kRecord, kWait, kAllocate, kFree };
  Kind kind = Kind::kOperation;
  StreamName stream;      ///< that it happened on; kHost waits too
  std::string name = {};  ///< of an operation, such as "aten::mm.out"
  int64_t event =
      -1;  ///< number of the event that is recorded or waited for; -1 if the host waits for a stream
  StreamName other = {};  ///< the stream that the host waits for
  std::vector<MemoryRange> reads = {},
                           writes = {};  ///< of an operation; writes has the block of kAllocate and kFree

  bool touches(const void* memory) const;  ///< an operation on that byte
  std::string text() const;                ///< "stream 3 waits for event 1"
};

class StreamRecorder {
 public:
  using Clock = std::vector<uint64_t>;
  struct Moment {  ///< at which an operation is done
    size_t stream = 0;
    uint64_t time = 0;
  };
  struct Event {
    int64_t number = -1;
    Clock clock;
  };

  /// Forgets accesses, freed memory, races and the log: what happened before is in order with all that
  /// follows.
  void begin();

  Moment operation(StreamName stream, std::string name, std::vector<MemoryRange> reads,
                   std::vector<MemoryRange> writes);
  void record(StreamName stream, Event& event);
  void wait(StreamName stream, const Event& event);  ///< of kHost too
  void host_waits_for(StreamName stream);
  void host_waits_for_device(int device);
  bool known(StreamName by, const Moment& moment);  ///< whether whatever comes on `by` next is after it
  bool known(StreamName by, const Event& event);
  bool host_knows_all_of(StreamName stream);

  /// Between free() and allocate() a block may not be touched.
  void allocate(StreamName stream, const MemoryRange& block);
  void free(StreamName stream, const MemoryRange& block);

  void add_race(std::string text);
  std::vector<std::string> races();
  std::vector<Entry> log();
  /// Calls `observer` with the number of each entry before it is in the log, one at a time; null: nobody. It
  /// may not call back.
  void observe(std::function<void(size_t entry)> observer);

 private:
  struct Touch {
    size_t stream = 0;
    uint64_t time = 0;
    size_t entry = 0;
  };
  struct Cell {
    uintptr_t end = 0;
    std::optional<Touch> write;
    std::vector<Touch> reads;  ///< since the write, the last one of each stream
  };

  size_t index(StreamName stream);
  Clock& clock(size_t stream);
  static void join(Clock& clock, const Clock& other);
  static bool reached(const Clock& clock, const Moment& moment);
  void append(Entry entry);
  void split(uintptr_t at);
  void touch(const MemoryRange& range, const Touch& touch, bool writes);
  void check(const Touch& before, const Touch& now, const MemoryRange& range);
  void check_freed(const MemoryRange& range, size_t entry);
  std::string between(const Touch& before, const Touch& now) const;

  std::mutex mutex_;
  std::map<StreamName, size_t> streams_{{kHost, 0}};
  std::vector<Clock> clocks_{Clock{0}};
  std::map<uintptr_t, Cell> cells_;
  std::map<uintptr_t, std::pair<uintptr_t, size_t>> freed_;  ///< begin -> end, entry of the free
  std::vector<Entry> log_;
  std::vector<std::string> races_;
  std::set<std::pair<size_t, size_t>> reported_;
  int64_t events_ = 0;
  std::function<void(size_t)> observer_;
};

}  // namespace fsdp::testing
