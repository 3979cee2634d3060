#pragma once

// ComputeTable: durations of a rank's kernels by class, measured by fsdp-train doctor --calibrate
// (tools/doctor/calibrate.h) or from a GPU's data sheet.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/util/enum_names.h"
#include "model/kernels/meta_product.h"

namespace fsdp::simulate {

enum class KernelClass {
  kProduct,      ///< products of matrices
  kAttention,    ///< kernels of attention
  kElementwise,  ///< norms, activations, sums: kernels that are bound by memory
  kLoss,         ///< kernels of the logits, bound by memory
  kNorm,         ///< norm of the gradients
  kOptimizer,
  kHost,  ///< launching kernels, while the device waits for it
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
  std::string machine = {};  ///< text for people: a processor, "h100-sxm"
  std::string source = {};   ///< "measured", "data sheet"
  std::string dtype = {};    ///< type of products
  int64_t threads = 0;       ///< threads of a rank on a CPU; 0: a GPU, whose host runs ahead
  double element_bytes = 2;  ///< bytes of an element of dtype

  std::vector<ProductRate> products = {};  ///< measured rates; the rates below hold for kinds without any
  double flops_per_second = 0;             ///< rate of large products
  double memory_bytes_per_second = 0;

  /// Rates by results: a kernel that allocates b bytes takes b divided by the rate.
  double elementwise_bytes_per_second = 0, loss_bytes_per_second = 0;
  /// Rates by bytes read and written.
  double optimizer_bytes_per_second = 0, norm_bytes_per_second = 0;
  double host_seconds = 0;         ///< time to launch one kernel
  double host_update_seconds = 0;  ///< of a step, for states in host memory (plan::UpdateTimes)
  double scale = 1;                ///< factor on all compute: what one measured step adds to the table

  bool is_gpu() const { return threads == 0; }

  /// Seconds of a product. Products that were not measured take a rate between the measured ones: the mean of
  /// their logarithms, weighted by the inverse square of the distance between the logarithms of the sizes.
  /// Without measurements a product takes as long as its arithmetic or its memory, whichever is longer.
  double product_seconds(const kernels::MetaProduct& product) const;
};

}  // namespace fsdp::simulate
