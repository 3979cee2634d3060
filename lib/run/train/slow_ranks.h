#pragma once

// SlowRanks: finds the ranks that compute more slowly than the others. All steps of a run last equally long, because
// collectives wait for the slowest rank, so its name is not in any rank's step time. Compared are paces: seconds
// of a rank's own per floating-point operation (run/train/rank_paces.h).

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
  /// `hosts`: the name of each rank's host.
  SlowRanks(const SlowRankOptions& options, std::vector<std::string> hosts);

  struct Message {
    bool warns;  ///< a rank is slow; false: it has recovered
    std::string text;
  };

  /// `paces`: of each rank, in the last `steps` steps up to `step`. A rank is named once, when it has been slow by the
  /// factor for so many steps without a break, and again when for as many steps it has not been.
  std::vector<Message> add(int64_t step, int64_t steps, const std::vector<double>& paces);

  /// By the last paces.
  RankFactor slowest() const;
  /// The slowest of the ranks that are named: slow by the last message about them. nullopt: none is.
  std::optional<RankFactor> slowest_named() const;

 private:
  struct Rank {
    bool named = false;
    double factor = 1;  ///< by the last paces
    // Of the steps since which it is not what it was last said to be:
    int64_t steps = 0, first_step = 0;
    double sum_of_factors = 0;
  };

  Message message(int rank, const Rank& state) const;

  SlowRankOptions options_;
  std::vector<std::string> hosts_;
  std::vector<Rank> ranks_;
};

}  // namespace fsdp::train
