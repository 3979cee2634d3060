// Graphs of FakeDevice: operators with the addresses of their arguments and results.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>

#include "base/util/error.h"
#include "support/fake_device_parts.h"

namespace fsdp::testing {
namespace {

class FakeGraph final : public util::DeviceGraph {
 public:
  explicit FakeGraph(std::shared_ptr<GraphMemory> memory) : recording(std::move(memory)) {}
  LaunchRecording recording;
  void launch() override { recording.run_again(); }
};

class FakeGraphPool final : public util::DeviceGraphPool {
 public:
  std::unique_ptr<util::DeviceGraph> record(const std::function<void()>& work) override {
    FSDP_CHECK(LaunchRecording::current() == nullptr, "a recording within a recording");
    auto graph = std::make_unique<FakeGraph>(memory_);
    struct Scope {
      explicit Scope(LaunchRecording& recording) { LaunchRecording::current() = &recording; }
      ~Scope() { LaunchRecording::current() = nullptr; }
    } scope(graph->recording);
    work();  // which also is the launch
    return graph;
  }

 private:
  std::shared_ptr<GraphMemory> memory_ = std::make_shared<GraphMemory>();
};

}  // namespace

util::MakeGraphPool FakeDevice::graph_pools() {
  return [] { return std::make_shared<FakeGraphPool>(); };
}

at::Tensor at_address(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor result = at::from_blob(tensor.numel() > 0 ? tensor.data_ptr() : nullptr, tensor.sizes(),
                                    tensor.strides(), at::TensorOptions().dtype(tensor.scalar_type()));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    result.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return result;
}

struct GraphMemory::Held {
  std::shared_ptr<GraphMemory> memory;
  void* block;
  size_t size;
};

c10::DataPtr GraphMemory::allocate(size_t bytes) {
  std::lock_guard lock(mutex_);
  auto& free = free_[bytes];
  void* block = nullptr;
  if (free.empty()) {
    LaunchRecording* const recording = std::exchange(LaunchRecording::current(), nullptr);
    block = all_.emplace_back(parts().memory.allocate(bytes)).get();
    LaunchRecording::current() = recording;
  } else {
    block = free.back();
    free.pop_back();
  }
  const c10::Device device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(current_device()));
  if (block == nullptr) return {nullptr, device};
  return {block, new Held{shared_from_this(), block, bytes}, &release, device};
}

void GraphMemory::release(void* held) {
  const std::unique_ptr<Held> block(static_cast<Held*>(held));
  std::lock_guard lock(block->memory->mutex_);
  block->memory->free_[block->size].push_back(block->block);
}

LaunchRecording*& LaunchRecording::current() {
  static thread_local LaunchRecording* recording = nullptr;
  return recording;
}

void LaunchRecording::add(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments,
                          const std::vector<at::Tensor>& results, std::vector<MemoryRange> reads,
                          std::vector<MemoryRange> writes) {
  std::vector<at::Tensor> places;
  for (const at::Tensor& result : results) places.push_back(at_address(result));
  device_ = current_device();
  launches_.push_back([op, arguments = std::move(arguments), places = std::move(places),
                       reads = std::move(reads), writes = std::move(writes)](StreamName stream) {
    parts().recorder.operation(stream, op.schema().name(), reads, writes);
    torch::jit::Stack stack(arguments.begin(), arguments.end());
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    size_t next = 0;
    auto give = [&](const at::Tensor& result) {
      const at::Tensor& place = places.at(next++);
      if (result.defined() && result.const_data_ptr() != place.const_data_ptr()) place.copy_(result);
    };
    for (const c10::IValue& value : stack) {
      if (value.isTensor()) give(value.toTensor());
      if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) give(tensor);
      }
    }
  });
}

void LaunchRecording::add_copy(const at::Tensor& source, const at::Tensor& target,
                               std::vector<MemoryRange> reads, std::vector<MemoryRange> writes) {
  device_ = target.device().index();
  launches_.push_back([source = at_address(source), target = at_address(target), reads = std::move(reads),
                       writes = std::move(writes)](StreamName stream) {
    parts().recorder.operation(stream, "aten::copy_", reads, writes);
    target.copy_(source);
  });
}

void LaunchRecording::run_again() const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const auto& launch : launches_) launch(current_stream(device_));
}

}  // namespace fsdp::testing
