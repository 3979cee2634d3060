#pragma once

// In which order units are used: what the passes so far tell about the next unit to gather.
//
// Units are numbers here. A pass is one forward of the root. Nothing is collective. Needs no libtorch.

#include <cstddef>
#include <optional>
#include <vector>

namespace fsdp::shard {

class ExecutionOrder {
 public:
  void begin_pass();
  /// A unit's forward begins. A unit may be used several times in a pass.
  void begin(size_t unit);
  void end(size_t unit) { ended_.push_back(unit); }
  void end_pass() { last_pass_ = begun_; }
  /// Forgets the pass under way.
  void abandon_pass();

  /// Whether an earlier pass tells what comes next.
  bool knows() const { return !last_pass_.empty(); }
  /// What began in the last pass where this one stands now; nothing when unknown, or past its end.
  std::optional<size_t> expected() const;
  /// Whether this pass has begun the same units as the last one so far.
  bool follows_last_pass() const { return follows_; }
  /// The units that should follow, in order, at most `most`; none when this pass goes its own way.
  std::vector<size_t> next(size_t most) const;

  /// Backward meets units in the reverse of the order in which their forwards ended. This is what should come
  /// after `unit` and has not begun in this backward pass yet: of nested units the outer one's backward ends
  /// last, and what follows it there has been.
  std::optional<size_t> next_in_backward(size_t unit) const;
  void begin_backward_pass() { begun_in_backward_.clear(); }
  void begin_in_backward(size_t unit);

  size_t position() const { return begun_.size(); }

 private:
  std::vector<size_t> begun_, ended_;      ///< of this pass
  std::vector<size_t> begun_in_backward_;  ///< [unit] how often in this backward pass
  std::vector<size_t> last_pass_;          ///< begun
  bool follows_ = false;
};

}  // namespace fsdp::shard
