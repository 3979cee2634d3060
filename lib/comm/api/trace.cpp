#include "comm/api/trace.h"

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/util/error.h"
#include "base/util/log.h"
#include "comm/api/forwarding_communicator.h"

namespace fsdp::comm {

Trace::~Trace() {
  if (!file_.is_open()) return;
  for (const TraceEvent& event : pending_) file_ << trace_line(event) << '\n';
}

void Trace::open(const std::filesystem::path& path) {
  std::lock_guard lock(mutex_);
  path_ = path;
  file_.open(path, std::ios::app);
  if (!file_) util::fail(ErrorKind::kIo, "cannot open ", path.string(), ": ", util::errno_text(errno));
  write_complete();
}

void Trace::begin_step(int64_t step) {
  std::lock_guard lock(mutex_);
  step_ = step;
  if (file_.is_open()) file_.flush();
}

uint64_t Trace::issued(const char* op, const CallSite& site, int64_t bytes) {
  std::lock_guard lock(mutex_);
  pending_.push_back({.step = step_,
                      .op = op,
                      .unit = site.unit,
                      .pass_or_event = site.pass,
                      .bytes = bytes,
                      .issue_us = now_us()});
  return first_pending_ + pending_.size() - 1;
}

void Trace::started(uint64_t number) { take_time(number, &TraceEvent::start_us); }
void Trace::finished(uint64_t number) { take_time(number, &TraceEvent::done_us); }
void Trace::waits(uint64_t number) { take_time(number, &TraceEvent::wait_us); }

void Trace::take_time(uint64_t number, std::optional<double> TraceEvent::*time) {
  std::lock_guard lock(mutex_);
  pending(number).*time = now_us();
  write_complete();
}

void Trace::left_alone(uint64_t number) {
  std::lock_guard lock(mutex_);
  pending(number).left_alone = true;
  write_complete();
}

uint64_t Trace::computes(const std::string& unit, const char* pass, bool has_no_end) {
  std::lock_guard lock(mutex_);
  const double now = now_us();
  pending_.push_back({.step = step_,
                      .op = "compute",
                      .unit = unit,
                      .pass_or_event = pass,
                      .issue_us = now,
                      .start_us = now,
                      .left_alone = has_no_end});
  return first_pending_ + pending_.size() - 1;
}

void Trace::buffer(bool allocated, const std::string& unit, const char* kind, int64_t bytes) {
  std::lock_guard lock(mutex_);
  pending_.push_back({.step = step_,
                      .op = "buffer",
                      .unit = unit,
                      .pass_or_event = allocated ? "allocate" : "free",
                      .bytes = bytes,
                      .issue_us = now_us(),
                      .buffer_kind = kind});
  write_complete();
}

std::vector<TraceEvent> Trace::events(int64_t step) const {
  std::lock_guard lock(mutex_);
  std::vector<TraceEvent> found;
  std::copy_if(pending_.begin(), pending_.end(), std::back_inserter(found),
               [&](const TraceEvent& event) { return event.step == step; });
  return found;
}

double Trace::now_us() const {
  return std::chrono::duration<double, std::micro>(Clock::now() - began_).count();
}

TraceEvent& Trace::pending(uint64_t number) { return pending_.at(number - first_pending_); }

/// Writes events in order of issue: a complete event waits for those issued before it.
void Trace::write_complete() {
  if (!file_.is_open()) return;
  while (!pending_.empty() && pending_.front().complete()) {
    file_ << trace_line(pending_.front()) << '\n';
    pending_.pop_front();
    ++first_pending_;
  }
  if (file_) return;
  util::log_warning("cannot write " + path_.string() + ": the trace ends here");
  file_.close();
}

namespace {

class TracedWork final : public Work {
 public:
  TracedWork(WorkPtr collective, WorkPtr end, std::shared_ptr<Trace> trace, uint64_t number)
      : collective_(std::move(collective)), end_(std::move(end)), trace_(std::move(trace)), number_(number) {}
  ~TracedWork() override {
    if (!waited_) trace_->left_alone(number_);
  }

  void wait() override {
    note();
    collective_->wait();
    end_->wait();
  }
  void synchronize() override {
    note();
    collective_->synchronize();
    end_->synchronize();
  }

 private:
  void note() {
    waited_ = true;
    trace_->waits(number_);
  }

  WorkPtr collective_, end_;
  std::shared_ptr<Trace> trace_;
  uint64_t number_;
  bool waited_ = false;
};

class TracingCommunicator final : public ForwardingCommunicator {
 public:
  TracingCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<Trace> trace)
      : ForwardingCommunicator(std::move(inner)), trace_(std::move(trace)) {}

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    return make_tracing_communicator(inner().new_group(name, ranks), trace_);
  }

 protected:
  WorkPtr collective(const Collective& call, const CallSite& site) override {
    if (call.kind == Collective::Kind::kBarrier) return call.issue(inner(), site);
    const uint64_t number = trace_->issued(call.name(), site, call.link_bytes(world_size()));
    inner().enqueue([trace = trace_, number] { trace->started(number); });
    WorkPtr issued = call.issue(inner(), site);
    WorkPtr end = inner().enqueue([trace = trace_, number] { trace->finished(number); });
    return std::make_unique<TracedWork>(std::move(issued), std::move(end), trace_, number);
  }

 private:
  std::shared_ptr<Trace> trace_;
};

}  // namespace

std::shared_ptr<Communicator> make_tracing_communicator(std::shared_ptr<Communicator> inner,
                                                        std::shared_ptr<Trace> trace) {
  return std::make_shared<TracingCommunicator>(std::move(inner), std::move(trace));
}

}  // namespace fsdp::comm
