#include "state/optim/optimizer.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/device/pinned_memory.h"
#include "base/tensor/autocast.h"
#include "base/util/error.h"

namespace fsdp::optim {

static_assert(kStateBlock == kernels::kCodedBlock);

namespace {

bool is_float(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

void check_parameter(const FlatParameter& parameter) {
  const at::Tensor& value = parameter.value;
  // Quantized tensors are never updated.
  const bool fits = value.defined() && (is_float(value.scalar_type()) || parameter.ranges.empty());
  FSDP_CHECK(fits && value.dim() == 1 && value.is_contiguous(), parameter.name,
             " is not a flat contiguous tensor of float32, bfloat16 or float16");
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
  FSDP_CHECK(is_float(type), "the gradient of ", parameter.name, " is of type ", at::toString(type));
}

/// The gradients of all parameters. Undefined for a parameter without a gradient.
void check_gradients(const std::vector<at::Tensor>& gradients, const std::vector<FlatParameter>& parameters) {
  FSDP_CHECK(gradients.size() == parameters.size(), gradients.size(), " gradients for ", parameters.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) check_gradient(gradients[i], parameters[i]);
  }
}

/// Merges neighbours with the same treatment, for fewer, longer kernel calls.
std::vector<FlatParameter::Range> merged(const std::vector<FlatParameter::Range>& ranges) {
  std::vector<FlatParameter::Range> result;
  for (const FlatParameter::Range& range : ranges) {
    if (range.begin == range.end) continue;
    if (!result.empty() && result.back().end == range.begin && result.back().treatment == range.treatment) {
      result.back().end = range.end;
    } else {
      result.push_back(range);
    }
  }
  return result;
}

void check_number(const std::string& name, double value) {
  if (value >= 0 && std::isfinite(value)) return;
  fail(ErrorKind::kUsage, name, " = ", value, " must be a number of at least 0; correct the config");
}

void check_numbers(const OptimizerOptions& options) {
  require(options.ema_decay >= 0 && options.ema_decay < 1, "optimizer.ema_decay = ", options.ema_decay,
          " must be a number from 0 to below 1; correct the config");
  check_number("optimizer.lr", options.lr);
  check_number("optimizer.weight_decay", weight_decay_of(options));
  for (const ParameterGroupOptions& group : options.groups) {
    check_number("lr in optimizer.groups", group.lr.value_or(0));
    check_number("lr_scale in optimizer.groups", group.lr_scale.value_or(0));
    check_number("weight_decay in optimizer.groups", group.weight_decay.value_or(0));
    if (group.lr && (group.lr_scale || options.lr == 0)) {
      fail(ErrorKind::kUsage, "lr in optimizer.groups needs optimizer.lr above 0 and no lr_scale beside it; ",
           "correct the config");
    }
  }
}

std::vector<Treatment> treatments_in(const std::vector<FlatParameter::Range>& ranges) {
  std::vector<Treatment> treatments;
  for (const FlatParameter::Range& range : ranges) {
    if (std::find(treatments.begin(), treatments.end(), range.treatment) == treatments.end()) {
      treatments.push_back(range.treatment);
    }
  }
  return treatments;
}

/// Number of elements of a state of this kind that are not in 8 bits. 0 if nothing is trained.
int64_t covered(const StateKind& kind, const FlatParameter& parameter) {
  if (parameter.ranges.empty() && parameter.tensors.empty()) return 0;  // frozen
  if (kind.is_flat()) return parameter.value.numel();
  int64_t numel = 0;
  if (kind.is_whole()) {
    for (const FlatParameter::Tensor& tensor : parameter.tensors) {
      if (kind.covers(tensor.treatment)) numel += kind.numel(tensor.shape);
    }
    return numel;
  }
  for (const FlatParameter::Range& range : parameter.ranges) {
    if (kind.covers(range.treatment) && kind.type_of(range.treatment) != StateType::kInt8) {
      numel += range.end - range.begin;
    }
  }
  return numel;
}

/// A part of a tensor whose state is in 8 bits.
struct CodedPart {
  int64_t begin = 0, numel = 0;  ///< place in the parameter's value
  int64_t code = 0, block = 0;   ///< of its first element
  int64_t phase = 0;             ///< place of its first element in its block
};

/// Calls visit(part) for all parts of tensors with elements whose state is in 8 bits; returns what would be
/// the next part.
template <typename Visit>
CodedPart for_each_coded_part(const StateKind& kind, const FlatParameter& parameter, const Visit& visit) {
  CodedPart next;
  for (const FlatParameter::Tensor& tensor : parameter.tensors) {
    if (!kind.covers(tensor.treatment) || kind.type_of(tensor.treatment) != StateType::kInt8) continue;
    next.begin = tensor.begin;
    for (const util::Rectangle& part : tensor.parts) {
      next.numel = part.numel();
      next.phase = kernels::phase_of(part, c10::multiply_integers(tensor.shape) / part.rows);
      if (next.numel > 0) visit(next);
      next.begin += next.numel;
      next.code += next.numel;
      next.block += kernels::coded_blocks(next.phase, next.numel);
    }
  }
  return next;
}

}  // namespace

Optimizer::Optimizer(const OptimizerOptions& options, std::vector<FlatParameter> parameters)
    : options_(options), parameters_(std::move(parameters)), state_kinds_(optim::state_kinds(options)) {
  check_numbers(options_);
  states_.resize(state_kinds_.size());
  step_counts_.resize(parameters_.size());
  for (FlatParameter& parameter : parameters_) {
    check_parameter(parameter);
    parameter.ranges = merged(parameter.ranges);
    treatments_.push_back(treatments_in(parameter.ranges));
    for (const Treatment& treatment : treatments_.back()) {
      FSDP_CHECK(treatment.group <= options_.groups.size(), parameter.name, " is in group ", treatment.group);
    }
    for (size_t s = 0; s < states_.size(); ++s) {
      const StateKind& kind = state_kinds_[s];
      const at::TensorOptions options = parameter.value.options().dtype(at::kFloat);
      State& state = states_[s].emplace_back();
      const bool on_host = kind.name != kEmaState && is_streamed(states_[s].size() - 1);
      const auto zeros = [&](int64_t numel, at::ScalarType type) {
        return on_host ? util::empty_pinned(numel, type, *parameter.device).zero_()
                       : at::zeros({numel}, options.dtype(type));
      };
      state.numbers =
          zeros(covered(kind, parameter), kind.type == StateType::kBFloat16 ? at::kBFloat16 : at::kFloat);
      const CodedPart end = for_each_coded_part(kind, parameter, [](const CodedPart&) {});
      if (end.code == 0) continue;
      state.codes = zeros(end.code, at::kByte);
      state.scales = zeros(end.block, at::kFloat);
    }
  }
  for (size_t i = 0; i < parameters_.size() && !staged_; ++i) {
    if (is_streamed(i)) staged_ = std::make_unique<util::StagedTensors>(*parameters_[i].device);
  }
}

bool Optimizer::is_streamed(size_t i) const {
  const FlatParameter& parameter = parameters_[i];
  return options_.offload == OptimizerOffload::kStream && parameter.device && !parameter.device->is_cpu();
}

std::vector<std::string> Optimizer::state_names() const {
  std::vector<std::string> names;
  for (const StateKind& kind : state_kinds_) names.push_back(kind.name);
  return names;
}

size_t Optimizer::state_index(const std::string& name) const {
  for (size_t s = 0; s < state_kinds_.size(); ++s) {
    if (state_kinds_[s].name == name) return s;
  }
  FSDP_CHECK(false, "no optimizer state \"", name, "\"");
}

at::Tensor Optimizer::state(const std::string& name, size_t i) const {
  return states_[state_index(name)].at(i).numbers;
}

std::array<at::Tensor, 3> Optimizer::state_memory(const std::string& name, size_t i) const {
  const State& state = states_[state_index(name)].at(i);
  return {state.numbers, state.codes, state.scales};
}

StateType Optimizer::state_type(const Treatment& treatment) const {
  for (const StateKind& kind : state_kinds_) {
    if (kind.name != kEmaState) return kind.type_of(treatment);
  }
  return StateType::kFloat32;
}

int64_t Optimizer::state_offset(size_t state, size_t i, int64_t begin) const {
  const StateKind& kind = state_kinds_[state];
  if (kind.is_flat()) return begin;
  int64_t offset = 0;
  for (const FlatParameter::Range& range : parameters_[i].ranges) {
    if (!kind.covers(range.treatment) || kind.type_of(range.treatment) == StateType::kInt8) continue;
    if (begin >= range.begin && begin < range.end) return offset + begin - range.begin;
    offset += range.end - range.begin;
  }
  FSDP_CHECK(false, parameters_[i].name, " has no ", kind.name, " of element ", begin);
}

std::optional<kernels::BlockCodes> Optimizer::codes_of(size_t state, size_t i, int64_t begin,
                                                       int64_t end) const {
  if (!states_[state].at(i).codes.defined()) return std::nullopt;
  std::optional<kernels::BlockCodes> found;
  const auto& [numbers, codes, scales] = states_[state][i];
  for_each_coded_part(state_kinds_[state], parameters_[i], [&](const CodedPart& part) {
    if (begin < part.begin || begin >= part.begin + part.numel) return;
    const kernels::BlockCodes all{codes.narrow(0, part.code, part.numel),
                                  scales.narrow(0, part.block, kernels::coded_blocks(part.phase, part.numel)),
                                  part.phase, state_kinds_[state].is_signed};
    found = kernels::narrow(all, begin - part.begin, end - begin);
  });
  return found;
}

StateView Optimizer::state_of(const std::string& name, size_t i, int64_t begin, int64_t end) const {
  const size_t s = state_index(name);
  const at::Tensor& numbers = states_[s].at(i).numbers;
  if (begin == end) return {numbers.narrow(0, 0, 0)};
  if (std::optional<kernels::BlockCodes> codes = codes_of(s, i, begin, end)) return {{}, *std::move(codes)};
  return {numbers.narrow(0, state_offset(s, i, begin), end - begin)};
}

at::Tensor Optimizer::state_of_tensor(const std::string& name, size_t i, const std::string& tensor) const {
  const size_t s = state_index(name);
  const StateKind& kind = state_kinds_[s];
  FSDP_CHECK(kind.is_whole(), name);
  int64_t offset = 0;
  for (const FlatParameter::Tensor& each : parameters_.at(i).tensors) {
    if (!kind.covers(each.treatment)) continue;
    if (each.name == tensor) return states_[s][i].numbers.narrow(0, offset, kind.numel(each.shape));
    offset += kind.numel(each.shape);
  }
  FSDP_CHECK(false, parameters_[i].name, " has no ", name, " of ", tensor);
}

void Optimizer::set_step_count(int64_t count) {
  FSDP_CHECK(count >= 0, "step count ", count);
  open_.reset();
  step_count_ = count;
  std::fill(step_counts_.begin(), step_counts_.end(), count);
}

void Optimizer::set_parameter_step_count(size_t i, int64_t count) {
  FSDP_CHECK(count >= 0 && count <= step_count_, "step count ", count, " of ", parameters_.at(i).name, " in ",
             step_count_, " steps");
  step_counts_.at(i) = count;
}

bool Optimizer::updates_alone() const {
  const OptimizerTraits* traits = optimizer_traits().find(options_.name);
  return traits == nullptr || traits->updates_alone;
}

void Optimizer::step(const std::vector<at::Tensor>& gradients, double lr, double gradient_scale) {
  check_gradients(gradients, parameters_);
  begin_step(lr, gradient_scale);
  update_all(gradients);
}

void Optimizer::step_scaled_on_device(const std::vector<at::Tensor>& gradients, double lr,
                                      const at::Tensor& gradient_scale) {
  if (gradient_scale.is_cpu()) {
    const auto scale = gradient_scale.item<double>();
    if (!std::isnan(scale)) step(gradients, lr, scale);
    return;
  }
  FSDP_CHECK(scales_on_device());
  check_gradients(gradients, parameters_);
  begin_step(lr);
  open_->scale_on_device = gradient_scale;
  update_all(gradients);
}

bool Optimizer::scales_on_device() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].value.is_cpu() && !is_updated_in_one_pass(i)) return false;
  }
  return true;
}

void Optimizer::update_all(const std::vector<at::Tensor>& gradients) {
  open_->collects = true;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) update_parameter(i, gradients[i]);
  }
  update_collected();
  end_step();
}

void Optimizer::update_collected() {
  const std::vector<Update> updates = std::exchange(open_->collected, {});
  if (!updates.empty()) update_together(updates);
}

void Optimizer::update_together(c10::ArrayRef<Update> updates) {
  for (const Update& each : updates) update(each);
}

bool Optimizer::is_updated_in_one_pass(size_t i) const {
  return updates_in_one_pass(parameters_[i].value) && !has_matrices(i);
}

bool Optimizer::has_matrices(size_t i) const {
  return std::any_of(treatments_[i].begin(), treatments_[i].end(),
                     [](const Treatment& treatment) { return treatment.matrix; });
}

void Optimizer::begin_step(double lr, double gradient_scale) {
  require(!(open_), "step ", step_count_,
          " of the optimizer failed after it had updated some of the weights; load a checkpoint");
  if (step_pre_hook_) step_pre_hook_();
  open_ = {.lr = lr, .gradient_scale = gradient_scale, .averaged = std::vector<bool>(parameters_.size())};
  ++step_count_;
}

void Optimizer::update_parameter(size_t i, const at::Tensor& gradient_as_it_came) {
  FSDP_CHECK(open_);
  check_gradient(gradient_as_it_came, parameters_.at(i));
  at::NoGradGuard no_grad;
  const util::NoAutocast no_autocast;
  ++step_counts_[i];
  const at::Tensor& value = parameters_[i].value;
  const bool left_to_update = is_updated_in_one_pass(i);
  const bool streamed = is_streamed(i);
  // update() writes the elements of its ranges only, so all others must be there already.
  if (parameters_[i].copy && left_to_update) parameters_[i].copy->update();
  const double scale = open_->gradient_scale;
  // to() returns the tensor itself if type and device do not change. Pieces are converted one by one.
  const at::Tensor gradient = streamed         ? gradient_as_it_came
                              : left_to_update ? gradient_as_it_came.to(value.device())
                                               : gradient_as_it_came.to(value.options().dtype(at::kFloat));
  const bool scales_here = !left_to_update && !streamed;
  if (scales_here && scale != 1) gradient.mul_(scale);
  update_ranges(i, gradient, open_->lr, scales_here ? 1 : scale);
  // At most one copy of a gradient exists at a time.
  if (!gradient.is_same(gradient_as_it_came)) update_collected();
  if (parameters_[i].copy && scales_here) parameters_[i].copy->rewrite();
  if (parameters_[i].copy && streamed) parameters_[i].copy->note_written();
  if (options_.ema_decay > 0 && streamed && value.is_cpu()) staged_->finish();
  if (options_.ema_decay > 0 && open_->collected.empty()) update_average(i);
}

void Optimizer::update_ranges(size_t i, const at::Tensor& gradient, double lr, double gradient_scale) {
  for (const Treatment& treatment : treatments_[i]) {
    if (!treatment.matrix) update_alike(i, gradient, treatment, gradient_scale);
  }
  update_matrices(i, gradient, lr);
}

// Parameters without a gradient are averaged too.
void Optimizer::end_step() {
  FSDP_CHECK(open_);
  at::NoGradGuard no_grad;
  for (size_t i = 0; options_.ema_decay > 0 && i < parameters_.size(); ++i) {
    if (!open_->averaged[i]) update_average(i);
  }
  if (staged_) staged_->finish();
  open_.reset();
}

void Optimizer::update_matrices(size_t i, const at::Tensor&, double) {
  for (const Treatment& treatment : treatments_[i]) {
    FSDP_CHECK(!treatment.matrix, parameters_[i].name, " has matrices for an optimizer of elements");
  }
}

bool Optimizer::updates_in_one_pass(const at::Tensor&) const { return false; }

bool Optimizer::takes_stored_states() const { return false; }

}  // namespace fsdp::optim
