#include "comm/trace.h"

#include <cerrno>
#include <nlohmann/json.hpp>

#include "util/error.h"
#include "util/log.h"

namespace fsdp::comm {

Trace::~Trace() {
  if (!file_.is_open()) return;
  for (const Event& event : pending_) write(event);
}

void Trace::open(const std::filesystem::path& path) {
  path_ = path;
  file_.open(path, std::ios::app);
  if (!file_) util::fail(util::ErrorKind::kIo, "cannot open ", path.string(), ": ", util::errno_text(errno));
  write_complete();
}

void Trace::begin_step(int64_t step) {
  step_ = step;
  if (file_.is_open()) file_.flush();
}

uint64_t Trace::issued(const char* op, const CallSite& site, int64_t bytes) {
  pending_.push_back({.step = step_,
                      .op = op,
                      .unit = site.unit,
                      .pass_or_event = site.pass,
                      .bytes = bytes,
                      .issue_us = now_us()});
  return first_pending_ + pending_.size() - 1;
}

void Trace::finished(uint64_t number, double wait_us) {
  Event& event = pending_.at(number - first_pending_);
  event.wait_us = wait_us;
  event.done_us = now_us();
  event.complete = true;
  write_complete();
}

void Trace::buffer(bool allocated, const std::string& unit, const char* kind, int64_t bytes) {
  pending_.push_back({.step = step_,
                      .op = "buffer",
                      .unit = unit,
                      .pass_or_event = allocated ? "allocate" : "free",
                      .bytes = bytes,
                      .complete = true,
                      .buffer_kind = kind});
  write_complete();
}

double Trace::now_us() const {
  return std::chrono::duration<double, std::micro>(Clock::now() - began_).count();
}

/// An event waits for those that were issued before it.
void Trace::write_complete() {
  if (!file_.is_open()) return;
  while (!pending_.empty() && pending_.front().complete) {
    write(pending_.front());
    pending_.pop_front();
    ++first_pending_;
  }
  if (file_) return;
  util::log_warning("cannot write " + path_.string() + ": the trace ends here");
  file_.close();
}

void Trace::write(const Event& event) {
  nlohmann::ordered_json line = {{"step", event.step}, {"op", event.op}};
  if (event.buffer_kind != nullptr) {
    line.update({{"event", event.pass_or_event},
                 {"unit", event.unit},
                 {"bytes", event.bytes},
                 {"kind", event.buffer_kind}});
  } else {
    line.update({{"unit", event.unit},
                 {"pass", event.pass_or_event},
                 {"bytes", event.bytes},
                 {"issue_us", event.issue_us}});
    // A collective that failed, or that nobody waited for, has no end.
    if (event.complete) line.update({{"wait_us", event.wait_us}, {"done_us", event.done_us}});
  }
  file_ << line.dump() << '\n';
}

namespace {

class TracedWork final : public Work {
 public:
  TracedWork(std::unique_ptr<Work> inner, std::shared_ptr<Trace> trace, uint64_t number)
      : inner_(std::move(inner)), trace_(std::move(trace)), number_(number) {}

  void wait() override {
    double wait_us = trace_->now_us();
    inner_->wait();
    trace_->finished(number_, wait_us);
  }

 private:
  std::unique_ptr<Work> inner_;
  std::shared_ptr<Trace> trace_;
  uint64_t number_;
};

class TracingCommunicator final : public Communicator {
 public:
  TracingCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<Trace> trace)
      : inner_(std::move(inner)), trace_(std::move(trace)) {}

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  std::string backend_name() const override { return inner_->backend_name(); }

  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const CallSite& site) override {
    return traced("all_gather", site, input, [&] { return inner_->all_gather(output, input, site); });
  }
  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CallSite& site) override {
    return traced("reduce_scatter", site, output,
                  [&] { return inner_->reduce_scatter(output, input, site); });
  }
  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    return traced("all_reduce", site, tensor, [&] { return inner_->all_reduce(tensor, op, site); });
  }
  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    return traced("broadcast", site, tensor, [&] { return inner_->broadcast(tensor, root, site); });
  }
  void barrier(const CallSite& site) override { inner_->barrier(site); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override { return inner_->allocate(numel, dtype); }

 private:
  template <typename Issue>
  std::unique_ptr<Work> traced(const char* op, const CallSite& site, const at::Tensor& payload,
                               const Issue& issue) {
    uint64_t number = trace_->issued(op, site, static_cast<int64_t>(payload.nbytes()));
    return std::make_unique<TracedWork>(issue(), trace_, number);
  }

  std::shared_ptr<Communicator> inner_;
  std::shared_ptr<Trace> trace_;
};

}  // namespace

std::shared_ptr<Communicator> make_tracing_communicator(std::shared_ptr<Communicator> inner,
                                                        std::shared_ptr<Trace> trace) {
  return std::make_shared<TracingCommunicator>(std::move(inner), std::move(trace));
}

}  // namespace fsdp::comm
