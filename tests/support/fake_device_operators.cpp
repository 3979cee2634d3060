// Operators of FakeDevice. All but a few run by the CPU kernel of the same operator, which sees the memory of
// the device's tensors as tensors of the CPU (CpuCall). What it returns becomes what it was made of: an
// argument, a view of one, or, copied, a new tensor of the device.

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <unordered_map>

#include "base/util/error.h"
#include "support/fake_device_parts.h"

namespace fsdp::testing {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool is_fake(const at::Tensor& tensor) { return tensor.defined() && tensor.is_privateuseone(); }

void append(std::vector<MemoryRange>& ranges, const at::Tensor& tensor) {
  for (const MemoryRange& range : ranges_of(tensor)) ranges.push_back(range);
}

/// Tensors of the device as tensors of the CPU over the same memory. Those that share a storage still do.
class CpuViews {
 public:
  at::Tensor view_of(const at::Tensor& fake) {
    if (!is_fake(fake)) return fake;
    auto [place, added] = views_.try_emplace(fake.unsafeGetTensorImpl());
    if (added) {
      const c10::Storage storage = storage_of(fake.storage());
      at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
          c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), fake.dtype());
      c10::TensorImpl* impl = view.unsafeGetTensorImpl();
      impl->set_sizes_and_strides(fake.sizes(), fake.strides(), fake.storage_offset());
      if (fake.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
      originals_.emplace(impl, fake);
      place->second = view;
    }
    return place->second;
  }

  /// The argument itself, or a view of its memory; undefined if `result` has memory of its own.
  at::Tensor original_of(const at::Tensor& result) const {
    if (auto same = originals_.find(result.unsafeGetTensorImpl()); same != originals_.end())
      return same->second;
    auto storage = fakes_.find(result.storage().unsafeGetStorageImpl());
    if (storage == fakes_.end()) return {};
    at::Tensor view =
        at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage->second), kKeys, result.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(),
                                                      result.storage_offset());
    return view;
  }

  /// Gives the arguments the shapes, and their storages the sizes, that the kernel gave their views.
  void write_back() {
    for (auto& [view_storage, fake] : fakes_) {
      const c10::Storage view = views_of_storages_.at(fake.unsafeGetStorageImpl());
      if (view.data() == fake.data()) continue;
      c10::DataPtr memory = fake.allocator()->allocate(view.nbytes());
      if (view.nbytes() > 0) std::memcpy(memory.get(), view.data(), view.nbytes());
      fake.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
      fake.unsafeGetStorageImpl()->set_nbytes(view.nbytes());
    }
    for (const auto& [impl, fake] : originals_) {
      const at::Tensor& view = views_.at(fake.unsafeGetTensorImpl());
      if (fake.sizes() == view.sizes() && fake.strides() == view.strides() &&
          fake.storage_offset() == view.storage_offset()) {
        continue;
      }
      fake.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
    }
  }

 private:
  c10::Storage storage_of(const c10::Storage& fake) {
    auto [place, added] = views_of_storages_.try_emplace(fake.unsafeGetStorageImpl());
    if (added) {
      place->second = c10::Storage(c10::Storage::use_byte_size_t(), fake.nbytes(),
                                   c10::DataPtr(fake.mutable_data(), at::kCPU), c10::GetCPUAllocator(), true);
      fakes_.emplace(place->second.unsafeGetStorageImpl(), fake);
    }
    return place->second;
  }

  std::unordered_map<const c10::TensorImpl*, at::Tensor> views_, originals_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> views_of_storages_, fakes_;
};

/// The same with each tensor of the device in place of itself as one of the CPU where it lies now.
c10::IValue at_addresses(const c10::IValue& value) {
  if (value.isTensor()) return at_address(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(at_address(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(at_address(*tensor)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice()) return c10::Device(at::kCPU);
  return value;
}

/// One call of an operator that the CPU's kernel does.
class CpuCall {
 public:
  CpuCall(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op), stack_(*stack), schema_(op.schema()), first_(stack->size() - schema_.arguments().size()) {
    for (const c10::Argument& result : schema_.returns()) {
      if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) touches_ = false;  // a view
    }
    if (op.hasTag(at::Tag::inplace_view)) touches_ = false;
    host_waits_ = op.hasTag(at::Tag::data_dependent_output) ||
                  (op.hasTag(at::Tag::dynamic_output_shape) && schema_.name().rfind("aten::index", 0) != 0);
  }

  void run() {
    LaunchRecording* recording = touches_ ? LaunchRecording::current() : nullptr;
    std::vector<c10::IValue> arguments;
    if (recording != nullptr) {
      FSDP_CHECK(!host_waits_, name(), " makes the host wait in a recording");
      for (size_t i = first_; i < stack_.size(); ++i) arguments.push_back(at_addresses(stack_[i]));
    }
    take_arguments();
    const c10::DeviceGuard on(device_.value_or(
        c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(current_device()))));
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    views_.write_back();
    give_results();
    const StreamName stream = current_stream(current_device());
    if (touches_) {
      for (const at::Tensor& tensor : written_) append(writes_, tensor);
      if (recording != nullptr) {
        std::vector<at::Tensor> results;
        for (size_t i = stack_.size() - schema_.returns().size(); i < stack_.size(); ++i) {
          if (stack_[i].isTensor()) results.push_back(stack_[i].toTensor());
          if (stack_[i].isTensorList()) {
            for (const at::Tensor& tensor : stack_[i].toTensorVector()) results.push_back(tensor);
          }
        }
        recording->add(op_, std::move(arguments), results, reads_, writes_);
      }
      parts().recorder.operation(stream, name(), std::move(reads_), std::move(writes_));
    }
    if (host_waits_) host_waits(stream);
  }

 private:
  std::string name() const {
    const std::string& overload = schema_.overload_name();
    return overload.empty() ? schema_.name() : schema_.name() + "." + overload;
  }

  void take_arguments() {
    const auto& arguments = schema_.arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = stack_[first_ + i];
      const c10::AliasInfo* alias = arguments[i].alias_info();
      const bool writes = alias != nullptr && alias->isWrite();
      if (value.isTensor()) {
        value = take(value.toTensor(), writes);
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(take(tensor, writes));
        value = std::move(list);
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
          if (tensor && is_fake(*tensor) &&
              (tensor->scalar_type() == at::kBool || tensor->scalar_type() == at::kByte)) {
            host_waits_ = true;  // a mask becomes indices, of which the host must know the number
          }
          list.push_back(tensor ? std::optional(take(*tensor, writes)) : std::nullopt);
        }
        value = std::move(list);
      } else if (value.isDevice()) {
        if (value.toDevice().is_privateuseone()) device_ = value.toDevice();
        value = c10::Device(at::kCPU);
      }
    }
  }

  at::Tensor take(const at::Tensor& tensor, bool writes) {
    if (!is_fake(tensor)) return tensor;
    if (!device_) device_ = tensor.device();
    if (touches_) {
      FSDP_CHECK(tensor.numel() == 0 || tensor.storage().data() != nullptr, name(), " of a tensor of shape ",
                 tensor.sizes(), " without memory");
      if (!writes) append(reads_, tensor);
    }
    if (writes) written_.push_back(tensor);
    return views_.view_of(tensor);
  }

  void give_results() {
    const size_t count = schema_.returns().size(), first = stack_.size() - count;
    for (size_t i = 0; i < count; ++i) {
      c10::IValue& value = stack_[first + i];
      if (value.isTensor()) {
        value = given(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(given(tensor));
        value = std::move(list);
      } else if (value.isScalar() || value.isBool()) {
        host_waits_ = true;
      }
    }
  }

  at::Tensor given(const at::Tensor& result) {
    if (!result.defined()) return result;
    if (at::Tensor original = views_.original_of(result); original.defined()) return original;
    at::Tensor copy = at::detail::empty_strided_generic(result.sizes(), result.strides(), &parts().memory,
                                                        kKeys, result.scalar_type());
    const size_t bytes =
        at::detail::computeStorageNbytes(result.sizes(), result.strides(), result.element_size());
    if (bytes > 0) std::memcpy(copy.mutable_data_ptr(), result.const_data_ptr(), bytes);
    written_.push_back(copy);
    return copy;
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const c10::FunctionSchema& schema_;
  size_t first_;
  CpuViews views_;
  std::optional<c10::Device> device_;
  std::vector<MemoryRange> reads_, writes_;
  std::vector<at::Tensor> written_;  ///< their memory is known after the call
  bool touches_ = true, host_waits_ = false;
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { CpuCall(op, stack).run(); }

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard on(*device);
  return at::detail::empty_generic(size, &parts().memory, kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard on(*device);
  return at::detail::empty_strided_generic(size, stride, &parts().memory, kKeys,
                                           c10::dtype_or_default(dtype));
}

/// Whether a copy goes on beside the host: only with pinned memory, in one piece.
bool goes_on(const at::Tensor& host, bool non_blocking) {
  return non_blocking && host.numel() > 0 && host.is_contiguous() &&
         parts().pinned.holds(host.const_data_ptr());
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const at::Tensor* tensor : {&source, &target}) {
    FSDP_CHECK(tensor->numel() == 0 || tensor->storage().data() != nullptr,
               "copy of a tensor without memory");
  }
  FakeDeviceParts& device = parts();
  const StreamName stream = current_stream((is_fake(source) ? source : target).device().index());
  std::vector<MemoryRange> reads, writes;
  if (is_fake(source)) reads = ranges_of(source);
  if (is_fake(target)) writes = ranges_of(target);
  if (LaunchRecording* recording = LaunchRecording::current()) {
    FSDP_CHECK(is_fake(source) && is_fake(target), "a copy from or to the host in a recording");
    recording->add_copy(source, target, reads, writes);
  }
  const auto done = device.recorder.operation(stream, "aten::copy_", std::move(reads), std::move(writes));
  CpuViews views;
  if (!is_fake(source)) device.copies.before_use(stream, source);
  if (is_fake(target)) {
    views.view_of(target).copy_(views.view_of(source));
    if (is_fake(source)) return target;
    if (goes_on(source, non_blocking)) {
      device.copies.from_host(stream, done, source);
      return target;
    }
    if (non_blocking) return target;  // pageable memory is staged at once
  } else if (goes_on(target, non_blocking)) {
    device.copies.before_use(stream, target);
    const at::Tensor values = views.view_of(source).expand_as(target).to(target.scalar_type()).contiguous();
    device.copies.to_host(stream, done, target, values);
    return target;
  } else {
    device.copies.before_use(stream, target);
    at::Tensor(target).copy_(views.view_of(source));
  }
  host_waits(stream);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return self;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  parts().memory.keep_for(self.const_data_ptr(), FakeDevice::name(stream));
}

/// set_data() may move between the host and the device, as on CUDA.
bool has_compatible_type(const at::Tensor& self, const at::Tensor& from) {
  auto dense = [](const at::Tensor& tensor) { return is_fake(tensor) || tensor.is_cpu(); };
  return dense(self) && dense(from);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("record_stream", record_stream);
  library.impl("_has_compatible_shallow_copy_type", has_compatible_type);
}

}  // namespace
}  // namespace fsdp::testing
