#include "optim/optimizer.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "optim/adam.h"
#include "optim/lion.h"
#include "optim/sgd.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::optim {
namespace {

using util::ErrorKind;
using util::fail;

// The CPU kernels handle whole vectors of up to 16 floats (AVX-512) in float arithmetic and the rest one by
// one, partly in double, so an element's last bits would depend on how far it lies from the end of the tensor
// that it is in. We give the kernels multiples of 16 only: the rest of a range goes through a padded copy.
constexpr int64_t kVectorFloats = 16;

void check_parameter(const FlatParameter& parameter) {
  const at::Tensor& value = parameter.value;
  FSDP_CHECK(
      value.defined() && value.dim() == 1 && value.scalar_type() == at::kFloat && value.is_contiguous(),
      parameter.name, " is not a flat contiguous float32 tensor");
  int64_t end = 0;
  for (const FlatParameter::Range& range : parameter.ranges) {
    FSDP_CHECK(range.begin >= end && range.end >= range.begin && range.end <= value.numel(), parameter.name,
               " has the range [", range.begin, ", ", range.end, ") after ", end, " in ", value.numel(),
               " elements");
    end = range.end;
  }
}

void check_gradient(const at::Tensor& gradient, const FlatParameter& parameter) {
  at::ScalarType type = gradient.scalar_type();
  FSDP_CHECK(gradient.sizes() == parameter.value.sizes() && gradient.is_contiguous(), "the gradient of ",
             parameter.name, " is not shaped like its value");
  FSDP_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, "the gradient of ",
             parameter.name, " is of type ", at::toString(type));
}

/// Neighbours that are treated alike become one range: fewer, longer kernel calls.
std::vector<FlatParameter::Range> merged(const std::vector<FlatParameter::Range>& ranges) {
  std::vector<FlatParameter::Range> result;
  for (const FlatParameter::Range& range : ranges) {
    if (range.begin == range.end) continue;
    if (!result.empty() && result.back().end == range.begin && result.back().decay == range.decay) {
      result.back().end = range.end;
    } else {
      result.push_back(range);
    }
  }
  return result;
}

}  // namespace

Optimizer::Optimizer(std::vector<FlatParameter> parameters, std::vector<std::string> state_names,
                     double weight_decay)
    : parameters_(std::move(parameters)), state_names_(std::move(state_names)), weight_decay_(weight_decay) {
  states_.resize(state_names_.size());
  step_counts_.resize(parameters_.size());
  for (FlatParameter& parameter : parameters_) {
    check_parameter(parameter);
    parameter.ranges = merged(parameter.ranges);
    for (auto& states : states_)
      states.push_back(at::zeros(parameter.value.sizes(), parameter.value.options()));
  }
}

at::Tensor Optimizer::state(const std::string& name, size_t i) const {
  for (size_t s = 0; s < state_names_.size(); ++s) {
    if (state_names_[s] == name) return states_[s].at(i);
  }
  FSDP_CHECK(false, "no optimizer state \"", name, "\"");
}

void Optimizer::set_step_count(int64_t count) {
  FSDP_CHECK(count >= 0, "step count ", count);
  step_count_ = count;
  std::fill(step_counts_.begin(), step_counts_.end(), count);
}

void Optimizer::set_parameter_step_count(size_t i, int64_t count) {
  FSDP_CHECK(count >= 0 && count <= step_count_, "step count ", count, " of ", parameters_.at(i).name, " in ",
             step_count_, " steps");
  step_counts_.at(i) = count;
}

void Optimizer::step(const std::vector<at::Tensor>& gradients, double lr) {
  FSDP_CHECK(gradients.size() == parameters_.size(), gradients.size(), " gradients for ", parameters_.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) check_gradient(gradients[i], parameters_[i]);
  }
  at::NoGradGuard no_grad;
  ++step_count_;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    ++step_counts_[i];
    // The tensor itself where type and device are those of the value.
    at::Tensor gradient = gradients[i].to(parameters_[i].value.options());
    update_alike(i, gradient, true, lr);
    update_alike(i, gradient, false, lr);
  }
}

void Optimizer::update_alike(size_t i, const at::Tensor& gradient, bool decay, double lr) {
  // A tensor that the kernels write, and where the padded copies of its rests go back to.
  struct Column {
    at::Tensor whole;
    std::vector<at::Tensor>* parts;
  };
  Update todo;
  todo.states.resize(states_.size());
  todo.weight_decay = decay ? weight_decay_ : 0;
  todo.lr = lr;
  todo.step = step_counts_[i];
  std::vector<Column> columns = {{parameters_[i].value, &todo.values}, {gradient, &todo.gradients}};
  for (size_t s = 0; s < states_.size(); ++s) columns.push_back({states_[s][i], &todo.states[s]});

  std::vector<std::pair<at::Tensor, at::Tensor>> rests;  // the original and its copy
  bool pad = parameters_[i].value.is_cpu();
  for (const FlatParameter::Range& range : parameters_[i].ranges) {
    if (range.decay != decay) continue;
    int64_t length = range.end - range.begin;
    int64_t rest = pad ? length % kVectorFloats : 0;
    for (Column& column : columns) {
      if (length > rest) column.parts->push_back(column.whole.narrow(0, range.begin, length - rest));
      if (rest == 0) continue;
      at::Tensor original = column.whole.narrow(0, range.end - rest, rest);
      at::Tensor padded = at::zeros({kVectorFloats}, column.whole.options());
      at::Tensor copy = padded.narrow(0, 0, rest).copy_(original);
      if (column.parts != &todo.gradients) rests.emplace_back(original, copy);  // gradients are only read
      column.parts->push_back(std::move(padded));
    }
  }
  if (todo.values.empty()) return;
  update(todo);
  for (auto& [original, copy] : rests) original.copy_(copy);
}

std::vector<std::string> optimizer_names() { return {"adamw", "adam", "sgd", "lion"}; }

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatParameter> parameters) {
  if (!(options.lr >= 0 && std::isfinite(options.lr))) {
    fail(ErrorKind::kUsage, "optimizer.lr = ", options.lr,
         " must be a number of at least 0; correct the config");
  }
  if (!(options.weight_decay >= 0 && std::isfinite(options.weight_decay))) {
    fail(ErrorKind::kUsage, "optimizer.weight_decay = ", options.weight_decay,
         " must be a number of at least 0; correct the config");
  }
  if (options.name == "adamw") {
    return std::make_unique<Adam>(options, Adam::Decay::kDecoupled, std::move(parameters));
  }
  if (options.name == "adam") {
    return std::make_unique<Adam>(options, Adam::Decay::kInGradient, std::move(parameters));
  }
  if (options.name == "lion") return std::make_unique<Lion>(options, std::move(parameters));
  if (options.name == "sgd") return std::make_unique<Sgd>(options, std::move(parameters));
  std::string near = util::nearest(options.name, optimizer_names());
  fail(ErrorKind::kUsage, "unknown optimizer.name \"", options.name,
       "\"; expected one of: ", util::join(optimizer_names(), ", "),
       near.empty() ? "" : "; did you mean \"" + near + "\"?");
}

}  // namespace fsdp::optim
