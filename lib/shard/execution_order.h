#pragma once

// In which order units are used: what the last pass tells about the next unit to gather.
//
// Units are numbers here. A pass is one forward of the root stage. Nothing is collective. Needs no libtorch.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace fsdp::shard {

class ExecutionOrder {
 public:
  /// `units`: how many uses of units a pass is expected to have; more cost an allocation.
  explicit ExecutionOrder(size_t units = 0);

  void begin_pass();
  /// A unit's forward begins. A unit may be used several times in a pass.
  void begin(size_t unit);
  void end(size_t unit) { ended_.push_back({unit}); }
  void end_pass() { last_pass_ = begun_; }
  /// Forgets the pass under way.
  void abandon_pass();

  /// Whether an earlier pass tells what comes next.
  bool knows() const { return !last_pass_.empty(); }
  /// What began in the last pass where this one stands now; nothing when unknown, or past its end.
  std::optional<size_t> expected() const;
  /// Whether this pass has begun the same units as the last one so far.
  bool follows_last_pass() const { return follows_; }
  /// The units that should follow, in order, at most `most`; none when this pass goes its own way. Valid until
  /// the pass ends.
  std::span<const size_t> next(size_t most) const;

  /// Backward meets units in the reverse of the order in which their forwards ended. This is what should come
  /// after `unit` and has not begun in this backward pass yet: of nested units the outer one's backward ends
  /// last, and what follows it there has begun before.
  std::optional<size_t> next_in_backward(size_t unit) const;
  void begin_backward_pass();
  void begin_in_backward(size_t unit);

  size_t position() const { return begun_.size(); }

 private:
  /// A forward that has ended.
  struct Use {
    size_t unit;
    bool begun_in_backward = false;
  };

  std::vector<size_t> begun_;      ///< of this pass
  std::vector<Use> ended_;         ///< of this pass
  std::vector<size_t> last_pass_;  ///< begun
  bool follows_ = false;
};

}  // namespace fsdp::shard
