#pragma once

// What the ranks of a communicator share: a segment of memory, in which each rank has a slot for its data
// and states which operation it is in.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace standin {

class NcclGroup {
 public:
  static constexpr size_t kSlotBytes = 8 << 20;
  static constexpr int kMostRanks = 64;

  /// Meets the other ranks. Null, with the reason in `why`, if they do not come within a minute.
  static NcclGroup* join(const std::string& name, int rank, int ranks, int device, std::string& why);

  /// Waits for all ranks once; false if the communicator is aborted instead.
  bool connect() { return connected_ = connected_ || barrier(); }
  bool is_connected() const { return connected_; }

  /// Waits for all ranks; false if the communicator is aborted instead.
  bool barrier();

  /// Waits for all ranks, and reports ranks that are in another operation, or with another number of bytes.
  bool agree(const char* operation, size_t bytes);

  char* slot(int rank) const { return data_ + static_cast<size_t>(rank) * kSlotBytes; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int device() const { return device_; }

  /// No operation of the group ends from now on, on any rank; those of this rank are given up.
  void abort();
  bool is_aborted() const { return aborted_; }
  /// A rank whose process is gone, or an injected fault.
  bool has_failed() const { return failed_; }
  void fail() { failed_ = true; }

 private:
  struct Statement {
    char operation[32];
    uint64_t bytes, host;
    int device, process;
  };
  struct Shared {
    std::atomic<int> joined, arrived, round;
    std::atomic<bool> broken;
    Statement statements[kMostRanks];
  };

  bool a_peer_is_gone() const;

  int rank_ = 0, ranks_ = 0, device_ = 0;
  Shared* shared_ = nullptr;
  char* data_ = nullptr;
  std::atomic<bool> aborted_{false}, failed_{false};
  bool connected_ = false;  ///< used by the threads that issue collectives
};

}  // namespace standin
