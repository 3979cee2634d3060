#pragma once

// Calibration: the figures of a machine that fsdp-train doctor --calibrate has measured, as a file of JSON:
//
//   {"format": "fsdp calibration 1",
//    "cores_of_host": 2,
//    "compute": {"machine": "AMD EPYC 9554", "dtype": "float32", "threads": 1, "element_bytes": 4,
//                "products": [{"shape": {"m": 512, "n": 512, "k": 512, "kind": "plain"},
//                              "flops_per_second": 2.1e11}, ...],
//                "elementwise_bytes_per_second": 3.1e9, ...},
//    "networks": {"shm": {"inside": {"latency_seconds": 3e-6, "bytes_per_second": 0, ...},
//                         "between": {...}, "slices": {...}, "copy_bytes_per_second": 9e9, ...}}}
//
// Networks are named by backend (comm.backend), so that several measurements go into one file.

#include <filesystem>
#include <map>
#include <string>

#include "tools/simulate/compute_table.h"
#include "tools/simulate/network_table.h"

namespace fsdp::simulate {

struct Calibration {
  double cores_of_host = 0;  ///< cores that ranks on CPUs share; 0: the host of GPUs
  ComputeTable compute = {};
  std::map<std::string, NetworkTable> networks = {};  ///< keys are names of backends
};

std::string calibration_json(const Calibration& calibration);

/// Throws Error(kUsage) that names `source` for a text that is no calibration, or has an impossible or
/// missing number.
Calibration parse_calibration(const std::string& text, const std::string& source);

/// Throws Error(kIo), or like parse_calibration().
Calibration read_calibration(const std::filesystem::path& path);

}  // namespace fsdp::simulate
