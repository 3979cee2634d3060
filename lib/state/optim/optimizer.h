#pragma once

// Optimizers over this rank's flat shards. They see no shapes or other ranks: an element's update depends on
// that element alone, so a parameter is updated to the same bits whole or sharded. The exceptions are muon,
// lamb and adafactor, which get whole matrices or sums over tensors through WholeMatrices; their step() is
// collective. Nothing else is.
//
// Values may be kept in 16 bits, without fp32 master weights. An update is then computed in fp32, piece by
// piece, and rounded stochastically (model/kernels/stochastic_rounding.h). The random numbers depend on
// OptimizerOptions::rounding_seed, the tensor's name, the element's index in the whole tensor and the number of
// the step: not on the sharding, nor on whether the run was resumed. States are in fp32.
//
// Not thread-safe.

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/util/rectangle.h"
#include "state/groups/options.h"
#include "state/groups/parameter_groups.h"

namespace fsdp::optim {

/// Elements of an update that are worth another thread.
inline constexpr int64_t kGrain = 32768;

/// This rank's shard of one unit's parameters.
struct FlatParameter {
  /// A part that is updated. Padding and frozen parameters are in no range.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;  ///< elements [begin, end) of value
    Treatment treatment = {};
  };

  /// A trainable tensor of the unit, and this rank's parts of it.
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;  ///< of the whole tensor
    Treatment treatment = {};
    std::vector<util::Rectangle> parts = {};  ///< of the tensor, without overlap; may be empty
    int64_t begin = 0;  ///< in the value, where the elements of the parts follow each other

    int64_t numel() const { return util::numel_of(parts); }
    int64_t end() const { return begin + numel(); }
  };

  std::string name;
  at::Tensor value;           ///< [n] float32, or bfloat16 or float16; contiguous
  std::vector<Range> ranges;  ///< ascending, without overlap
  /// For optimizers that need more than elements, and for rounding to 16 bits: the same on every rank, but for
  /// the parts.
  std::vector<Tensor> tensors = {};
};

/// Gives an optimizer over shards access to whole matrices, and to sums over whole tensors. Implemented where
/// parameters are sharded.
class WholeMatrices {
 public:
  /// matrix: [rows, columns], contiguous float32 -> the same shape
  using Function = std::function<at::Tensor(const at::Tensor& matrix)>;

  virtual ~WholeMatrices() = default;

  /// Whether the parameter (an index into Optimizer::parameters()) has matrices on any rank; alike on all.
  virtual bool has_matrices(size_t parameter) const = 0;

  /// Replaces this rank's parts of the parameter's matrices in `flat` by those of function(matrix), which is
  /// the same on every rank. `flat` is [n] float32, with the value's shape, and zero outside the matrices.
  /// Collective: every rank calls it for the same parameters in the same order.
  virtual void map(size_t parameter, const at::Tensor& flat, const Function& function) = 0;

  /// Adds up sums that each rank has computed of its parts of the parameter, so that all ranks have the same
  /// bits. sums: [n] double on the CPU. Collective, as map().
  virtual void add_up(size_t parameter, const at::Tensor& sums) = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter in place. gradients[i] is contiguous and has the shape of parameters()[i].value;
  /// it may be float32, bfloat16 or float16 and on another device: gradients are converted one at a time. An
  /// undefined gradient leaves its parameter, state and step count unchanged. Gradients are multiplied by
  /// gradient_scale (shard::clipping()), possibly in place.
  void step(const std::vector<at::Tensor>& gradients, double lr, double gradient_scale = 1);
  /// step() with a factor that only the device of the values knows: a double there; NaN: nothing is updated.
  /// Does not wait for a GPU. Requires scales_on_device().
  void step_scaled_on_device(const std::vector<at::Tensor>& gradients, double lr,
                             const at::Tensor& gradient_scale);
  bool scales_on_device() const;

  // step() in parts, for gradients that arrive one by one: begin_step(), then update_parameter() once for
  // each parameter that has a gradient, in any order and on any thread, but one at a time, then end_step().
  // The result has the same bits as step()'s. Requires updates_alone().

  /// Whether the update of a parameter depends on its own gradient and state only, as its traits say.
  bool updates_alone() const;
  /// Throws Error(kUsage) after a step that was begun and not ended, because its updates cannot be undone;
  /// set_step_count(), after other values were loaded, clears that state.
  void begin_step(double lr, double gradient_scale = 1);
  void update_parameter(size_t i, const at::Tensor& gradient);
  void end_step();

  const std::vector<FlatParameter>& parameters() const { return parameters_; }

  const OptimizerOptions& options() const { return options_; }

  /// state_kinds() of the options.
  const std::vector<StateKind>& states() const { return state_kinds_; }
  std::vector<std::string> state_names() const;
  /// The state of parameter i, initially zero: flat like its value; if the state covers some elements only,
  /// these elements, range by range; if it is whole, tensor by tensor. May be written to, for resuming.
  at::Tensor state(const std::string& name, size_t i) const;
  /// The state of elements [begin, end) of the value, which it covers and which are in one range or none.
  at::Tensor state_of(const std::string& name, size_t i, int64_t begin, int64_t end) const;
  /// The state, which is whole and covers it, of a tensor of parameter i.
  at::Tensor state_of_tensor(const std::string& name, size_t i, const std::string& tensor) const;

  /// Calls of step() so far.
  int64_t step_count() const { return step_count_; }
  /// For resuming, together with the contents of the states. Sets the count of every parameter too; for
  /// parameters without a gradient in some steps, set_parameter_step_count() follows.
  void set_step_count(int64_t count);

  /// Steps in which parameter i had a gradient; as in PyTorch, Adam's bias correction uses this count.
  int64_t parameter_step_count(size_t i) const { return step_counts_.at(i); }
  /// For resuming, after set_step_count(); at most step_count().
  void set_parameter_step_count(size_t i, int64_t count);

 protected:
  /// Throws Error(kUsage) for rates and weight decays that are negative or not finite.
  Optimizer(const OptimizerOptions& options, std::vector<FlatParameter> parameters);

  /// Tensors with the same treatment; entry k of each list belongs to the same elements.
  struct Update {
    std::vector<at::Tensor> values;
    std::vector<at::Tensor> gradients;
    /// One list for each of states() that covers the elements, except the average of the weights.
    std::vector<std::vector<at::Tensor>> states;
    double weight_decay = 0;
    double lr = 0;
    int64_t step = 0;           ///< of the parameter that the elements belong to, from 1
    double gradient_scale = 1;  ///< still to be multiplied into the gradients
    /// In place of gradient_scale, if defined; see step_scaled_on_device().
    at::Tensor scale_on_device = {};
  };
  /// Whether update() itself multiplies gradients by gradient_scale, and accepts gradients in 16 bits.
  virtual bool scales_gradients_of(const at::Tensor& value) const;
  /// Updates values and states in place.
  virtual void update(const Update& update) = 0;
  /// The same for several parameters of one step, all of whose gradients it scales.
  virtual void update_together(c10::ArrayRef<Update> updates);

  /// Updates parameter i: its elements by update(), its matrices by update_matrices().
  virtual void update_ranges(size_t i, const at::Tensor& gradient, double lr, double gradient_scale);
  /// Updates the ranges of parameter i that are matrices. Called for every parameter with a gradient.
  virtual void update_matrices(size_t i, const at::Tensor& gradient, double lr);

  /// [n] fp32, of elements [begin, begin + n) of a parameter's value.
  using PieceFunction = c10::function_ref<void(const at::Tensor& piece, int64_t begin)>;
  /// Calls change(piece, begin) for pieces that together are elements [begin, end) of parameter i's value, and
  /// that it updates in place: one piece, the value itself, in fp32; copies of at most kPiece elements, which
  /// are rounded back, in 16 bits. The elements must belong to the parameter's tensors.
  void change_value(size_t i, int64_t begin, int64_t end, PieceFunction change);
  /// The same for pieces that are only read.
  void read_value(size_t i, int64_t begin, int64_t end, PieceFunction read) const;
  /// Whether the value of parameter i is kept in 16 bits.
  bool is_rounded(size_t i) const;

 private:
  /// A step between begin_step() and end_step().
  struct OpenStep {
    double lr = 0, gradient_scale = 1;
    std::vector<bool> averaged;       ///< [parameter]
    at::Tensor scale_on_device = {};  ///< in place of gradient_scale, if defined
    bool collects = false;            ///< updates, for update_together()
    std::vector<Update> collected = {};
  };
  bool has_matrices(size_t i) const;
  /// Whether update() multiplies all of the gradient of parameter i by the scale.
  bool is_scaled_by_update(size_t i) const;
  /// Ends the step that begin_step() began.
  void update_all(const std::vector<at::Tensor>& gradients);
  /// Updates the ranges of parameter i with this treatment.
  void update_alike(size_t i, const at::Tensor& gradient, const Treatment& treatment, double gradient_scale);
  /// Updates a piece of the value, from element `first` on, and what belongs to it, in `ranges`.
  void update_piece(size_t i, const at::Tensor& piece, int64_t first,
                    const std::vector<FlatParameter::Range>& ranges, const at::Tensor& gradient,
                    Update numbers);
  void update_collected();
  /// Rounds a piece back to elements of parameter i, from `begin` on.
  void round_back(size_t i, const at::Tensor& piece, int64_t begin);
  void update_average(size_t i);
  size_t state_index(const std::string& name) const;
  /// Offset in the state of element `begin`, which is in a range of parameter i.
  int64_t state_offset(size_t state, size_t i, int64_t begin) const;

  OptimizerOptions options_;
  std::vector<FlatParameter> parameters_;
  std::vector<std::vector<Treatment>> treatments_;  ///< [parameter]: those of its ranges, without duplicates
  std::vector<StateKind> state_kinds_;
  std::vector<std::vector<at::Tensor>> states_;  ///< [state][parameter]
  std::optional<OpenStep> open_;
  int64_t step_count_ = 0;
  std::vector<int64_t> step_counts_;  ///< [parameter]
};

/// As make_optimizer(), for one name of optimizer_traits().
using OptimizerFactory = std::function<std::unique_ptr<Optimizer>(
    const OptimizerOptions& options, std::vector<FlatParameter> parameters, WholeMatrices* matrices)>;

/// Adds an optimizer under a name for OptimizerOptions::name. Throws Error(kUsage) if the name is taken.
void register_optimizer(const std::string& name, const OptimizerTraits& traits, OptimizerFactory make);

/// Throws Error(kUsage) for an unknown name or a number out of range. `matrices`, which muon, lamb and
/// adafactor need, must outlive the optimizer.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatParameter> parameters,
                                          WholeMatrices* matrices = nullptr);

}  // namespace fsdp::optim
