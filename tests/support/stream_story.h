#pragma once

// What happened on the streams of one rank's fake device (support/fake_device.h) during a step, as lines in
// the order of the host's calls:
//
//   allocate layers.1                    the unsharded parameters of the unit have memory now
//   communication: gather layers.1       what a stream does: collectives, forwards and backwards of units,
//                                        copies of shards to the device ("copy in") and of gradients from it
//   compute waits for gather layers.1    from here on the stream is behind it, by an event; a wait that tells
//   host waits for copy out layers.1     a stream nothing new has no line
//   free layers.1
//
// Streams are called by what they do. What a unit goes through for the second time, in backward, is called
// "again".

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "support/stream_recorder.h"

namespace fsdp::testing {

using Lines = std::vector<std::string>;

class StreamStory {
 public:
  /// What the log has of `device` from entry `begin` on, and lines that stand before the entry of a number.
  StreamStory(int device, std::vector<Entry> log, size_t begin,
              const std::vector<std::pair<size_t, std::string>>& between)
      : device_(device), log_(std::move(log)) {
    for (size_t i = begin; i < log_.size(); ++i) take_operation(i);
    name_copies();
    name_streams();
    tell_again();
    auto line = between.begin();
    for (size_t i = begin; i < log_.size(); ++i) {
      for (; line != between.end() && line->first <= i; ++line) lines_.push_back(line->second);
      follow(i);
    }
  }

  const Lines& lines() const { return lines_; }
  /// Those that have one of the parts in them.
  Lines lines_with(const Lines& parts) const {
    Lines found;
    std::copy_if(lines_.begin(), lines_.end(), std::back_inserter(found), [&](const std::string& line) {
      return std::any_of(parts.begin(), parts.end(),
                         [&](const std::string& part) { return line.find(part) != std::string::npos; });
    });
    return found;
  }
  /// The most units beside the root that have memory for their parameters at once.
  int most_allocated() const {
    int now = 0, most = 0;
    for (const std::string& line : lines_) {
      now += line.starts_with("allocate layers");
      now -= line.starts_with("free layers");
      most = std::max(most, now);
    }
    return most;
  }
  /// Whether `first` is over when `then` begins, on whichever streams they are.
  bool ordered(const std::string& first, const std::string& then) const {
    const Operation &one = operation(first), &other = operation(then);
    return other.known.contains(one.number);
  }
  /// Of the host, for anything of the device.
  int host_waits() const { return host_waits_; }

 private:
  using Known = std::set<size_t>;  ///< operations, by number
  struct Operation {
    size_t number;
    std::string what;
    StreamName stream;
    std::vector<MemoryRange> reads, writes;
    Known known{};  ///< what is over when it begins
    bool touches(const std::vector<MemoryRange>& ranges) const {
      const auto has = [&](const std::vector<MemoryRange>& own) {
        return std::any_of(own.begin(), own.end(), [&](const MemoryRange& a) {
          return std::any_of(ranges.begin(), ranges.end(),
                             [&](const MemoryRange& b) { return a.overlaps(b); });
        });
      };
      return has(reads) || has(writes);
    }
  };
  struct EventKnows {
    StreamName stream;
    Known known;
  };

  const Operation& operation(const std::string& what) const {
    for (const auto& [entry, each] : operations_) {
      if (each.what == what) return each;
    }
    std::string all;
    for (const std::string& line : lines_) all += line + "\n";
    fail(ErrorKind::kUsage, "no \"", what, "\" in\n", all);
  }

  /// "gather layers.1" of "all_gather of layers.1"; "" for what is no part of a story.
  std::string told(const Entry& entry) const {
    static const std::map<std::string, std::string> collectives{
        {"all_gather of ", "gather "}, {"reduce_scatter of ", "reduce "}, {"all_reduce of ", "all-reduce "}};
    for (const auto& [name, text] : collectives) {
      if (entry.name.starts_with(name)) return text + entry.name.substr(name.size());
    }
    for (const char* mark : {"forward ", "backward ", "end of the step"}) {
      if (entry.name.starts_with(mark)) return entry.name;
    }
    if (entry.name != "aten::copy_" || entry.reads.empty() == entry.writes.empty()) return "";
    return entry.reads.empty() ? "copy in" : "copy out";
  }

  void take_operation(size_t i) {
    const Entry& entry = log_[i];
    if (entry.kind != Entry::Kind::kOperation) return;
    if (entry.stream.device != device_) return;
    const std::string what = told(entry);
    if (what.empty()) return;
    // A collective is in the log twice, as it reads and as it writes.
    if (last_ != nullptr && last_->what == what && last_->stream == entry.stream && what.find("copy") != 0) {
      last_->writes.insert(last_->writes.end(), entry.writes.begin(), entry.writes.end());
      return;
    }
    last_ =
        &operations_.emplace(i, Operation{i, what, entry.stream, entry.reads, entry.writes}).first->second;
  }

  /// After the gather that sends what was copied to the device, the reduction whose result is copied from it;
  /// other copies are left out.
  void name_copies() {
    for (auto here = operations_.begin(); here != operations_.end(); ++here) {
      Operation& copy = here->second;
      if (copy.what == "copy in") {
        name_copy(copy, "gather", copy.writes, std::next(here), operations_.end());
      } else if (copy.what == "copy out") {
        name_copy(copy, "reduce", copy.reads, std::make_reverse_iterator(here), operations_.rend());
      }
    }
    std::erase_if(operations_, [](const auto& item) { return item.second.what == "copy in"; });
    std::erase_if(operations_, [](const auto& item) { return item.second.what == "copy out"; });
  }

  template <typename Place>
  static void name_copy(Operation& copy, const std::string& op, const std::vector<MemoryRange>& memory,
                        Place from, Place to) {
    const auto found = std::find_if(from, to, [&](const auto& item) {
      return item.second.what.starts_with(op) && item.second.touches(memory);
    });
    if (found != to) copy.what += found->second.what.substr(op.size());
  }

  void name_streams() {
    streams_[{device_, 0}] = "compute";
    streams_[kHost] = "host";
    for (const auto& [entry, each] : operations_) {
      if (each.what.starts_with("gather")) streams_[each.stream] = "communication";
    }
    for (const auto& [entry, each] : operations_) {
      if (each.what.starts_with("all-reduce")) streams_.try_emplace(each.stream, "replicas");
    }
    for (const auto& [entry, each] : operations_) streams_.try_emplace(each.stream, "copies");
  }

  void tell_again() {
    std::set<std::string> seen;
    for (auto& [entry, each] : operations_) {
      if (!seen.insert(each.what).second) each.what += " again";
    }
  }

  void follow(size_t i) {
    const Entry& entry = log_[i];
    const bool of_host = entry.stream == kHost;
    if (!of_host && entry.stream.device != device_) return;
    switch (entry.kind) {
      case Entry::Kind::kOperation: {
        auto place = operations_.find(i);
        if (place == operations_.end()) return;
        Operation& operation = place->second;
        operation.known = knows(entry.stream);
        known_[entry.stream].insert(i);
        lines_.push_back(name_of(entry.stream) + ": " + operation.what);
        return;
      }
      case Entry::Kind::kRecord:
        events_[entry.event] = {entry.stream, knows(entry.stream)};
        return;
      case Entry::Kind::kWait: {
        if (entry.event < 0 && entry.other.device != device_) return;
        if (entry.event >= 0 && !events_.contains(entry.event)) return;
        host_waits_ += of_host;
        const Known learnt = entry.event < 0 ? knows(entry.other) : events_.at(entry.event).known;
        Known& known = known_[entry.stream];
        Known fresh;
        std::set_difference(learnt.begin(), learnt.end(), known.begin(), known.end(),
                            std::inserter(fresh, fresh.end()));
        if (fresh.empty()) return;
        known.insert(fresh.begin(), fresh.end());
        // A stream that does nothing passes on what it has waited for.
        if (streams_.contains(entry.stream))
          lines_.push_back(name_of(entry.stream) + " waits for " + operations_.at(*fresh.rbegin()).what);
        return;
      }
      case Entry::Kind::kAllocate:
      case Entry::Kind::kFree:
        return;
    }
  }

  std::string name_of(StreamName stream) const {
    const auto place = streams_.find(stream);
    return place == streams_.end() ? "another stream" : place->second;
  }

  /// What is launched on a stream comes after all that the host has waited for.
  const Known& knows(StreamName stream) {
    const Known host = known_[kHost];
    Known& known = known_[stream];
    known.insert(host.begin(), host.end());
    return known;
  }

  int device_;
  std::vector<Entry> log_;
  Operation* last_ = nullptr;
  std::map<size_t, Operation> operations_;  ///< by entry
  std::map<StreamName, std::string> streams_;
  std::map<StreamName, Known> known_;
  std::map<int64_t, EventKnows> events_;
  Lines lines_;
  int host_waits_ = 0;
};

}  // namespace fsdp::testing
