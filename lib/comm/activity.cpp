#include "comm/activity.h"

#include <utility>

#include "util/clock.h"
#include "util/text.h"

namespace fsdp::comm {
namespace {

class NotingCommunicator final : public Communicator {
 public:
  NotingCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<Activity> activity)
      : inner_(std::move(inner)), activity_(std::move(activity)) {}

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  std::string backend_name() const override { return inner_->backend_name(); }

  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const CallSite& site) override {
    return noted("all_gather", site, [&] { inner_->all_gather(output, input, site)->wait(); });
  }
  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CallSite& site) override {
    return noted("reduce_scatter", site, [&] { inner_->reduce_scatter(output, input, site)->wait(); });
  }
  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    return noted("all_reduce", site, [&] { inner_->all_reduce(tensor, op, site)->wait(); });
  }
  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    return noted("broadcast", site, [&] { inner_->broadcast(tensor, root, site)->wait(); });
  }
  void barrier(const CallSite& site) override {
    noted("barrier", site, [&] { inner_->barrier(site); });
  }
  std::unique_ptr<Work> enqueue(std::function<void()> task) override {
    return inner_->enqueue(std::move(task));
  }
  at::Device device() const override { return inner_->device(); }
  std::unique_ptr<Work> enqueue_release(std::function<void()> task) override {
    return inner_->enqueue_release(std::move(task));
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override { return inner_->allocate(numel, dtype); }
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override {
    return inner_->allocate_on_host(numel, dtype);
  }
  std::unique_ptr<Work> enqueue_with_common_memory(int64_t nbytes, const CallSite& site,
                                                   std::function<void(c10::DataPtr)> task) override {
    return noted("all_gather", site,
                 [&] { inner_->enqueue_with_common_memory(nbytes, site, std::move(task))->wait(); });
  }
  bool has_common_memory() const override { return inner_->has_common_memory(); }
  void reserve_common_memory(int64_t nbytes) override { inner_->reserve_common_memory(nbytes); }
  std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    if (auto existing = existing_subgroup(name, ranks)) return existing;
    return make_noting_communicator(inner_->subgroup(name, ranks), activity_);
  }

 private:
  template <typename Collective>
  std::unique_ptr<Work> noted(const char* op, const CallSite& site, const Collective& collective) {
    int64_t number = activity_->begin_collective(op, site);
    collective();
    activity_->end_collective(number);
    return done_work();
  }

  std::shared_ptr<Communicator> inner_;
  std::shared_ptr<Activity> activity_;
};

}  // namespace

void Activity::begin_step(int64_t step) {
  std::lock_guard lock(mutex_);
  state_.step = step;
  ++state_.steps_begun;
  step_began_ = Clock::now();
}

int64_t Activity::begin_collective(const char* op, const CallSite& site) {
  std::lock_guard lock(mutex_);
  in_progress_[next_number_] = {util::concat(op, " of ", site.unit, " (", site.pass, ")"), Clock::now()};
  return next_number_++;
}

void Activity::end_collective(int64_t number) {
  std::lock_guard lock(mutex_);
  auto ended = in_progress_.extract(number);
  state_.last = std::move(ended.mapped().text);
  ++state_.collectives;
  last_ended_ = Clock::now();
}

Activity::Snapshot Activity::snapshot() const {
  std::lock_guard lock(mutex_);
  Snapshot now = state_;
  std::vector<std::string> texts;
  for (const auto& [number, collective] : in_progress_) texts.push_back(collective.text);
  now.collective = util::join(texts, " and ");
  now.seconds = util::seconds_since(in_progress_.empty() ? last_ended_ : in_progress_.begin()->second.began);
  now.step_seconds = util::seconds_since(step_began_);
  return now;
}

std::string describe(const Activity::Snapshot& snapshot) {
  std::string step = snapshot.step == 0 ? "before the first step" : util::concat("step ", snapshot.step);
  std::string seconds = util::concat(util::fixed(snapshot.seconds, 1), " s");
  if (!snapshot.collective.empty()) {
    return util::concat("in ", snapshot.collective, ", ", step, ", for ", seconds);
  }
  if (snapshot.last.empty()) return util::concat("computing, ", step, ", no collective so far");
  return util::concat("computing, ", step, ", ", seconds, " after ", snapshot.last);
}

std::shared_ptr<Communicator> make_noting_communicator(std::shared_ptr<Communicator> inner,
                                                       std::shared_ptr<Activity> activity) {
  return std::make_shared<NotingCommunicator>(std::move(inner), std::move(activity));
}

}  // namespace fsdp::comm
