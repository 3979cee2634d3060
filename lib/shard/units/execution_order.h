#pragma once

// The order in which units are used, and the next unit to gather: the recorded one, or the likely one.
//
// Units are numbers. A pass is one forward of the root stage. Nothing is collective.

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
  /// Forgets all passes. Ranks that failed at different places of a pass then agree again.
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
  /// Returns next() where this pass follows the previous one. Elsewhere, each unit is assumed to be followed
  /// by the unit that followed it when it was last used, or by the next unit of the module tree if it never
  /// was used. Returns none if that assumption was wrong for the unit before. Valid until the next call.
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

  std::vector<size_t> begun_;        ///< units whose forward has begun in this pass
  std::vector<Use> ended_;           ///< forwards that have ended in this pass
  std::vector<size_t> last_pass_;    ///< units that began in the previous pass
  std::vector<size_t> followed_by_;  ///< next unit of each; the number of units stands for the end
  std::vector<size_t> likely_;       ///< memory of the result of likely_next()
  size_t roots_;
  bool follows_ = false;
  bool is_likely_ = false;  ///< whether the unit that began last was the likely one
};

}  // namespace fsdp::shard
