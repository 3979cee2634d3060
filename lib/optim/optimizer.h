#pragma once

// Optimizers over this rank's flat shards. They see no shapes or other ranks: an element's update depends on
// that element alone, so a parameter is updated bit for bit the same whole or cut into shards. The exception
// is muon, which reaches whole matrices through WholeMatrices; its step() is collective. Nothing else is.
//
// Not thread-safe.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optim/options.h"
#include "optim/parameter_groups.h"
#include "optim/whole_matrices.h"

namespace fsdp::optim {

/// Elements of an update that are worth a thread of their own.
inline constexpr int64_t kGrain = 32768;

/// This rank's shard of one unit's parameters.
struct FlatParameter {
  /// A part that is updated. Padding and what belongs to nobody lies in no range.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;  ///< elements [begin, end) of value
    Treatment treatment = {};
  };

  std::string name;
  at::Tensor value;           ///< [n] float32, contiguous
  std::vector<Range> ranges;  ///< ascending, without overlap
};

/// One optimizer over the shards of one rank.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter in place. gradients[i] is contiguous and has the shape of parameters()[i].value;
  /// it may be float32, bfloat16 or float16 and lie on another device: then it is converted when its turn
  /// comes, and the copy is gone before the next one is made. An undefined gradient leaves its parameter,
  /// its state and its step count as they are. Gradients count times gradient_scale (shard::clipping()), for
  /// which they may be overwritten.
  void step(const std::vector<at::Tensor>& gradients, double lr, double gradient_scale = 1);

  // step() in parts, for gradients that come one by one: begin_step(), update_parameter() of each parameter
  // that has a gradient, once, in any order and by any thread, but one at a time, and end_step(). The result
  // is that of step(), bit for bit. Only where updates_alone().

  /// Whether what becomes of a parameter depends on nothing but its own gradient and state.
  virtual bool updates_alone() const { return true; }
  /// Throws Error(kUsage) after a step that was begun and not ended: what it updated cannot be taken back.
  /// set_step_count() says that other values were loaded since.
  void begin_step(double lr, double gradient_scale = 1);
  void update_parameter(size_t i, const at::Tensor& gradient);
  void end_step();

  const std::vector<FlatParameter>& parameters() const { return parameters_; }

  const OptimizerOptions& options() const { return options_; }

  /// What is kept between steps: state_kinds() of the options.
  const std::vector<StateKind>& states() const { return state_kinds_; }
  std::vector<std::string> state_names() const;
  /// The state of parameter i, zero from construction on: flat like its value, or, where the state covers
  /// some elements only, those of its ranges one after another. Writing to it restores it.
  at::Tensor state(const std::string& name, size_t i) const;
  /// The part of it that belongs to elements [begin, end) of the value, which lie in one range, or in none
  /// when there are none of them; the state covers them.
  at::Tensor state_of(const std::string& name, size_t i, int64_t begin, int64_t end) const;

  /// Calls of step() so far.
  int64_t step_count() const { return step_count_; }
  /// For resuming, together with the contents of the states. Every parameter gets this count: right unless
  /// gradients were undefined at times; for those set_parameter_step_count() follows.
  void set_step_count(int64_t count);

  /// Steps in which parameter i had a gradient. As in PyTorch it is this count that corrects Adam's bias.
  int64_t parameter_step_count(size_t i) const { return step_counts_.at(i); }
  /// For resuming, after set_step_count(); at most step_count().
  void set_parameter_step_count(size_t i, int64_t count);

 protected:
  /// Throws Error(kUsage) for rates and weight decays that are negative or not finite.
  Optimizer(const OptimizerOptions& options, std::vector<FlatParameter> parameters);

  /// Tensors that are updated alike; entry k of each list belongs to the same elements.
  struct Update {
    std::vector<at::Tensor> values;
    std::vector<at::Tensor> gradients;
    /// One list for each of states() that covers the elements, but the average of the weights.
    std::vector<std::vector<at::Tensor>> states;
    double weight_decay = 0;
    double lr = 0;
    int64_t step = 0;           ///< of the parameter that the elements belong to, from 1
    double gradient_scale = 1;  ///< that the gradients are still to be multiplied with
  };
  /// Whether update() itself multiplies gradients with their scale, and takes them in bfloat16 too.
  virtual bool scales_gradients_of(const at::Tensor& value) const;
  /// Updates values and states in place.
  virtual void update(const Update& update) = 0;

  /// Updates the ranges of parameter i that are matrices. Called for every parameter with a gradient.
  virtual void update_matrices(size_t i, const at::Tensor& gradient, double lr);

 private:
  /// What a step in parts has to know.
  struct OpenStep {
    double lr = 0, gradient_scale = 1;
    std::vector<bool> averaged;  ///< [parameter]
  };
  /// An update, but for its tensors.
  Update numbers_of(size_t i, const Treatment& treatment, double lr, double gradient_scale) const;
  void update_alike(size_t i, const at::Tensor& gradient, const Treatment& treatment, Update todo);
  void update_average(size_t i);
  size_t state_index(const std::string& name) const;
  /// Where the state has what belongs to element `begin` of a range of parameter i.
  int64_t state_offset(size_t state, size_t i, int64_t begin) const;

  OptimizerOptions options_;
  std::vector<FlatParameter> parameters_;
  std::vector<std::vector<Treatment>> treatments_;  ///< [parameter] those of its ranges, each once
  std::vector<StateKind> state_kinds_;
  std::vector<std::vector<at::Tensor>> states_;  ///< [state][parameter]
  std::optional<OpenStep> open_;
  int64_t step_count_ = 0;
  std::vector<int64_t> step_counts_;  ///< [parameter]
};

/// Makes an optimizer of optimizer_traits(); as make_optimizer() below.
using OptimizerFactory = std::function<std::unique_ptr<Optimizer>(
    const OptimizerOptions& options, std::vector<FlatParameter> parameters, WholeMatrices* matrices)>;

/// Adds one to those that OptimizerOptions::name can be. Throws Error(kUsage) for a name that is taken.
void register_optimizer(const std::string& name, const OptimizerTraits& traits, OptimizerFactory make);

/// Throws Error(kUsage) for an unknown name or a number outside its range. `matrices` must outlive the
/// optimizer; muon needs it.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatParameter> parameters,
                                          WholeMatrices* matrices = nullptr);

}  // namespace fsdp::optim
