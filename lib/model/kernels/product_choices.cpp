#include "model/kernels/product_choices.h"

#include <c10/core/Device.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/util/error.h"
#include "model/kernels/cuda/products.h"

namespace fsdp::kernels {
namespace {

/// How much less time than libtorch's product another must take: the noise of a measurement.
constexpr double kLeastGain = 0.02;

std::atomic<int64_t> made = 0;

/// Choices by the index of the device. Ranks that are threads of one process have a device each.
std::array<std::shared_ptr<ProductChoices>, 128>& choices_of_process() {
  static std::array<std::shared_ptr<ProductChoices>, 128> choices;
  return choices;
}

}  // namespace

ProductChoices::ProductChoices(Options options)
    : id_(++made), known_(std::move(options.known)), tries_(options.tries), seconds_left_(options.seconds) {}

std::optional<ProductChoice> ProductChoices::find(const std::string& shape, bool tried) const {
  const std::lock_guard lock(mutex_);
  if (const auto found = known_.find(shape); found != known_.end()) return found->second;
  const auto found = tried ? tried_.find(shape) : tried_.end();
  if (found != tried_.end()) return found->second;
  return std::nullopt;
}

bool ProductChoices::tries(const std::string& shape) const {
  const std::lock_guard lock(mutex_);
  return tries_ && seconds_left_ > 0 && !known_.contains(shape) && !tried_.contains(shape);
}

ProductChoice ProductChoices::choose(const std::string& shape, std::span<const ProductAlgorithm> algorithms,
                                     std::span<const double> seconds, double spent) {
  FSDP_CHECK(seconds.size() == algorithms.size() + 1, seconds.size());
  const auto best = std::ranges::min_element(seconds.subspan(1));
  ProductChoice choice;
  if (!algorithms.empty() && *best < (1 - kLeastGain) * seconds[0]) {
    choice = algorithms[static_cast<size_t>(best - seconds.subspan(1).begin())];
  }
  const std::lock_guard lock(mutex_);
  seconds_left_ -= spent;
  return tried_[shape] = choice;
}

ChosenProducts ProductChoices::all() const {
  const std::lock_guard lock(mutex_);
  ChosenProducts all = known_;
  all.insert(tried_.begin(), tried_.end());
  return all;
}

void ProductChoices::settle(ChosenProducts choices) {
  const std::lock_guard lock(mutex_);
  known_ = std::move(choices);
  tried_.clear();
  tries_ = false;
}

bool ProductChoices::is_settled() const {
  const std::lock_guard lock(mutex_);
  return !tries_;
}

void set_product_choices(const at::Device& gpu, std::shared_ptr<ProductChoices> choices) {
  choices_of_process().at(static_cast<size_t>(gpu.index())) = std::move(choices);
}

ProductChoices* product_choices(const at::Device& device) {
  return device.is_cuda() ? choices_of_process().at(static_cast<size_t>(device.index())).get() : nullptr;
}

std::string product_library(const at::Device& gpu) { return cuda::product_library(gpu); }

}  // namespace fsdp::kernels
