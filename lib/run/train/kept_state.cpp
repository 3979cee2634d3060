#include "run/train/kept_state.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "comm/api/communicator.h"

namespace fsdp::train {

void KeptState::begin(const launch::Epoch& epoch) {
  if (step() != epoch.step) begun_.reset();
  if (next_ && next_->step == epoch.step) now_ = std::move(next_);
  next_.reset();
  if (step() != epoch.step) now_.reset();
}

KeptState::Moment KeptState::copy_of(const TrainingState& state, int64_t step, nlohmann::json record) {
  Moment moment{.step = step, .record = std::move(record), .tensors = {}};
  moment.tensors.take(
      checkpoint::state_slices(state.engine, state.optimizer, checkpoint::SlicePurpose::kLoad));
  return moment;
}

void KeptState::keep(const TrainingState& state, int64_t step, nlohmann::json record) {
  forget();  // frees the old one first
  next_.reset();
  now_ = copy_of(state, step, std::move(record));
}

void KeptState::keep_next(const TrainingState& state, nlohmann::json record) {
  next_ = copy_of(state, step() + 1, std::move(record));
}

std::optional<BegunStep> KeptState::begun(comm::Communicator& world) const {
  const auto least = [&world](int64_t own) {
    const at::Tensor value = at::full({1}, -own, at::kLong);
    world.all_reduce(value, comm::ReduceOp::kMax, {.unit = "step that was broken off"})->wait();
    return -value.item<int64_t>();
  };
  const int64_t leaves = least(begun_leaves());
  if (leaves == 0 || least(begun_->has(leaves)) == 0) return std::nullopt;
  BegunStep begun = *begun_;
  begun.leaves = leaves;
  return begun;
}

nlohmann::json KeptState::restore(const TrainingState& state, const launch::Epoch& epoch,
                                  const comm::Mesh& mesh, const std::function<void()>& before_transfer) {
  const comm::CallSite site{.unit = "state of the run"};
  const int place = mesh.world()->rank() % epoch.replica_size;
  const int source = epoch.sources.at(static_cast<size_t>(place));
  const auto records = comm::all_gather_text(*mesh.world(), now_ ? now_->record.dump() : "", site);
  const auto slices =
      checkpoint::state_slices(state.engine, state.optimizer, checkpoint::SlicePurpose::kLoad);
  const bool is_behind = std::ranges::find(epoch.behind, mesh.world()->rank()) != epoch.behind.end();
  FSDP_CHECK(is_behind || step() == epoch.step, "this rank has the state after step ", step(),
             ", not after step ", epoch.step);
  // Those that have the part already receive its bytes once more, from memory to memory.
  const bool is_sent =
      std::ranges::any_of(epoch.behind, [&](int rank) { return rank % epoch.replica_size == place; });
  checkpoint::HostCopies received;
  checkpoint::HostCopies& tensors = is_behind ? received : now_->tensors;
  tensors.prepare(slices);
  if (is_sent) {
    before_transfer();
    mesh.group({comm::MeshAxis::kDcn})
        ->broadcast(tensors.buffer(), source / epoch.replica_size, site)
        ->wait();
  }
  tensors.write_back(slices);
  // One for all, also where only some ranks have come through the validation of that step.
  return nlohmann::json::parse(records[static_cast<size_t>(epoch.sources.front())]);
}

}  // namespace fsdp::train
