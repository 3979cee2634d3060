#pragma once

// The order in which units are used, and the next unit to gather: recorded, or the likely one.
//
// Units are numbers. A pass is one forward of the root stage. Nothing is collective. Needs no libtorch.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace fsdp::shard {

class ExecutionOrder {
 public:
  /// Units [0, units) in the order of the module tree, of which [0, roots) belong to the root stage and begin
  /// as unit 0. A pass has memory for as many uses without another allocation.
  explicit ExecutionOrder(size_t units, size_t roots = 1);

  void begin_pass();
  /// A unit's forward begins. A unit may be used several times in a pass.
  void begin(size_t unit);
  void end(size_t unit) { ended_.push_back({unit}); }
  void end_pass();
  /// Forgets all passes, so that ranks agree again that failed at different places of a pass.
  void forget();

  /// Whether a pass has ended.
  bool knows() const { return !last_pass_.empty(); }
  /// The unit at this position of the previous pass; nullopt if there is none.
  std::optional<size_t> expected() const;
  /// Whether this pass has so far begun the same units as the previous one.
  bool follows_last_pass() const { return follows_; }
  /// The expected next units in order, at most `most`; none if this pass has diverged from the previous one.
  /// Valid until the pass ends.
  std::span<const size_t> next(size_t most) const;
  /// The same where this pass follows the previous one. Elsewhere, each unit in turn is taken to be followed
  /// by the one that followed it when it was last used, or if it never was, by the next of the module tree;
  /// none if that was wrong of the unit before. Valid until the next call.
  std::span<const size_t> likely_next(size_t most);

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

  std::vector<size_t> begun_;        ///< of this pass
  std::vector<Use> ended_;           ///< of this pass
  std::vector<size_t> last_pass_;    ///< begun
  std::vector<size_t> followed_by_;  ///< by unit; the number of units stands for the end of the pass
  std::vector<size_t> likely_;       ///< what likely_next() returns
  size_t roots_;
  bool follows_ = false;
  bool is_likely_ = false;  ///< the unit that began last
};

}  // namespace fsdp::shard
