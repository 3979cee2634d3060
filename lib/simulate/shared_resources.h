#pragma once

// SharedResources: activities that use cores and links, and how fast they are beside each other.
//
// An activity takes a set time when it is alone, and uses a share of some resources meanwhile. Where those under
// way ask for more of a resource than there is, they slow down: the largest share that an activity uses grows
// alike for all, weighted, until it has its full speed or a resource that it uses is exhausted (Ghodsi et al.:
// Dominant Resource Fairness, NSDI 2011). So two activities that each need all of a link take twice as long, and
// one that needs little of it is not held up.

#include <cstddef>
#include <map>
#include <vector>

namespace fsdp::simulate {

class SharedResources {
 public:
  using Resource = size_t;
  using Activity = size_t;  ///< 0: none, which is done

  struct Use {
    Resource resource = 0;
    double share = 0;  ///< of the resource, of an activity at its full speed; at most 1
  };

  Resource add() { return resources_++; }

  /// Alone it takes `seconds`; above 0, `weight` is the part that it gets of what is short, against others'.
  Activity start(double seconds, std::vector<Use> uses, double weight = 1);
  bool is_done(Activity activity) const { return !running_.contains(activity); }

  /// Until the first activity ends, if none begins before; infinite if none is under way.
  double until_next() const;
  /// At most until_next().
  void pass(double seconds);

 private:
  struct Running {
    double left = 0;  ///< seconds at full speed
    std::vector<Use> uses = {};
    double weight = 1;
    double speed = 1;
  };
  void share_out();

  std::map<Activity, Running> running_;
  size_t resources_ = 0, started_ = 0;
};

}  // namespace fsdp::simulate
