#pragma once

// SharedResources: activities that use cores and links, and how fast they are beside each other.
//
// An activity takes a set time when it is alone, and uses a share of some resources meanwhile. Where those under
// way ask for more of a resource than there is, it is divided fairly: all that ask for more than a level get that
// level, weighted, and those that ask for less are not held up (max-min fairness). So two activities that each need
// all of a link take twice as long. The most contended resource is divided first.

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
  static double level(Resource resource, double left, const std::vector<Running*>& undecided);
  void share_out();

  std::map<Activity, Running> running_;
  size_t resources_ = 0, started_ = 0;
};

}  // namespace fsdp::simulate
