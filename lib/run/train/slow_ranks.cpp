#include "run/train/slow_ranks.h"

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::train {
namespace {

/// Returns the median of the other ranks. The median of all would, with two ranks, be half the slow rank's
/// own.
double median_of_others(std::vector<double> paces, size_t rank) {
  paces.erase(paces.begin() + static_cast<std::ptrdiff_t>(rank));
  std::ranges::sort(paces);
  const size_t middle = paces.size() / 2;
  return paces.size() % 2 == 1 ? paces[middle] : (paces[middle - 1] + paces[middle]) / 2;
}

}  // namespace

SlowRanks::SlowRanks(const SlowRankOptions& options, std::vector<std::string> hosts)
    : options_(options), hosts_(std::move(hosts)), ranks_(hosts_.size()) {
  FSDP_CHECK(hosts_.size() > 1 && options.factor > 0);
}

std::vector<SlowRanks::Message> SlowRanks::add(int64_t step, int64_t steps,
                                               const std::vector<double>& paces) {
  FSDP_CHECK(paces.size() == ranks_.size());
  std::vector<Message> messages;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const double median = median_of_others(paces, i);
    Rank& state = ranks_[i];
    state.factor = median > 0 ? paces[i] / median : 1;
    const bool is_slow = state.factor >= options_.factor;
    if (is_slow == state.named) {
      state = {.named = state.named, .factor = state.factor};
      continue;
    }
    if (state.steps == 0) state.first_step = step - steps + 1;
    state.steps += steps;
    state.sum_of_factors += state.factor * static_cast<double>(steps);
    if (state.steps < options_.steps) continue;
    messages.push_back(message(static_cast<int>(i), state));
    state = {.named = is_slow, .factor = state.factor};
  }
  return messages;
}

SlowRanks::Message SlowRanks::message(int rank, const Rank& state) const {
  const std::string who = concat("rank ", rank, " on ", hosts_[static_cast<size_t>(rank)]);
  const std::string how =
      concat(util::fixed(state.sum_of_factors / static_cast<double>(state.steps), 2), " times");
  if (state.named) {
    return {false, concat(who, " is no longer slow: since step ", state.first_step, " it has needed ", how,
                          " the time of the other ranks for the same work")};
  }
  return {true, concat(who, " is slow: since step ", state.first_step, " it has needed ", how,
                       " the time of the other ranks for the same work, and all of them wait for it; "
                       "look on that host for other processes, throttled or shared cores, swapping, and "
                       "slow storage of the data")};
}

RankFactor SlowRanks::slowest() const {
  const auto slowest = std::ranges::max_element(ranks_, {}, &Rank::factor);
  const auto rank = slowest - ranks_.begin();
  return {static_cast<int>(rank), hosts_[static_cast<size_t>(rank)], slowest->factor};
}

std::optional<RankFactor> SlowRanks::slowest_named() const {
  std::optional<RankFactor> slowest;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].named || (slowest && slowest->factor >= ranks_[i].factor)) continue;
    slowest = {static_cast<int>(i), hosts_[i], ranks_[i].factor};
  }
  return slowest;
}

}  // namespace fsdp::train
