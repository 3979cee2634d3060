#include "model/nn/offload.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/device/pinned_memory.h"
#include "base/tensor/saved_tensors.h"
#include "base/tensor/stream.h"
#include "base/util/error.h"
#include "model/kernels/meta.h"

namespace fsdp::nn {
namespace {

/// All memory of a storage as bytes.
at::Tensor bytes_of(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  return at::empty({0}, tensor.options().dtype(at::kByte))
      .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

}  // namespace

class HostActivations : public std::enable_shared_from_this<HostActivations> {
 public:
  explicit HostActivations(const OffloadOptions& options) : options_(options) {}
  ~HostActivations() {
    try {
      free_unused(0);
    } catch (const std::exception&) {  // of a broken stream, whose user has seen it
    }
  }
  HostActivations(const HostActivations&) = delete;
  HostActivations& operator=(const HostActivations&) = delete;

  class Content;
  class Visit;
  class SavedTensor;

  bool serves(const at::Tensor& input) const {
    return input.defined() && (options_.everywhere || kernels::is_for_cuda(input));
  }

  /// The content to move for a tensor that the visited stage saves; null if the tensor stays.
  std::shared_ptr<Content> content_of(const at::Tensor& tensor, Visit& visit);

  /// The visit's stage has run, and the visit may have contents that leave the device.
  void has_run(const std::shared_ptr<Visit>& visit);

  /// The last visit that has saved a tensor.
  std::weak_ptr<Visit> last_visit;

 private:
  /// Returns [at least bytes] of host memory, given back by give_back().
  at::Tensor take_memory(int64_t bytes, at::Device device) {
    const auto found = unused_.lower_bound(bytes);
    if (found != unused_.end() && found->first <= bytes + bytes / 4) {
      at::Tensor memory = std::move(found->second);
      unused_.erase(found);
      unused_bytes_ -= memory.numel();
      return memory;
    }
    free_unused(bytes);
    return device.is_cpu() ? at::empty({bytes}, at::kByte) : util::empty_pinned(bytes, at::kByte, device);
  }
  void give_back(at::Tensor memory) {
    const int64_t bytes = memory.numel();
    unused_bytes_ += bytes;
    unused_.emplace(bytes, std::move(memory));
  }
  /// Frees unused memory until at most so many bytes of it are left: of steps with other sizes.
  void free_unused(int64_t most_bytes) {
    if (unused_bytes_ <= most_bytes) return;
    last_copy_.synchronize();
    while (unused_bytes_ > most_bytes) {
      unused_bytes_ -= unused_.begin()->first;
      unused_.erase(unused_.begin());
    }
  }

  util::Event copy(at::Tensor to, at::Tensor from) {
    const at::Device device = from.is_cpu() ? to.device() : from.device();
    if (!copies_) copies_.emplace(util::StreamOptions{.name = "fsdp activations", .device = device});
    last_copy_ =
        copies_->run([to = std::move(to), from = std::move(from)] { to.copy_(from, /*non_blocking=*/true); });
    return last_copy_;
  }

  const OffloadOptions options_;
  std::unordered_map<const c10::StorageImpl*, std::weak_ptr<Content>> on_device_;  ///< those that leave
  struct Leaving {
    int64_t since;  ///< number of stages that had run
    std::weak_ptr<Visit> visit;
  };
  std::deque<Leaving> leaving_;
  int64_t stages_run_ = 0;
  std::multimap<int64_t, at::Tensor> unused_;  ///< keys are bytes
  int64_t unused_bytes_ = 0;
  util::Event last_copy_;
  std::optional<util::Stream> copies_;  ///< stopped first
};

/// What was in the memory of saved tensors.
class HostActivations::Content {
 public:
  Content(std::shared_ptr<HostActivations> home, const at::Tensor& tensor)
      : home_(std::move(home)), on_device_(bytes_of(tensor)), bytes_(on_device_.numel()) {
    options_ = on_device_.options();
    if (on_device_.is_meta()) {
      kernels::meta_device().copies.keep(bytes_);
      number_ = kernels::meta_device().copies.begin(bytes_);
    } else {
      on_host_ = home_->take_memory(bytes_, on_device_.device());
      moved_ = home_->copy(on_host_.narrow(0, 0, bytes_), on_device_);
    }
  }
  ~Content() {
    try {
      // What has the device's memory next must not write it before a copy has ended.
      if (on_device_.defined()) wait();
    } catch (const std::exception&) {  // of a broken stream: the next copy throws it
    }
    forget();
    if (options_.device().is_meta()) {
      kernels::meta_device().copies.keep(-bytes_);
    } else {
      home_->give_back(std::move(on_host_));
    }
  }
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  /// Frees the memory on the device. Requires: the content is not in use.
  void leave() {
    if (!on_device_.defined()) return;
    wait();
    forget();
    on_device_.reset();
  }

  /// Begins to bring the content back to the device.
  void fetch() {
    if (on_device_.defined()) return;
    on_device_ = at::empty({bytes_}, options_);
    is_back_ = true;
    if (on_device_.is_meta()) {
      number_ = kernels::meta_device().copies.begin(bytes_);
    } else {
      moved_ = home_->copy(on_device_, on_host_.narrow(0, 0, bytes_));
    }
  }

  /// Returns the device's memory, for the caller's stream.
  c10::Storage storage() {
    fetch();
    if (is_back_) wait();
    return on_device_.storage();
  }

 private:
  void wait() {
    if (!options_.device().is_meta()) return moved_.wait();
    if (number_) kernels::meta_device().copies.wait(*std::exchange(number_, std::nullopt));
  }
  void forget() {
    if (on_device_.defined()) home_->on_device_.erase(on_device_.storage().unsafeGetStorageImpl());
  }

  std::shared_ptr<HostActivations> home_;
  at::Tensor on_device_;  ///< [bytes]; undefined: only in host memory
  int64_t bytes_;
  at::TensorOptions options_;
  at::Tensor on_host_;             ///< [at least bytes]; undefined for meta tensors
  util::Event moved_;              ///< the last copy
  std::optional<int64_t> number_;  ///< that of a meta tensor's last copy, until it has been waited for
  bool is_back_ = false;
};

/// A stage in one forward pass. Lives as long as tensors that it has saved.
class HostActivations::Visit {
 public:
  Visit(std::shared_ptr<HostActivations> home, bool moves, Stage& stage, const StageContext& context)
      : home(std::move(home)), moves(moves), stage_(stage), context_(context) {}

  /// The stage has saved its first tensor, or one more.
  void saves(const std::shared_ptr<Visit>& self) {
    if (is_known_) return;
    is_known_ = true;
    before_ = home->last_visit.lock();
    home->last_visit = self;
  }

  bool has_contents() const { return !contents_.empty(); }
  void add(const std::shared_ptr<Content>& content) { contents_.emplace_back(content); }
  void leave() {
    for (const auto& each : contents_) {
      if (const auto content = each.lock()) content->leave();
    }
  }

  /// The stage's backward runs: its contents are fetched, and those that were moved before them.
  void backward_begins() {
    if (std::exchange(is_back_, true)) return;
    fetch();
    Visit* moved = before_.get();
    while (moved != nullptr && !moved->has_contents()) moved = moved->before_.get();
    if (moved != nullptr) moved->fetch();
  }

  /// Whether the stage's parameters, buffers or context have the tensor's memory.
  bool is_of_stage(const at::Tensor& tensor) {
    if (!of_stage_) {
      of_stage_.emplace();
      const auto add = [this](const at::Tensor& own) {
        if (own.defined() && own.has_storage()) of_stage_->insert(own.storage().unsafeGetStorageImpl());
      };
      for (const at::Tensor& parameter : stage_.parameters()) add(parameter);
      for (const at::Tensor& buffer : stage_.buffers()) add(buffer);
      for (const at::Tensor& shared :
           {context_.rotary_cos, context_.rotary_sin, context_.local_rotary_cos, context_.local_rotary_sin,
            context_.targets, context_.document_bounds}) {
        add(shared);
      }
    }
    return of_stage_->contains(tensor.storage().unsafeGetStorageImpl());
  }
  /// Frees what only the forward pass needs.
  void forward_ends() { of_stage_.reset(); }

  const std::shared_ptr<HostActivations> home;
  const bool moves;

 private:
  void fetch() {
    for (const auto& each : contents_) {
      if (const auto content = each.lock()) content->fetch();
    }
  }

  Stage& stage_;                 ///< used during the forward pass only
  const StageContext& context_;  ///< likewise
  std::optional<std::set<const c10::StorageImpl*>> of_stage_;
  std::shared_ptr<Visit> before_;
  std::vector<std::weak_ptr<Content>> contents_;
  bool is_known_ = false, is_back_ = false;
};

/// A tensor that autograd has saved.
class HostActivations::SavedTensor final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedTensor(std::shared_ptr<Visit> visit) : visit_(std::move(visit)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    visit_->saves(visit_);
    if (visit_->moves) content_ = visit_->home->content_of(tensor, *visit_);
    if (!content_) {
      // Without its node of autograd, which may own this object.
      kept_ = tensor.tensor_data();
      version_ = kept_._version();
      return;
    }
    options_ = tensor.options();
    sizes_ = tensor.sizes().vec();
    strides_ = tensor.strides().vec();
    offset_ = tensor.storage_offset();
  }

  at::Tensor call_unpack_hook() override {
    visit_->backward_begins();
    if (content_) return at::empty({0}, options_).set_(content_->storage(), offset_, sizes_, strides_);
    // libtorch compares versions only where there are no hooks.
    if (kept_._version() != version_) {
      fail(ErrorKind::kUsage, "backward: expected a saved tensor of shape ", kept_.sizes(), " at version ",
           version_, "; found version ", kept_._version(),
           ", because it was modified in place after forward; modify a copy");
    }
    return kept_;
  }

 private:
  std::shared_ptr<Visit> visit_;
  std::shared_ptr<Content> content_;
  at::TensorOptions options_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
  at::Tensor kept_;  ///< a tensor that stays
  int64_t version_ = 0;
};

std::shared_ptr<HostActivations::Content> HostActivations::content_of(const at::Tensor& tensor,
                                                                      Visit& visit) {
  const bool may_move = tensor.has_storage() && tensor.layout() == at::kStrided && serves(tensor) &&
                        static_cast<int64_t>(tensor.storage().nbytes()) >= options_.least_bytes;
  if (!may_move || visit.is_of_stage(tensor)) return nullptr;
  std::weak_ptr<Content>& known = on_device_[tensor.storage().unsafeGetStorageImpl()];
  std::shared_ptr<Content> content = known.lock();
  if (!content) {
    content = std::make_shared<Content>(shared_from_this(), tensor);
    on_device_[tensor.storage().unsafeGetStorageImpl()] = content;
    visit.add(content);
  }
  return content;
}

void HostActivations::has_run(const std::shared_ptr<Visit>& visit) {
  visit->forward_ends();
  ++stages_run_;
  if (visit->has_contents()) leaving_.push_back({stages_run_, visit});
  while (!leaving_.empty() && leaving_.front().since + options_.patience <= stages_run_) {
    if (const auto left = leaving_.front().visit.lock()) left->leave();
    leaving_.pop_front();
  }
}

std::shared_ptr<HostActivations> make_host_activations(const OffloadOptions& options) {
  return std::make_shared<HostActivations>(options);
}

at::Tensor Offload::around(Stage& stage, const at::Tensor& input, const Next& next) {
  if (!at::GradMode::is_enabled() || !host_->serves(input)) return next(input);
  const auto visit = std::make_shared<HostActivations::Visit>(host_, moves_, stage, next.context());
  at::Tensor output;
  {
    const util::SavedTensorScope scope(
        [&visit] { return std::make_unique<HostActivations::SavedTensor>(visit); });
    output = next(input);
  }
  host_->has_run(visit);
  return output;
}

}  // namespace fsdp::nn
