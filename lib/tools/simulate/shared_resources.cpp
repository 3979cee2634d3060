#include "tools/simulate/shared_resources.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/util/error.h"

namespace fsdp::simulate {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;    ///< tolerance for speeds and shares
constexpr double kLeastSpeed = 1e-6;  ///< lower bound, so that all activities end

}  // namespace

SharedResources::ActivityNumber SharedResources::start(double seconds, std::vector<Use> uses, double weight) {
  if (!(seconds > 0)) return 0;
  for (const Use& use : uses) FSDP_CHECK(use.resource < resources_ && use.share <= 1 + kRounding, use.share);
  running_[++started_] = {.left = seconds, .uses = std::move(uses), .weight = weight};
  share_out();
  return started_;
}

double SharedResources::until_next() const {
  double seconds = kForever;
  for (const auto& [activity, running] : running_) seconds = std::min(seconds, running.left / running.speed);
  return seconds;
}

void SharedResources::pass(double seconds) {
  bool any_ended = false;
  for (auto entry = running_.begin(); entry != running_.end();) {
    Running& running = entry->second;
    // An activity that ends leaves no rest by rounding.
    if (running.left / running.speed <= seconds * (1 + kRounding)) {
      entry = running_.erase(entry);
      any_ended = true;
    } else {
      running.left -= seconds * running.speed;
      ++entry;
    }
  }
  if (any_ended) share_out();
}

/// The level at which the `left` part of a resource is used up: each user gets its share, but at most level x
/// weight; infinite if there is enough.
double SharedResources::level(Resource resource, double left, const std::vector<Running*>& undecided) {
  struct Demand {
    double share, weight;
  };
  std::vector<Demand> demands;
  double sum = 0;
  for (const Running* running : undecided) {
    for (const Use& use : running->uses) {
      if (use.resource != resource || use.share <= 0) continue;
      demands.push_back({use.share, running->weight});
      sum += use.share;
    }
  }
  if (sum <= left + kRounding) return kForever;
  std::ranges::sort(demands, {}, [](const Demand& demand) { return demand.share / demand.weight; });
  double weights = 0;
  for (const Demand& demand : demands) weights += demand.weight;
  for (const Demand& demand : demands) {
    const double level = std::max(left, 0.0) / weights;
    if (demand.share > level * demand.weight) return level;
    left -= demand.share;
    weights -= demand.weight;
  }
  return kForever;
}

void SharedResources::share_out() {
  std::vector<double> left(resources_, 1);
  std::vector<Running*> undecided;
  for (auto& [activity, running] : running_) {
    running.speed = 1;
    undecided.push_back(&running);
  }
  while (!undecided.empty()) {
    Resource contended = 0;
    double least = kForever;
    for (Resource resource = 0; resource < resources_; ++resource) {
      const double of_resource = level(resource, left[resource], undecided);
      if (of_resource < least) {
        least = of_resource;
        contended = resource;
      }
    }
    if (least == kForever) return;
    // Activities that the level limits are decided; what they use of other resources is taken.
    std::erase_if(undecided, [&](Running* running) {
      const auto use = std::ranges::find(running->uses, contended, &Use::resource);
      if (use == running->uses.end() || use->share <= least * running->weight) return false;
      running->speed = std::max(least * running->weight / use->share, kLeastSpeed);
      for (const Use& each : running->uses) left[each.resource] -= each.share * running->speed;
      return true;
    });
  }
}

}  // namespace fsdp::simulate
