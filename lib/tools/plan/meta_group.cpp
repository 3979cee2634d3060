#include "tools/plan/meta_group.h"

#include <ATen/ops/empty.h>

#include "base/util/error.h"

namespace fsdp::plan {
namespace {

class MetaWork final : public comm::Work {
 public:
  MetaWork(std::function<void(int64_t)> waits, int64_t number) : waits_(std::move(waits)), number_(number) {}
  void wait() override { waits_(number_); }

 private:
  std::function<void(int64_t)> waits_;
  int64_t number_;
};

}  // namespace

at::Tensor MetaGroup::allocate(int64_t numel, at::ScalarType dtype) {
  return at::empty({numel}, at::TensorOptions().dtype(dtype).device(at::kMeta));
}

std::shared_ptr<comm::Communicator> MetaGroup::new_group(const std::string& name, const std::vector<int>&) {
  util::fail(util::ErrorKind::kUnexpected, "no group ", name, " of meta tensors");
}

std::unique_ptr<comm::Work> MetaGroup::collective(const comm::Collective& call, const comm::CallSite&) {
  const auto payload = static_cast<int64_t>(call.payload().nbytes());
  const int64_t times = call.kind == comm::Collective::Kind::kShift ? 1 : world_size_ - 1;
  return std::make_unique<MetaWork>(events_.waits, events_.sends(payload * times));
}

}  // namespace fsdp::plan
