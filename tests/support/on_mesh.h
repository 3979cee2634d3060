#pragma once

// Bodies that run on every rank of a mesh, and errors that they expect.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/util/error.h"
#include "comm/api/mesh.h"
#include "comm/threads/thread_communicator.h"
#include "support/forwarding_communicator.h"

namespace fsdp::testing {

struct Refusal {
  ErrorKind kind = ErrorKind::kUnexpected;
  std::string text;
};

template <typename Body>
Refusal refusal_of(Body&& body) {
  try {
    body();
  } catch (const util::Error& error) {
    return {error.kind(), error.what()};
  }
  ADD_FAILURE() << "expected an error";
  return {};
}

inline void on_mesh(const comm::MeshOptions& options, const std::function<void(const comm::Mesh&)>& body) {
  const int64_t ranks = options.dcn * options.data * options.context * options.model;
  comm::run_ranks_as_threads(static_cast<int>(ranks), [&](comm::Communicator& each) {
    at::set_num_threads(1);
    body(comm::Mesh(options, borrowed(each)));
  });
}

}  // namespace fsdp::testing
