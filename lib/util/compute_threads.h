#pragma once

namespace fsdp::util {

/// The threads with which libtorch computes in this process while nobody has set their number: what
/// MKL_NUM_THREADS or OMP_NUM_THREADS say, else one for each physical core that the process may run on. It is
/// at::get_num_threads(), for programs that do not load libtorch.
int default_compute_threads();

}  // namespace fsdp::util
