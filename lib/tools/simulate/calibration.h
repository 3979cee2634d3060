#pragma once

// A calibration: what fsdp-train doctor --calibrate has measured of a machine, as a file of JSON:
//
//   {"format": "fsdp calibration 1",
//    "cores_of_host": 2,
//    "compute": {"machine": "AMD EPYC 9554", "dtype": "float32", "threads": 1, "element_bytes": 4,
//                "products": [{"shape": {"m": 512, "n": 512, "k": 512, "kind": "plain"}, "flops_per_second": 2.1e11},
//                             ...],
//                "elementwise_bytes_per_second": 3.1e9, ...},
//    "networks": {"shm": {"inside": {"latency_seconds": 3e-6, "bytes_per_second": 0, ...},
//                         "between": {...}, "slices": {...}, "copy_bytes_per_second": 9e9, ...}}}
//
// Networks are those of backends (comm.backend), so that several measurements go into one file.

#include <filesystem>
#include <map>
#include <string>

#include "tools/simulate/compute_table.h"
#include "tools/simulate/network_table.h"

namespace fsdp::simulate {

struct Calibration {
  double cores_of_host = 0;  ///< that ranks on CPUs share; 0: a GPU's host
  ComputeTable compute = {};
  std::map<std::string, NetworkTable> networks = {};  ///< by backend
};

std::string calibration_json(const Calibration& calibration);

/// Throws Error(kUsage) that names `source` for a text that is no calibration, has a number that cannot be, or
/// lacks one.
Calibration parse_calibration(const std::string& text, const std::string& source);

/// Throws Error(kIo) or as parse_calibration().
Calibration read_calibration(const std::filesystem::path& path);

}  // namespace fsdp::simulate
