#pragma once

// CommunicationStreams: collectives that take set times, in streams beside each other. Those of one stream
// run one after another; those of different streams that use the same link share its speed equally while they
// are under way together.

#include <cstddef>
#include <deque>
#include <map>

namespace fsdp::plan {

class CommunicationStreams {
 public:
  using Job = size_t;  ///< a collective; 0: none, which is done

  /// Puts a collective behind the last one of `stream`; alone on `link` it takes `seconds`. It begins when
  /// `after` is done.
  Job issue(size_t stream, size_t link, double seconds, Job after = 0);
  bool is_done(Job job) const;

  /// Lets `seconds` pass, or as many until the first collective ends. Returns how many have passed.
  double pass(double seconds);

 private:
  struct Pending {
    Job job, after;
    size_t link;
    double left;  ///< seconds alone on the link
  };

  std::map<size_t, std::deque<Pending>> streams_;
  Job issued_ = 0;
};

}  // namespace fsdp::plan
