#pragma once

// The order in which units are used: the previous pass predicts the next unit to gather.
//
// Units are numbers. A pass is one forward of the root stage. Nothing is collective. Needs no libtorch.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace fsdp::shard {

class ExecutionOrder {
 public:
  /// `units`: for how many uses of units a pass has memory without another allocation.
  explicit ExecutionOrder(size_t units = 0);

  void begin_pass();
  /// A unit's forward begins. A unit may be used several times in a pass.
  void begin(size_t unit);
  void end(size_t unit) { ended_.push_back({unit}); }
  void end_pass() { last_pass_ = begun_; }
  /// Forgets the current pass.
  void abandon_pass();

  /// Whether a pass has ended.
  bool knows() const { return !last_pass_.empty(); }
  /// The unit at this position of the previous pass; nullopt if there is none.
  std::optional<size_t> expected() const;
  /// Whether this pass has so far begun the same units as the previous one.
  bool follows_last_pass() const { return follows_; }
  /// The expected next units in order, at most `most`; none if this pass has diverged from the previous one.
  /// Valid until the pass ends.
  std::span<const size_t> next(size_t most) const;

  /// Backward uses units in the reverse of the order in which their forwards ended. Returns the expected next
  /// unit after `unit` whose backward has not begun in this pass: the backward of an outer unit ends after
  /// those of the units nested in it, so that the units next in order may have begun already.
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
