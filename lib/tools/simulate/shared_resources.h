#pragma once

// SharedResources: activities that use cores and links, and their speed beside each other.
//
// An activity takes a known time when it is alone, and uses shares of some resources meanwhile. A resource of
// which the running activities want more than there is is divided by max-min fairness: activities that want
// more than a level get that level, weighted, and those that want less are not slowed down. So two activities
// that each need a whole link take twice as long. The most contended resource is divided first.

#include <cstddef>
#include <map>
#include <vector>

namespace fsdp::simulate {

class SharedResources {
 public:
  using Resource = size_t;
  using ActivityNumber = size_t;  ///< number of an activity; 0: none, which is done

  struct Use {
    Resource resource = 0;
    double share = 0;  ///< share of the resource at full speed; at most 1
  };

  Resource add() { return resources_++; }

  /// Starts an activity that takes `seconds` alone. `weight`, above 0, is its part of a scarce resource
  /// relative to others.
  ActivityNumber start(double seconds, std::vector<Use> uses, double weight = 1);
  bool is_done(ActivityNumber activity) const { return !running_.contains(activity); }

  /// Seconds until the first activity ends if no other begins before; infinite if none runs.
  double until_next() const;
  /// Lets time pass. Requires: `seconds` is at most until_next().
  void pass(double seconds);

 private:
  struct Running {
    double left = 0;  ///< seconds at full speed
    std::vector<Use> uses = {};
    double weight = 1;
    double speed = 1;
  };
  static double level(Resource resource, double left, const std::vector<Running*>& undecided);
  void share_out();

  std::map<ActivityNumber, Running> running_;
  size_t resources_ = 0, started_ = 0;
};

}  // namespace fsdp::simulate
