#pragma once

// ComputeTable: how long a rank's kernels take, by their class. Measured by fsdp-train doctor --calibrate
// (tools/doctor/calibrate.h), or from a GPU's data sheet.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/util/enum_names.h"
#include "model/kernels/meta_product.h"

namespace fsdp::simulate {

enum class KernelClass {
  kProduct,      ///< of matrices
  kAttention,    ///< its kernels
  kElementwise,  ///< norms, activations, sums: whatever is bound by memory
  kLoss,         ///< likewise, of the logits
  kNorm,         ///< of the gradients
  kOptimizer,
  kHost,  ///< to launch kernels, where the device waits for that
};
inline constexpr size_t kKernelClasses = 7;
constexpr auto enum_names(KernelClass) {
  return std::to_array<util::EnumName<KernelClass>>({{KernelClass::kProduct, "products"},
                                                     {KernelClass::kAttention, "attention"},
                                                     {KernelClass::kElementwise, "elementwise"},
                                                     {KernelClass::kLoss, "loss"},
                                                     {KernelClass::kNorm, "gradient norm"},
                                                     {KernelClass::kOptimizer, "optimizer"},
                                                     {KernelClass::kHost, "host"}});
}

/// Seconds of each class.
struct KernelSeconds {
  std::array<double, kKernelClasses> of{};

  double& operator[](KernelClass kernels) { return of[static_cast<size_t>(kernels)]; }
  double operator[](KernelClass kernels) const { return of[static_cast<size_t>(kernels)]; }
  double sum() const;
  void add(const KernelSeconds& other, double times = 1);
};

struct ProductRate {
  kernels::MetaProduct shape = {};
  double flops_per_second = 0;
};

struct ComputeTable {
  std::string machine = {};  ///< for people: a processor, "h100-sxm"
  std::string source = {};   ///< "measured", "data sheet"
  std::string dtype = {};    ///< of products
  int64_t threads = 0;       ///< of a rank on a CPU; 0: a GPU, whose host runs ahead
  double element_bytes = 2;  ///< of dtype

  std::vector<ProductRate> products = {};  ///< measured; of kinds that are missing, the rates below hold
  double flops_per_second = 0;             ///< of large products
  double memory_bytes_per_second = 0;

  /// Of their results: a kernel that allocates b bytes takes b divided by this.
  double elementwise_bytes_per_second = 0, loss_bytes_per_second = 0;
  /// Of what is read and written.
  double optimizer_bytes_per_second = 0, norm_bytes_per_second = 0;
  double host_seconds = 0;  ///< to launch one kernel
  double scale = 1;  ///< all compute takes so many times as long: what one measured step adds to the table

  bool is_gpu() const { return threads == 0; }

  /// Of a measured product; of others at a rate between those measured: the mean of their logarithms, weighted
  /// by the inverse square of the distance between the logarithms of the sizes. Without measurements as long as
  /// the arithmetic or the memory takes, whichever is longer.
  double product_seconds(const kernels::MetaProduct& product) const;
};

}  // namespace fsdp::simulate
