#pragma once

// CommunicationStreams: collectives of known durations in concurrent streams. Collectives of one stream run
// one after another; those of different streams that use the same link share its speed equally while they run
// together.

#include <cstddef>
#include <deque>
#include <map>

namespace fsdp::plan {

class CommunicationStreams {
 public:
  using Job = size_t;  ///< number of a collective; 0: none, which is done

  /// Puts a collective behind the last one of `stream`; alone on `link` it takes `seconds`. It begins when
  /// `after` is done.
  Job issue(size_t stream, size_t link, double seconds, Job after = 0);
  bool is_done(Job job) const;

  /// Lets `seconds` pass, but at most until the first collective ends. Returns the time that has passed.
  double pass(double seconds);

 private:
  struct StreamedJob {
    Job job, after;
    size_t link;
    double left;  ///< seconds alone on the link
  };

  std::map<size_t, std::deque<StreamedJob>> streams_;
  Job issued_ = 0;
};

}  // namespace fsdp::plan
