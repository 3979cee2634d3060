#include "comm/queued_communicator.h"

#include "util/error.h"
#include "util/stream.h"

namespace fsdp::comm {
namespace {

class QueuedWork final : public Work {
 public:
  explicit QueuedWork(util::Event done) : done_(std::move(done)) {}
  void wait() override { done_.wait(); }

 private:
  util::Event done_;
};

class QueuedCommunicator final : public Communicator {
 public:
  QueuedCommunicator(std::shared_ptr<Communicator> inner, const std::string& thread_name)
      : inner_(std::move(inner)), stream_({.name = thread_name}) {}

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  std::string backend_name() const override { return inner_->backend_name(); }

  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const CallSite& site) override {
    check_parts("all_gather", output, input, site);
    return push(site, [output, input](Communicator& inner, const CallSite& its_site) {
      inner.all_gather(output, input, its_site)->wait();
    });
  }

  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CallSite& site) override {
    check_parts("reduce_scatter", input, output, site);
    return push(site, [output, input](Communicator& inner, const CallSite& its_site) {
      inner.reduce_scatter(output, input, its_site)->wait();
    });
  }

  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    return push(site, [tensor, op](Communicator& inner, const CallSite& its_site) {
      inner.all_reduce(tensor, op, its_site)->wait();
    });
  }

  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    FSDP_CHECK(root >= 0 && root < world_size(), "broadcast of ", site.unit, " from rank ", root);
    return push(site, [tensor, root](Communicator& inner, const CallSite& its_site) {
      inner.broadcast(tensor, root, its_site)->wait();
    });
  }

  void barrier(const CallSite& site) override {
    push(site, [](Communicator& inner, const CallSite& its_site) { inner.barrier(its_site); })->wait();
  }

  std::unique_ptr<Work> enqueue(std::function<void()> task) override {
    return std::make_unique<QueuedWork>(stream_.run(std::move(task)));
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override { return inner_->allocate(numel, dtype); }

  std::unique_ptr<Work> enqueue_with_common_memory(int64_t nbytes, const CallSite& site,
                                                   std::function<void(c10::DataPtr)> task) override {
    return push(site, [nbytes, task = std::move(task)](Communicator& inner, const CallSite& its_site) {
      inner.enqueue_with_common_memory(nbytes, its_site, task)->wait();
    });
  }
  bool has_common_memory() const override { return inner_->has_common_memory(); }
  void reserve_common_memory(int64_t nbytes) override { inner_->reserve_common_memory(nbytes); }

  std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    if (auto existing = existing_subgroup(name, ranks)) return existing;
    return std::make_shared<QueuedCommunicator>(inner_->subgroup(name, ranks), "fsdp " + name);
  }

 private:
  void check_parts(const char* op, const at::Tensor& whole, const at::Tensor& part, const CallSite& site) {
    FSDP_CHECK(whole.numel() == part.numel() * world_size() && whole.scalar_type() == part.scalar_type(), op,
               " of ", site.unit, ": ", whole.numel(), " elements of ", c10::toString(whole.scalar_type()),
               " and a part of ", part.numel(), " of ", c10::toString(part.scalar_type()), " on ",
               world_size(), " ranks");
  }

  template <typename Collective>
  std::unique_ptr<Work> push(const CallSite& site, Collective collective) {
    return enqueue(
        [inner = inner_, unit = site.unit, pass = std::string(site.pass),
         collective = std::move(collective)] { collective(*inner, {.unit = unit, .pass = pass.c_str()}); });
  }

  std::shared_ptr<Communicator> inner_;
  util::Stream stream_;
};

}  // namespace

std::shared_ptr<Communicator> make_queued_communicator(std::shared_ptr<Communicator> inner) {
  if (inner->world_size() == 1) return inner;
  return std::make_shared<QueuedCommunicator>(std::move(inner), "fsdp comm");
}

}  // namespace fsdp::comm
