#include "nn/parameter.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace fsdp::nn {
namespace {

thread_local at::Device parameter_device(at::kCPU);

}  // namespace

ParameterDevice::ParameterDevice(at::Device device) : before_(std::exchange(parameter_device, device)) {}

ParameterDevice::~ParameterDevice() { parameter_device = before_; }

at::Tensor empty_parameter(at::IntArrayRef shape) {
  return at::empty(shape, at::TensorOptions().dtype(at::kFloat).device(parameter_device));
}

}  // namespace fsdp::nn
