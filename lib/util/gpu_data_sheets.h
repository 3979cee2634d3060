#pragma once

// What NVIDIA's data sheets say of GPUs: what a rate is a share of, and what a plan for a machine that nobody
// has at hand starts from.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::util {

/// One GPU by its data sheet. Rates of products are of dense matrices (without sparsity), accumulated in
/// fp32; 0 stands for a type that the GPU's matrix units do not multiply.
struct GpuDataSheet {
  std::string_view name;  ///< as a user types it: "h100-sxm"
  double bf16_tflops;
  double fp16_tflops;
  double tf32_tflops;
  double fp32_tflops;  ///< without matrix units
  double fp8_tflops;
  int64_t memory_bytes;  ///< the data sheet's GB as GiB, as drivers count; ECC of GDDR takes 1/16 of it
  double memory_bytes_per_second;  ///< reads and writes together
  double
      link_bytes_per_second;  ///< to other GPUs of the host, each way: NVLink where there is one, else PCIe
  bool nvlink;                ///< whether that link is NVLink (for some cards a bridge that is sold apart)

  /// TFLOP/s of products in `dtype`, by the names that the configuration has ("bfloat16", "float16",
  /// "float32", "float8"; "tf32": of float32 where the matrix units may round it); 0 for any other and where
  /// there is none.
  double dense_tflops(std::string_view dtype) const;
};

/// The data sheet of a GPU by CUDA's name of the device ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB") or
/// by a short name ("h100", "H100-SXM", "a100-40gb", "rtx4090"), whatever its case and separators; null where
/// none fits wholly: a slice of a GPU (MIG), a variant for laptops or a variant that is not in the table has
/// other rates. A short name that several variants share stands for the most usual one, which has the most
/// memory.
const GpuDataSheet* gpu_data_sheet(std::string_view name);

/// The short names of all GPUs of the table, for messages.
std::vector<std::string> gpu_data_sheet_names();

}  // namespace fsdp::util
