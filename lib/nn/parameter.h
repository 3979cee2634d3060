#pragma once

// Where the layers of this component get their parameters from.
//
// A model that is larger than the memory of its process is built on the meta device: its parameters have
// shapes and no memory until something else, such as shard/engine.h with a ParameterSource, gives them
// values. Buffers are not parameters: layers make them where they are used, with their values.

#include <ATen/core/Tensor.h>

namespace fsdp::nn {

/// While it lives, layers that this thread builds put their parameters on `device`; without one, on the CPU.
class ParameterDevice {
 public:
  explicit ParameterDevice(at::Device device);
  ~ParameterDevice();
  ParameterDevice(const ParameterDevice&) = delete;
  ParameterDevice& operator=(const ParameterDevice&) = delete;

 private:
  at::Device before_;
};

/// While it lives, layers that this thread builds have parameters of `type`, for inference; without one,
/// fp32.
class ParameterType {
 public:
  explicit ParameterType(at::ScalarType type);
  ~ParameterType();
  ParameterType(const ParameterType&) = delete;
  ParameterType& operator=(const ParameterType&) = delete;

 private:
  at::ScalarType before_;
};

/// An uninitialised tensor for register_parameter(), as the innermost ParameterDevice and ParameterType say.
at::Tensor empty_parameter(at::IntArrayRef shape);

}  // namespace fsdp::nn
