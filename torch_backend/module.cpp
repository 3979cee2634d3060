// The module of fsdp_shm: makes the backend for torch.distributed.

#include <torch/csrc/utils/pybind.h>

#include "torch_backend/c10d_backend.h"

namespace {

/// Ends its threads without holding Python's lock, which callbacks in them may wait for.
class PythonBackend final : public fsdp::comm::C10dBackend {
 public:
  using C10dBackend::C10dBackend;
  ~PythonBackend() override {
    if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return;
    const pybind11::gil_scoped_release unlocked;
    shutdown();
  }
};

c10::intrusive_ptr<c10d::Backend> create(const c10d::DistributedBackendOptions& group,
                                         const pybind11::object& /*options*/) {
  const pybind11::gil_scoped_release unlocked;
  return c10::make_intrusive<PythonBackend>(group);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "What fsdp_shm registers at torch.distributed.";
  m.def("create", &create,
        "The backend of one process group, as register_backend(extended_api=True) asks for it.");
}
