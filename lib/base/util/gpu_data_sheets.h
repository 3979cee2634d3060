#pragma once

// NVIDIA's data sheets of GPUs: peak rates for reports of utilization and for plans of other machines.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::util {

/// Peak rates of one GPU. Products are of dense matrices (without sparsity), accumulated in fp32. A rate of 0
/// means that the GPU's matrix units do not have the type.
struct GpuDataSheet {
  std::string_view name;  ///< name as a user types it: "h100-sxm"
  double bf16_tflops;
  double fp16_tflops;
  double tf32_tflops;
  double fp32_tflops;  ///< fp32 products without matrix units
  double fp8_tflops;
  int64_t memory_bytes;            ///< the data sheet's GB as GiB, as drivers count; ECC of GDDR takes 1/16
  double memory_bytes_per_second;  ///< reads and writes together
  double link_bytes_per_second;    ///< to other GPUs of the host, each way: NVLink, or PCIe if it has none
  double host_bytes_per_second;    ///< to the memory of its host, each way
  bool nvlink;                     ///< whether that link is NVLink (for some cards a bridge sold separately)

  /// TFLOP/s of products in "bfloat16", "float16", "float32", "float8" or "tf32" (float32 that the matrix
  /// units may round); 0 for any other type.
  double dense_tflops(std::string_view dtype) const;
};

/// Returns the sheet of a GPU by CUDA's name of the device ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
/// or by a short name ("h100", "H100-SXM", "a100-40gb", "rtx4090"), ignoring case and separators. A short
/// name of several variants means the most common one, which has the most memory. Null if no name fits
/// entirely, because a slice of a GPU (MIG), a laptop GPU or another unknown variant has other rates.
const GpuDataSheet* gpu_data_sheet(std::string_view name);

/// The short names of all GPUs in the table.
std::vector<std::string> gpu_data_sheet_names();

}  // namespace fsdp::util
