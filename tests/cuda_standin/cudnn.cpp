// cuDNN, of which training uses attention (on compute capability 9.0 and 10.0, libtorch's first choice). A
// graph has one engine with one configuration and no notes; its execution is one kernel, which does
// nothing.

#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#include "standin.h"

namespace standin {
namespace {

struct CudnnHandle {
  int device = 0;
  cudaStream_t stream = nullptr;
};

struct Attribute {
  int64_t count = 0;
  std::vector<char> bytes;

  template <typename T>
  std::vector<T> values() const {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
};

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes{};
};

Descriptor& own(cudnnBackendDescriptor_t descriptor) { return *static_cast<Descriptor*>(descriptor); }
CudnnHandle& own(cudnnHandle_t handle) { return *reinterpret_cast<CudnnHandle*>(handle); }

size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
      return 8;
    case CUDNN_TYPE_FRACTION:
      return 16;
    default:
      return 4;
  }
}

/// Values of a variant pack may lie in the host too.
bool is_on_device(const void* pointer) {
  cudaPointerAttributes attributes;
  return cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess &&
         attributes.type == cudaMemoryTypeDevice;
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

size_t cudnnGetVersion() { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t) { return "error of the stand-in of cuDNN"; }
void cudnnGetLastErrorString(char* message, size_t size) { std::snprintf(message, size, "none"); }

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  auto* made = new CudnnHandle;
  cudaGetDevice(&made->device);
  *handle = reinterpret_cast<cudnnHandle_t>(made);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  own(handle).stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = own(handle).stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Descriptor{.type = type};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete &own(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  const char* const begin = static_cast<const char*>(values);
  own(descriptor).attributes[name] = {count, {begin, begin + static_cast<size_t>(count) * bytes_of(type)}};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  // Building a plan takes milliseconds on a GPU, so its number is worth a look.
  if (own(descriptor).type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) standin_count("plans of cuDNN");
  return CUDNN_STATUS_SUCCESS;
}

/// What was not set is an engine, of which there is one, or a number, which is 0.
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t* count,
                                       void* values) {
  const auto found = own(descriptor).attributes.find(name);
  if (found != own(descriptor).attributes.end()) {
    if (count != nullptr) *count = found->second.count;
    const int64_t copied = std::min(requested, found->second.count);
    if (values != nullptr)
      std::memcpy(values, found->second.bytes.data(), static_cast<size_t>(copied) * bytes_of(type));
    return CUDNN_STATUS_SUCCESS;
  }
  const bool is_engine = name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE;
  const bool is_number = requested == 1 && type != CUDNN_TYPE_BACKEND_DESCRIPTOR;
  if (count != nullptr) *count = is_engine || is_number ? 1 : 0;
  if (is_number && values != nullptr) std::memset(values, 0, bytes_of(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t,
                                  cudnnBackendDescriptor_t pack) {
  int device = 0;
  cudaGetDevice(&device);
  if (device != own(handle).device)
    standin_violation("a cuDNN handle of another device than the current one");
  for (const auto name : {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_ATTR_VARIANT_PACK_WORKSPACE}) {
    for (const void* pointer : own(pack).attributes[name].values<const void*>()) {
      if (pointer != nullptr && is_on_device(pointer)) standin_view(pointer, 1, "cuDNN");
    }
  }
  standin_launched("cuDNN");
  return standin_submit("cuDNN", own(handle).stream, nullptr, 0, {}) == 0 ? CUDNN_STATUS_SUCCESS
                                                                          : CUDNN_STATUS_EXECUTION_FAILED;
}
}
