#include "tools/plan/communication_streams.h"

#include <algorithm>
#include <vector>

namespace fsdp::plan {

CommunicationStreams::Job CommunicationStreams::issue(size_t stream, size_t link, double seconds, Job after) {
  streams_[stream].push_back({.job = ++issued_, .after = after, .link = link, .left = seconds});
  return issued_;
}

bool CommunicationStreams::is_done(Job job) const {
  return std::ranges::none_of(streams_, [job](const auto& stream) {
    return std::ranges::any_of(stream.second,
                               [job](const StreamedJob& pending) { return pending.job == job; });
  });
}

double CommunicationStreams::pass(double seconds) {
  std::vector<std::deque<StreamedJob>*> running;
  std::map<size_t, double> users;  // keyed by link
  for (auto& [number, stream] : streams_) {
    if (stream.empty() || !is_done(stream.front().after)) continue;
    running.push_back(&stream);
    ++users[stream.front().link];
  }
  const auto seconds_left = [&users](const std::deque<StreamedJob>* stream) {
    return stream->front().left * users.at(stream->front().link);
  };
  for (const auto* stream : running) seconds = std::min(seconds, seconds_left(stream));
  for (auto* stream : running) {
    // A collective that ends leaves no rest by rounding.
    if (seconds_left(stream) <= seconds) {
      stream->pop_front();
    } else {
      stream->front().left -= seconds / users.at(stream->front().link);
    }
  }
  return seconds;
}

}  // namespace fsdp::plan
