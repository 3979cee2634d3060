#pragma once

// Stream capture and graphs, by the rules of CUDA's programming guide ("Stream Capture").

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct CUgraph_st {
  std::vector<std::function<void(cudaStream_t)>> operations;
};

struct CUgraphExec_st {
  std::vector<std::function<void(cudaStream_t)>> operations;
  int device;
};

namespace standin {

struct Capture;

/// Quick, without a lock.
bool captures_are_under_way();
bool is_under_way(const std::shared_ptr<Capture>& capture);

/// For a call that is "potentially unsafe": spoils a capture of this thread or, in the global mode, of
/// another. Returns the error of the call, cudaSuccess if it may go on.
cudaError_t refused_in_capture(const char* who);

/// For an operation on a stream that is not captured, while others are: the default stream would wait for
/// them.
cudaError_t refused_beside_captures(const char* who, CUstream_st* stream);

/// Reports `why` and makes the capture fail at its end. Returns `error`.
cudaError_t spoil(Capture& capture, cudaError_t error, const std::string& why);

/// Records an operation on a stream that is captured.
cudaError_t capture(Capture& capture, CUstream_st* stream, std::function<void()> work);

/// The operations that come before what is next on this stream, by stream and number.
std::map<cudaStream_t, long> before(const Capture& capture, CUstream_st* stream);
/// The stream is captured from now on, and goes on after those operations.
void join(Capture& capture, CUstream_st* stream, const std::map<cudaStream_t, long>& operations);

}  // namespace standin
