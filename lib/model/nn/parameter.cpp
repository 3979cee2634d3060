#include "model/nn/parameter.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace fsdp::nn {
namespace {

thread_local at::Device parameter_device(at::kCPU);
thread_local at::ScalarType parameter_type = at::kFloat;

}  // namespace

ParameterDevice::ParameterDevice(at::Device device) : before_(std::exchange(parameter_device, device)) {}

ParameterDevice::~ParameterDevice() { parameter_device = before_; }

ParameterType::ParameterType(at::ScalarType type) : before_(std::exchange(parameter_type, type)) {}

ParameterType::~ParameterType() { parameter_type = before_; }

at::Tensor empty_parameter(at::IntArrayRef shape) {
  return at::empty(shape, at::TensorOptions().dtype(parameter_type).device(parameter_device));
}

}  // namespace fsdp::nn
