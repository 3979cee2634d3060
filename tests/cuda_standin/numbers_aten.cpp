// Operations of ATen on tensors of a device, computed on the CPU: their kernels for CUDA are replaced in
// libtorch's dispatcher by one that calls the CPU's, with tensors of the same memory. Autograd, which calls
// them, is libtorch's.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "numbers.h"
#include "standin.h"

namespace standin {
namespace {

using c10::IValue;

constexpr std::string_view kNamespace = "aten::";

/// Of these, libtorch's own code runs: they only ask the runtime for memory, look at shapes, wait and copy,
/// or multiply by cuBLAS.
const std::set<std::string>& left_to_libtorch() {
  static const std::set<std::string> names{"empty",
                                           "empty_strided",
                                           "resize_",
                                           "set_",
                                           "record_stream",
                                           "_local_scalar_dense",
                                           "is_set_to",
                                           "_fused_sdp_choice",
                                           "mm",
                                           "addmm",
                                           "addmm_",
                                           "bmm",
                                           "baddbmm",
                                           "baddbmm_",
                                           "_scaled_mm",
                                           "_addmm_activation"};
  return names;
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// An operation on tensors of the CPU.
struct Work {
  c10::OperatorHandle op;
  Stack arguments{};
  /// Arguments without elements that are written to, and may get some.
  std::vector<at::Tensor> grown{};
  /// The device's memory for those and then for new results, as tensors of the CPU.
  std::vector<at::Tensor> targets{};

  Stack results() const {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::NoGradGuard no_grad;
    Stack stack = arguments;
    if (const Computation formula = formula_of(op.schema().name().substr(kNamespace.size()))) {
      formula(op.schema(), stack);
    } else {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    }
    return stack;
  }

  void put(const Stack& results) const {
    auto target = targets.begin();
    for (const at::Tensor& tensor : grown) (target++)->copy_(tensor);
    for (size_t i = 0; i < results.size(); ++i) {
      if (is_written(op.schema().returns()[i])) continue;
      if (results[i].isTensor() && results[i].toTensor().defined()) (target++)->copy_(results[i].toTensor());
      if (!results[i].isTensorList()) continue;
      for (const at::Tensor& tensor : results[i].toTensorVector()) (target++)->copy_(tensor);
    }
  }
};

/// One call of an operation.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack& stack)
      : work_{.op = op}, schema_(op.schema()), name_("aten " + schema_.name().substr(kNamespace.size())) {
    given_ = torch::jit::pop(stack, schema_.arguments().size());
    for (const IValue& value : given_) note_device(value);
    for (size_t i = 0; i < given_.size(); ++i) {
      work_.arguments.push_back(on_host(given_[i], is_written(schema_.arguments()[i])));
    }
  }

  /// Puts the operation on the current stream, and its results on `stack`.
  void run(Stack& stack) {
    const c10::OptionalDeviceGuard guard(device_);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    if (std::all_of(schema_.returns().begin(), schema_.returns().end(), is_written) && work_.grown.empty()) {
      push(stack, {});
      return submit(stream, [work = work_] { work.results(); });
    }
    // Only the results tell their shapes, so that a captured operation is computed once before the graph
    // runs.
    const Stack results = work_.results();
    for (size_t i = 0; i < grown_.size(); ++i) {
      grown_[i].resize_(work_.grown[i].sizes());
      work_.targets.push_back(view_of(grown_[i], true));
    }
    push(stack, results);
    cudaStreamCaptureStatus status{};
    cudaStreamIsCapturing(stream, &status);
    if (status == cudaStreamCaptureStatusNone) return submit(stream, [&] { work_.put(results); });
    submit(stream, [work = work_] { work.put(work.results()); });
  }

 private:
  void note_device(const IValue& value) {
    const auto note = [this](const c10::Device& device) {
      if (device.is_cuda() && !device_) device_ = device;
    };
    if (value.isDevice()) note(value.toDevice());
    if (value.isTensor() && value.toTensor().defined()) note(value.toTensor().device());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) note(tensor.device());
    }
  }

  IValue on_host(const IValue& value, bool is_written) {
    if (value.isTensor()) return on_host(value.toTensor(), is_written);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(on_host(tensor, is_written));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(on_host(*tensor, is_written)) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice()) return c10::Device(c10::kCPU);
    return value.isGenerator() ? IValue() : value;
  }

  at::Tensor on_host(const at::Tensor& tensor, bool is_written) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    at::Tensor same = view_of(tensor, is_written);
    if (is_written && tensor.numel() == 0) {
      grown_.push_back(tensor);
      work_.grown.push_back(same);
    }
    return same;
  }

  /// A tensor of the CPU with the same memory.
  at::Tensor view_of(const at::Tensor& tensor, bool is_written) {
    const auto options = tensor.options().device(c10::kCPU);
    if (tensor.numel() == 0) return at::empty(tensor.sizes(), options);
    size_t elements = 1;
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      elements += static_cast<size_t>((tensor.size(i) - 1) * tensor.stride(i));
    }
    const Range range{tensor.const_data_ptr(), elements * tensor.element_size(), is_written};
    void* const data = standin_view(range.data, range.bytes, name_.c_str());
    TORCH_CHECK(data != nullptr, name_, " on memory that is not allocated");
    ranges_.push_back(range);
    at::Tensor same = at::from_blob(data, tensor.sizes(), tensor.strides(), options);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      same.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return same;
  }

  /// The tensors that the operation was given to write to, and memory of the device for its `results`.
  void push(Stack& stack, const Stack& results) {
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
      const c10::Argument& result = schema_.returns()[i];
      stack.push_back(is_written(result) ? given_for(result) : on_device(results[i]));
    }
  }

  const IValue& given_for(const c10::Argument& result) const {
    for (size_t i = 0; i < given_.size(); ++i) {
      const c10::Argument& argument = schema_.arguments()[i];
      if (is_written(argument) && *argument.alias_info() == *result.alias_info()) return given_[i];
    }
    TORCH_CHECK(false, name_, ": no argument is its result");
  }

  IValue on_device(const IValue& result) {
    if (result.isTensor()) return on_device(result.toTensor());
    if (!result.isTensorList()) return result;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : result.toTensorVector()) list.push_back(on_device(tensor));
    return list;
  }

  at::Tensor on_device(const at::Tensor& result) {
    if (!result.defined()) return result;
    at::Tensor made =
        at::empty_strided(result.sizes(), result.strides(), result.options().device(device_.value()));
    work_.targets.push_back(view_of(made, true));
    return made;
  }

  void submit(cudaStream_t stream, std::function<void()> work) const {
    standin_submit(name_.c_str(), stream, ranges_.data(), static_cast<int>(ranges_.size()), std::move(work));
  }

  Work work_;
  const c10::FunctionSchema& schema_;
  std::string name_;
  std::optional<c10::Device> device_;
  Stack given_;
  std::vector<at::Tensor> grown_;  ///< those of the work, on the device
  std::vector<Range> ranges_;
};

/// Writes NaN to memory that libtorch's allocator takes back, in the order of the stream that may get it
/// again: who still uses it computes with NaN, or races with this write.
void spoil(const c10::CachingDeviceAllocator::TraceEntry& entry) {
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  if (entry.action_ != Entry::FREE_COMPLETED || entry.size_ == 0) return;
  // What a graph uses is free between the graph's launches only.
  if (entry.mempool_ != c10::MempoolId_t{0, 0}) return;
  auto* const stream = static_cast<cudaStream_t>(entry.stream_);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone)
    return;
  const c10::DeviceGuard guard({c10::kCUDA, entry.device_});
  const Range range{reinterpret_cast<void*>(entry.addr_), entry.size_, true};
  void* const memory = standin_view(range.data, range.bytes, "release of memory");
  if (memory == nullptr) return;
  standin_submit("release of memory", stream, &range, 1,
                 [memory, bytes = range.bytes] { std::memset(memory, 0xff, bytes); });
}

void computed(const c10::OperatorHandle& op, Stack* stack) {
  static const bool spoils = (c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(&spoil), true);
  static_cast<void>(spoils);
  Call(op, *stack).run(*stack);
}

/// Copies between host and device, and those without a change of type or order, are the runtime's.
void copied(const c10::OperatorHandle& op, Stack* stack) {
  at::Tensor to = torch::jit::peek(*stack, 0, 3).toTensor();
  const at::Tensor from = torch::jit::peek(*stack, 1, 3).toTensor();
  const bool is_computed = to.is_cuda() && from.is_cuda() && to.numel() > 0 &&
                           (to.scalar_type() != from.scalar_type() || to.sizes() != from.sizes() ||
                            !to.is_contiguous() || !from.is_contiguous());
  if (is_computed) return computed(op, stack);
  const bool non_blocking = torch::jit::pop(*stack).toBool();
  torch::jit::drop(*stack, 2);
  torch::jit::push(*stack, at::native::copy_(to, from, non_blocking));
}

struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

/// Of each operation that has kernels for both, the one for CUDA.
void replace_kernels() {
  using c10::KernelFunction;
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  static auto* replaced = new std::vector<c10::RegistrationHandleRAII>;
  const auto replace = [&](const c10::OperatorName& name, KernelFunction kernel) {
    replaced->push_back(dispatcher.registerImpl(name, c10::DispatchKey::CUDA, std::move(kernel), std::nullopt,
                                                nullptr, "stand-in for CUDA"));
  };
  for (const c10::OperatorName& name : dispatcher.getAllOpNamesForDispatchKey(c10::DispatchKey::CUDA)) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !name.name.starts_with(kNamespace) || is_view(op->schema())) continue;
    const std::string base = name.name.substr(kNamespace.size());
    if (left_to_libtorch().contains(base)) continue;
    if (formula_of(base) != nullptr || op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
      replace(name, KernelFunction::makeFromBoxedFunction<&computed>());
    }
  }
  replace({"aten::copy_", ""}, KernelFunction::makeFromBoxedFunction<&copied>());
}

[[maybe_unused]] const bool replaced = (replace_kernels(), true);

}  // namespace
}  // namespace standin
