#pragma once

// Algorithms of a library for the products of a GPU, chosen by trials.
//
// The first time that a product of some shape is computed, each algorithm that the library proposes computes
// it a few times, and so does libtorch. The fastest is chosen; libtorch, unless another is faster by more
// than the noise of a measurement. Other algorithms round differently, and ranks must not: one of a model
// group that computes what the others compute has to get their bits. So a choice is used only when the ranks
// have settled on those of one of them (run/train/product_trials.h), and until then libtorch computes.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

namespace fsdp::kernels {

/// An algorithm as the library describes it, in words that are valid for one version of it (cublasLt's
/// cublasLtMatmulAlgo_t).
using ProductAlgorithm = std::array<uint64_t, 8>;

/// A choice for a shape: an algorithm, or none: libtorch's product.
using ProductChoice = std::optional<ProductAlgorithm>;
using ChosenProducts = std::map<std::string, ProductChoice>;  ///< by the text of a shape

/// Choices for a GPU. Thread-safe: the threads of forward and of backward use them.
class ProductChoices {
 public:
  struct Options {
    ChosenProducts known = {};  ///< used from the beginning
    bool tries = true;          ///< whether other shapes are tried
    double seconds = 1;         ///< limit on all trials together
  };
  explicit ProductChoices(Options options);

  /// Returns what is to be used for the shape; nothing if that is open. `tried`: or what its trial has
  /// chosen.
  std::optional<ProductChoice> find(const std::string& shape, bool tried = false) const;
  /// Whether the shape is to be tried: it is open, and there is time.
  bool tries(const std::string& shape) const;
  /// Chooses for the shape by the seconds of libtorch, which come first, and of the algorithms.
  ProductChoice choose(const std::string& shape, std::span<const ProductAlgorithm> algorithms,
                       std::span<const double> seconds, double spent);

  /// Returns what is known and what trials have chosen.
  ChosenProducts all() const;
  /// Uses these from now on, and tries nothing more.
  void settle(ChosenProducts choices);
  bool is_settled() const;
  /// A number of its own, from 1.
  int64_t id() const { return id_; }

 private:
  int64_t id_;
  mutable std::mutex mutex_;
  ChosenProducts known_, tried_;
  bool tries_;
  double seconds_left_;
};

/// Lets products on this GPU use the choices; null: libtorch computes all of them. Call it between steps.
void set_product_choices(const at::Device& gpu, std::shared_ptr<ProductChoices> choices);
/// Returns the choices of a device, or null. They stay until others are set.
ProductChoices* product_choices(const at::Device& device);

/// Returns the GPU and the version of its library, for which choices hold: "NVIDIA H100, cublasLt 130100".
std::string product_library(const at::Device& gpu);

}  // namespace fsdp::kernels
