#include "comm/queued_communicator.h"

#include "comm/forwarding_communicator.h"
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

class QueuedCommunicator final : public ForwardingCommunicator {
 public:
  QueuedCommunicator(std::shared_ptr<Communicator> inner, const std::string& thread_name)
      : ForwardingCommunicator(std::move(inner)), stream_({.name = thread_name}) {}

  std::unique_ptr<Work> enqueue(std::function<void()> task) override {
    return std::make_unique<QueuedWork>(stream_.run(std::move(task)));
  }
  std::unique_ptr<Work> enqueue_release(std::function<void()> task) override {
    return enqueue(std::move(task));
  }

 protected:
  std::unique_ptr<Work> collective(const Collective& call, const CallSite& site) override {
    check(call, site);
    return push(
        site, [call](Communicator& inner, const CallSite& its_site) { call.issue(inner, its_site)->wait(); });
  }
  std::unique_ptr<Work> enqueue_with_memory(int64_t nbytes, const CallSite& site,
                                            std::function<void(c10::DataPtr)> task) override {
    return push(site, [nbytes, task = std::move(task)](Communicator& inner, const CallSite& its_site) {
      inner.common_memory()->enqueue_with_memory(nbytes, its_site, task)->wait();
    });
  }
  std::shared_ptr<Communicator> new_subgroup(const std::string& name,
                                             const std::vector<int>& ranks) override {
    return std::make_shared<QueuedCommunicator>(inner().subgroup(name, ranks), "fsdp " + name);
  }

 private:
  /// At the call, where the stack says who is wrong.
  void check(const Collective& call, const CallSite& site) const {
    using Kind = Collective::Kind;
    if (call.kind == Kind::kBroadcast) {
      FSDP_CHECK(call.root >= 0 && call.root < world_size(), "broadcast of ", site.unit, " from rank ",
                 call.root);
    }
    if (call.kind != Kind::kAllGather && call.kind != Kind::kReduceScatter) return;
    const at::Tensor& part = call.payload();
    const at::Tensor& whole = call.kind == Kind::kAllGather ? call.output : call.input;
    FSDP_CHECK(whole.numel() == part.numel() * world_size() && whole.scalar_type() == part.scalar_type(),
               call.name(), " of ", site.unit, ": ", whole.numel(), " elements of ",
               c10::toString(whole.scalar_type()), " and a part of ", part.numel(), " of ",
               c10::toString(part.scalar_type()), " on ", world_size(), " ranks");
  }

  template <typename Operation>
  std::unique_ptr<Work> push(const CallSite& site, Operation operation) {
    return enqueue(
        [inner = shared_inner(), unit = site.unit, pass = std::string(site.pass),
         operation = std::move(operation)] { operation(*inner, {.unit = unit, .pass = pass.c_str()}); });
  }

  util::Stream stream_;
};

}  // namespace

std::shared_ptr<Communicator> make_queued_communicator(std::shared_ptr<Communicator> inner) {
  if (inner->world_size() == 1) return inner;
  return std::make_shared<QueuedCommunicator>(std::move(inner), "fsdp comm");
}

}  // namespace fsdp::comm
