#pragma once

// How the layers of this component allocate their parameters.
//
// A model that is larger than the memory of its process is built on the meta device: its parameters have
// shapes and no memory until something else, such as shard/engine/engine.h with a ParameterSource, gives them
// values. Buffers are not parameters: layers make them, with their values, where they are used.

#include <ATen/core/Tensor.h>

namespace fsdp::nn {

/// While it lives, layers that this thread builds have parameters on `device`; without one, on the CPU.
class ParameterDevice {
 public:
  explicit ParameterDevice(at::Device device);
  ~ParameterDevice();
  ParameterDevice(const ParameterDevice&) = delete;
  ParameterDevice& operator=(const ParameterDevice&) = delete;

 private:
  at::Device before_;
};

/// While it lives, layers of this thread have parameters of `type`, for inference; without one, fp32.
class ParameterType {
 public:
  explicit ParameterType(at::ScalarType type);
  ~ParameterType();
  ParameterType(const ParameterType&) = delete;
  ParameterType& operator=(const ParameterType&) = delete;

 private:
  at::ScalarType before_;
};

/// An uninitialised tensor for register_parameter(), of the innermost ParameterDevice and ParameterType.
at::Tensor empty_parameter(at::IntArrayRef shape);

}  // namespace fsdp::nn
