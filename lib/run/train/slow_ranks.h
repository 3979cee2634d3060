#pragma once

// SlowRanks: finds the ranks that compute more slowly than the others. Collectives wait for the slowest rank,
// so all ranks have the same step time, which does not show the slow one. Paces are compared instead: a
// rank's own seconds per floating-point operation (run/train/rank_paces.h).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::train {

struct SlowRankOptions {
  double factor = 1.5;  ///< training.slow_rank_factor
  int64_t steps = 20;   ///< training.slow_rank_steps
};

/// A rank's pace, relative to the median of the other ranks'.
struct RankFactor {
  int rank = 0;
  std::string host;
  double factor = 1;
};

class SlowRanks {
 public:
  /// `hosts`: name of each rank's host.
  SlowRanks(const SlowRankOptions& options, std::vector<std::string> hosts);

  struct Message {
    bool warns;  ///< a rank is slow; false: it has recovered
    std::string text;
  };

  /// Adds the pace of each rank in the last `steps` steps up to `step`. A rank is named once it has been slow
  /// by the factor for SlowRankOptions::steps steps without a break, and again once it has not been slow for
  /// as many steps.
  std::vector<Message> add(int64_t step, int64_t steps, const std::vector<double>& paces);

  /// Returns the slowest rank by the last paces.
  RankFactor slowest() const;
  /// Returns the slowest of the ranks that the last message about them named as slow; nullopt if there is
  /// none.
  std::optional<RankFactor> slowest_named() const;

 private:
  struct Rank {
    bool named = false;
    double factor = 1;  ///< factor by the last paces
    // Steps since the rank is no longer what the last message about it said:
    int64_t steps = 0, first_step = 0;
    double sum_of_factors = 0;
  };

  Message message(int rank, const Rank& state) const;

  SlowRankOptions options_;
  std::vector<std::string> hosts_;
  std::vector<Rank> ranks_;
};

}  // namespace fsdp::train
