#pragma once

// Optimizers over this rank's flat shards. They know neither shapes nor other ranks: an element's update
// depends on that element alone, so a parameter gets the same bits whole or sharded. The exceptions are muon,
// lamb and adafactor, which get whole matrices or sums over tensors through WholeMatrices. Their step() is
// collective; all else is not.
//
// Values may be kept in 16 bits, without fp32 master weights. An update is then computed in fp32, piece by
// piece, and rounded stochastically (model/kernels/stochastic_rounding.h). The random numbers depend on
// OptimizerOptions::rounding_seed, the tensor's name, the element's index in the whole tensor and the number
// of the step, but not on the sharding or on resumes. States are in fp32, or in bf16
// (OptimizerOptions::state_dtype), rounded in the same way, by the name of the state too, or in 8 bits
// (model/kernels/block_codes.h). The averages of the weights are always in fp32.
//
// With OptimizerOptions::offload, states are in pinned host memory, and so may values be. An update on the
// device then brings pieces of at most kStreamedPiece elements there and back (base/tensor/staged_tensors.h).
// Bits are those of an update without it. step() returns when all is in host memory.
//
// Not thread-safe.

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/tensor/staged_tensors.h"
#include "base/util/rectangle.h"
#include "model/kernels/block_codes.h"
#include "model/kernels/low_precision_copy.h"
#include "model/kernels/stochastic_rounding.h"
#include "state/groups/options.h"
#include "state/groups/parameter_groups.h"

namespace fsdp::optim {

/// Number of elements of an update that justify another thread.
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
    std::vector<int64_t> shape;  ///< shape of the whole tensor
    Treatment treatment = {};
    std::vector<util::Rectangle> parts = {};  ///< parts of the tensor, without overlap; may be empty
    int64_t begin = 0;  ///< position in `value`, where the elements of the parts follow each other

    int64_t numel() const { return util::numel_of(parts); }
    int64_t end() const { return begin + numel(); }
  };

  std::string name;
  at::Tensor value;           ///< [n] float32, or bfloat16 or float16; contiguous
  std::vector<Range> ranges;  ///< ascending, without overlap
  /// Tensors of the unit, for optimizers that need more than elements and for rounding to 16 bits. All but
  /// `parts` is the same on every rank.
  std::vector<Tensor> tensors = {};
  /// A copy of `value` in 16 bits, which an update writes too; may be null.
  std::shared_ptr<kernels::LowPrecisionCopy> copy = nullptr;
  /// Device on which gradients are computed; not given: that of the value.
  std::optional<at::Device> device = std::nullopt;
};

/// Numbers of a state, as they are kept between steps.
struct StateView {
  at::Tensor data;                 ///< [n] fp32 or bf16; undefined if they are coded
  kernels::BlockCodes codes = {};  ///< [n] fp32 numbers in 8 bits; undefined if they are not

  bool is_coded() const { return codes.is_defined(); }
  /// The numbers in fp32 if they are coded, otherwise `data`.
  at::Tensor numbers() const { return is_coded() ? kernels::decoded(codes) : data; }
};

/// Gives an optimizer over shards access to whole matrices and to sums over whole tensors. Implemented by
/// ShardedMatrices (state/optim/engine_shards.h).
class WholeMatrices {
 public:
  /// matrix: [rows, columns], contiguous float32 -> the same shape
  using Function = std::function<at::Tensor(const at::Tensor& matrix)>;

  virtual ~WholeMatrices() = default;

  /// Whether the parameter (an index into Optimizer::parameters()) has matrices on any rank. The same on
  /// every rank.
  virtual bool has_matrices(size_t parameter) const = 0;

  /// Replaces this rank's parts of the parameter's matrices in `flat` by its parts of function(matrix), which
  /// is the same on every rank. `flat` is [n] float32, with the value's shape, and zero outside the matrices.
  /// Collective: every rank calls it for the same parameters in the same order.
  virtual void map(size_t parameter, const at::Tensor& flat, const Function& function) = 0;

  /// Adds up the sums that each rank has computed over its parts of the parameter, so that all ranks have the
  /// same bits. sums: [n] double on the CPU. Collective, like map().
  virtual void add_up(size_t parameter, const at::Tensor& sums) = 0;
};

/// Updates this rank's shards from their gradients (fsdp/optimizer.h).
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
  /// Like step(), with gradient_scale as a double on the device of the values. Updates nothing if it is NaN.
  /// Does not wait for a GPU. Requires: scales_on_device().
  void step_scaled_on_device(const std::vector<at::Tensor>& gradients, double lr,
                             const at::Tensor& gradient_scale);
  bool scales_on_device() const;

  // step() in parts, for gradients that arrive one by one: begin_step(), then update_parameter() once for
  // each parameter that has a gradient, in any order and on any thread, but one at a time, then end_step().
  // The result has the same bits as step()'s. Requires: updates_alone().

  /// Whether the update of a parameter depends on its own gradient and state only, as its traits say.
  bool updates_alone() const;
  /// Throws Error(kUsage) if a step was begun and not ended, because its updates cannot be undone. To
  /// continue, load other values and call set_step_count().
  void begin_step(double lr, double gradient_scale = 1);
  void update_parameter(size_t i, const at::Tensor& gradient);
  void end_step();

  /// Sets a function that each step calls before it changes values or states, as PyTorch's
  /// register_step_pre_hook() does. Null: none.
  void set_step_pre_hook(std::function<void()> hook) { step_pre_hook_ = std::move(hook); }

  const std::vector<FlatParameter>& parameters() const { return parameters_; }

  const OptimizerOptions& options() const { return options_; }

  /// state_kinds() of the options.
  const std::vector<StateKind>& states() const { return state_kinds_; }
  std::vector<std::string> state_names() const;
  /// The state of parameter i, initially zero, without what is in 8 bits. It is flat like the parameter's
  /// value. A state that covers only some elements has those elements, range by range; a state that is whole
  /// has tensor after tensor. Writable, for resuming.
  at::Tensor state(const std::string& name, size_t i) const;
  /// All memory of the state of parameter i: state(), codes and their scales. Undefined if there are none.
  std::array<at::Tensor, 3> state_memory(const std::string& name, size_t i) const;
  /// The state of elements [begin, end) of the value. Requires: the state covers the elements, and they are
  /// in one range or in none, and in one part of a tensor if they are in 8 bits.
  StateView state_of(const std::string& name, size_t i, int64_t begin, int64_t end) const;
  /// The state of a tensor of parameter i. Requires: the state is whole and covers the tensor.
  at::Tensor state_of_tensor(const std::string& name, size_t i, const std::string& tensor) const;

  /// Calls of step() so far.
  int64_t step_count() const { return step_count_; }
  /// Sets the step count of the optimizer and of every parameter, for resuming together with the contents of
  /// the states. Call set_parameter_step_count() afterwards for parameters that had no gradient in some
  /// steps.
  void set_step_count(int64_t count);

  /// Steps in which parameter i had a gradient; as in PyTorch, Adam's bias correction uses this count.
  int64_t parameter_step_count(size_t i) const { return step_counts_.at(i); }
  /// Sets the step count of parameter i, for resuming. Call it after set_step_count(). Requires: count <=
  /// step_count().
  void set_parameter_step_count(size_t i, int64_t count);

 protected:
  /// Throws Error(kUsage) for rates and weight decays that are negative or not finite.
  Optimizer(const OptimizerOptions& options, std::vector<FlatParameter> parameters);

  /// Tensors with the same treatment. Entry k of each list belongs to the same elements.
  struct Update {
    std::vector<at::Tensor> values;
    std::vector<at::Tensor> gradients;
    /// Copies of the values in 16 bits; empty if there are none, or if update() need not write them.
    std::vector<at::Tensor> copies;
    /// One list for each of states() that covers the elements, except the average of the weights.
    std::vector<std::vector<at::Tensor>> states;
    /// How elements of the states are to be rounded, list by list; empty unless the states are bf16.
    std::vector<std::vector<kernels::RoundedElements>> rounded = {};
    /// The states, list by list, if they are in 8 bits; empty otherwise. Then `states` has their codes.
    std::vector<std::vector<kernels::BlockCodes>> coded = {};
    double weight_decay = 0;
    double lr = 0;
    int64_t step = 0;           ///< step of the parameter that the elements belong to, from 1
    double gradient_scale = 1;  ///< factor that update() multiplies into the gradients
    /// Replaces gradient_scale if defined. See step_scaled_on_device().
    at::Tensor scale_on_device = {};
  };
  /// Whether update() needs no other pass over this value: it multiplies gradients by gradient_scale, accepts
  /// gradients in 16 bits, and writes Update::copies.
  virtual bool updates_in_one_pass(const at::Tensor& value) const;
  /// Whether update() takes states in bf16, which it rounds by Update::rounded, and Update::coded. Otherwise
  /// it gets fp32 copies of pieces, at most kPiece elements at a time, which are stored afterwards.
  virtual bool takes_stored_states() const;
  /// Updates values and states in place.
  virtual void update(const Update& update) = 0;
  /// Updates several parameters of one step, and scales all of their gradients.
  virtual void update_together(c10::ArrayRef<Update> updates);

  /// Updates parameter i: its elements by update(), its matrices by update_matrices().
  virtual void update_ranges(size_t i, const at::Tensor& gradient, double lr, double gradient_scale);
  /// Updates the ranges of parameter i that are matrices. Called for every parameter with a gradient.
  virtual void update_matrices(size_t i, const at::Tensor& gradient, double lr);

  /// Gets `piece`, [n] fp32: elements [begin, begin + n) of a parameter's value.
  using PieceFunction = c10::function_ref<void(const at::Tensor& piece, int64_t begin)>;
  /// Calls change(piece, begin), which updates the piece in place, for pieces that make up elements [begin,
  /// end) of parameter i's value. An fp32 value is one piece, without a copy. A 16-bit value is copied in
  /// pieces of at most kPiece elements, which are rounded back. Requires: the elements belong to the
  /// parameter's tensors.
  void change_value(size_t i, int64_t begin, int64_t end, PieceFunction change);
  /// Like change_value(), for pieces that are only read.
  void read_value(size_t i, int64_t begin, int64_t end, PieceFunction read) const;
  /// Like change_value(), for the state of these elements. Requires: as for state_of().
  void change_state(const std::string& name, size_t i, int64_t begin, int64_t end, PieceFunction change);
  /// Whether the value of parameter i is kept in 16 bits.
  bool is_rounded(size_t i) const;

 private:
  /// A step between begin_step() and end_step().
  struct OpenStep {
    double lr = 0, gradient_scale = 1;
    std::vector<bool> averaged;       ///< [parameter]
    at::Tensor scale_on_device = {};  ///< replaces gradient_scale if defined
    bool collects = false;            ///< whether updates are collected for update_together()
    std::vector<Update> collected = {};
  };
  bool has_matrices(size_t i) const;
  /// Whether update() does so for all of parameter i.
  bool is_updated_in_one_pass(size_t i) const;
  /// Ends the step that begin_step() began.
  void update_all(const std::vector<at::Tensor>& gradients);
  /// Updates the ranges of parameter i with this treatment.
  void update_alike(size_t i, const at::Tensor& gradient, const Treatment& treatment, double gradient_scale);
  /// A part of a parameter's value, with what belongs to it.
  struct Piece {
    at::Tensor value = {};
    int64_t begin = 0;  ///< element of the parameter's value
    at::Tensor gradient = {};
    int64_t gradient_begin = 0;
    at::Tensor copy = {};  ///< in 16 bits, of the value from `begin` on, if update() writes it
    /// One of each of states(), of the whole piece, if the parameter is streamed; else they are in states_.
    std::vector<StateView> states = {};
  };
  /// Updates the elements in `ranges` of a piece.
  void update_piece(size_t i, const Piece& piece, const std::vector<FlatParameter::Range>& ranges,
                    Update numbers);
  /// Whether the states of parameter i are in host memory, and its update on a device.
  bool is_streamed(size_t i) const;
  /// Updates these elements of a parameter whose states are in host memory.
  void update_streamed(size_t i, const std::vector<FlatParameter::Range>& ranges, const at::Tensor& gradient,
                       const Update& numbers);
  struct StreamedPiece {
    util::StagedTensors::Set set;
    Piece piece;
  };
  /// Begins to bring elements [begin, end) to the device.
  StreamedPiece fetched(size_t i, int64_t begin, int64_t end, const Treatment& treatment,
                        const at::Tensor& gradient);
  void update_collected();
  /// The type of all states with this treatment but the average of the weights.
  StateType state_type(const Treatment& treatment) const;
  /// Calls visit(begin, end) for pieces of at most `most` elements that make up elements [begin, end) of
  /// parameter i's value. A piece is in one part of a tensor, and its states in 8 bits share no block with
  /// others.
  void for_each_piece(size_t i, int64_t begin, int64_t end, int64_t most,
                      c10::function_ref<void(int64_t, int64_t)> visit) const;
  /// Stores fp32 numbers as the state of parameter i's elements from `begin` on.
  void store_state(const std::string& name, size_t i, int64_t begin, const at::Tensor& numbers,
                   const StateView& to);
  /// Calls visit(from, to, elements) for the parts of tensors that make up elements [begin, end) of parameter
  /// i's value, with the numbers of this step by which the values, or the state of this name, are rounded.
  void for_each_part(size_t i, int64_t begin, int64_t end, const std::string& state,
                     c10::function_ref<void(int64_t, int64_t, const kernels::RoundedElements&)> visit) const;
  /// How the states of ranges, each in one part of a tensor, are rounded.
  std::vector<kernels::RoundedElements> rounded_elements(size_t i,
                                                         const std::vector<FlatParameter::Range>& ranges,
                                                         const std::string& state) const;
  /// Rounds a piece to `to`: elements of parameter i from `begin` on, or their state.
  void round_back(size_t i, const at::Tensor& piece, int64_t begin, const at::Tensor& to,
                  const std::string& state = "");
  void update_average(size_t i);
  size_t state_index(const std::string& name) const;
  /// Offset of element `begin` in the state's numbers, or in its codes. Requires: the element is in a range
  /// of parameter i.
  int64_t state_offset(size_t state, size_t i, int64_t begin) const;
  /// Elements [begin, end) of a part of a tensor, if their state is in 8 bits.
  std::optional<kernels::BlockCodes> codes_of(size_t state, size_t i, int64_t begin, int64_t end) const;

  OptimizerOptions options_;
  std::vector<FlatParameter> parameters_;
  /// [parameter]: the treatments of its ranges, without duplicates.
  std::vector<std::vector<Treatment>> treatments_;
  std::vector<StateKind> state_kinds_;
  /// A state of a parameter: numbers, and, of what is in 8 bits, codes and scales.
  struct State {
    at::Tensor numbers, codes, scales;
  };
  std::vector<std::vector<State>> states_;       ///< [state][parameter]
  std::unique_ptr<util::StagedTensors> staged_;  ///< null: nothing is streamed
  std::function<void()> step_pre_hook_;
  std::optional<OpenStep> open_;
  int64_t step_count_ = 0;
  std::vector<int64_t> step_counts_;  ///< [parameter]
};

/// Makes an optimizer, like make_optimizer(), for one name of optimizer_traits().
using OptimizerFactory = std::function<std::unique_ptr<Optimizer>(
    const OptimizerOptions& options, std::vector<FlatParameter> parameters, WholeMatrices* matrices)>;

/// Adds an optimizer under a name for OptimizerOptions::name. Throws Error(kUsage) if the name is taken.
void register_optimizer(const std::string& name, const OptimizerTraits& traits, OptimizerFactory make);

/// Makes the optimizer of `options`. Muon, lamb and adafactor need `matrices`, which must outlive the
/// optimizer. Throws Error(kUsage) for an unknown name or a number out of range.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatParameter> parameters,
                                          WholeMatrices* matrices = nullptr);

}  // namespace fsdp::optim
