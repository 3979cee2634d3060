#pragma once

#include <memory>

#include "comm/api/communicator.h"
#include "shard/engine/reduce/gradient_sums.h"
#include "shard/engine/reduce/reduction.h"
#include "shard/engine/unit.h"

namespace fsdp::shard {

/// Reduces in the group that shares the unit, and adds the result to the shard's gradient on the device.
/// Classes derived from it add a second collective, in the queue of another group: only that queue waits for
/// the first collective, so the first group continues with the next unit.
class GroupReduction : public Reduction {
 public:
  explicit GroupReduction(Unit& unit) : unit_(unit) {}

  void start(Reach reach) override;
  void finish_sending() override;
  void finish_moving() override {}
  void finish() override;
  bool is_under_way() const override { return added_ != nullptr; }
  void use_gradient(std::function<void()> use) override;
  void reset() override;

  using Sums = std::shared_ptr<GradientSums>;
  /// Sums whose collectives have been issued, and the group in whose queue they are complete.
  struct Issued {
    Sums sums;
    comm::Communicator& last;
  };
  /// Issues the collectives alone.
  Issued issue(Reach reach);
  /// Whether the second of two collectives has not been waited for.
  bool is_going_across() const { return across_ != nullptr; }

 protected:
  /// The group of the second collective; null: there is none.
  virtual comm::Communicator* across() const { return nullptr; }
  /// Issues the second collective, or the only one where every rank has the whole unit.
  virtual std::unique_ptr<comm::Work> reduce_across(const Sums& /*sums*/) { return nullptr; }
  /// Adds the output to the shard's gradient.
  virtual void add(GradientSums& sums, Reach reach);

  /// Issues a reduce-scatter of `whole` to the output. The last one of a reduction also divides.
  std::unique_ptr<comm::Work> reduce_scatter(comm::Communicator& group, const Sums& sums, at::Tensor whole,
                                             const char* pass, bool is_last);
  /// The group of the first collective.
  comm::Communicator& first() const;
  /// Makes the queue of `group` wait for the first collective, and fail if that fails.
  void wait_for_first(comm::Communicator& group) const;
  void finish_across();

  Unit& unit_;
  /// Stages of the reduction in the order in which they end: the collective that consumes the buffer of the
  /// whole unit, the release of that buffer, the second collective, the release of its input, and the
  /// addition to the shard's gradient with the release of the result.
  std::unique_ptr<comm::Work> collective_, sent_, across_, across_sent_, added_;
  comm::Communicator* last_ = nullptr;  ///< the group in whose queue the addition is
  std::unique_ptr<comm::Work> used_;    ///< of use_gradient()
};

}  // namespace fsdp::shard
