#include "simulate/shared_resources.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "util/error.h"

namespace fsdp::simulate {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;  ///< of speeds and shares

/// The largest share that an activity uses of a resource.
double dominant(const std::vector<SharedResources::Use>& uses) {
  double most = 0;
  for (const SharedResources::Use& use : uses) most = std::max(most, use.share);
  return most;
}

}  // namespace

SharedResources::Activity SharedResources::start(double seconds, std::vector<Use> uses, double weight) {
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
    // Rounding must leave nothing of what ends.
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

void SharedResources::share_out() {
  std::vector<double> used(resources_, 0);
  std::vector<Running*> growing;
  for (auto& [activity, running] : running_) {
    running.speed = dominant(running.uses) > 0 ? 0 : 1;
    if (running.speed == 0) growing.push_back(&running);
  }
  const auto growth = [](const Running* running) { return running->weight / dominant(running->uses); };
  while (!growing.empty()) {
    // The step of the common level after which one has its full speed or a resource is exhausted.
    std::vector<double> demand(resources_, 0);
    double step = kForever;
    for (const Running* running : growing) {
      step = std::min(step, (1 - running->speed) / growth(running));
      for (const Use& use : running->uses) demand[use.resource] += growth(running) * use.share;
    }
    for (Resource resource = 0; resource < resources_; ++resource) {
      if (demand[resource] > 0) {
        step = std::min(step, std::max(0.0, 1 - used[resource]) / demand[resource]);
      }
    }
    for (Running* running : growing) {
      const double more = growth(running) * step;
      running->speed += more;
      for (const Use& use : running->uses) used[use.resource] += more * use.share;
    }
    std::erase_if(growing, [&used](const Running* running) {
      return running->speed >= 1 - kRounding || std::ranges::any_of(running->uses, [&used](const Use& use) {
               return use.share > 0 && used[use.resource] >= 1 - kRounding;
             });
    });
  }
}

}  // namespace fsdp::simulate
