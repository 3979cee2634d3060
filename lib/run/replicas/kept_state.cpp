#include "run/replicas/kept_state.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "comm/api/communicator.h"

namespace fsdp::train {

void KeptState::begin(const launch::Epoch& epoch) {
  epoch_ = epoch;
  if (step() != epoch.step) begun_.reset();
  if (next_ && next_->step == epoch.step) now_ = std::move(next_);
  next_.reset();
  if (step() != epoch.step) now_.reset();
}

KeptState::Moment KeptState::copy_of(const TrainingState& state, int64_t step, nlohmann::json record) {
  Moment moment{.step = step, .record = std::move(record), .tensors = {}};
  moment.tensors.take(state.slices_in_memory());
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
  util::log_debug(concat("has ", begun_leaves(), " micro-batches of the step"));
  const int64_t leaves = least(begun_leaves());
  if (leaves == 0 || least(begun_->has(leaves)) == 0) return std::nullopt;
  BegunStep begun = *begun_;
  begun.leaves = leaves;
  return begun;
}

nlohmann::json KeptState::restore(const TrainingState& state, const comm::Mesh& mesh,
                                  const std::function<void()>& before_transfer) {
  const comm::CallSite site{.unit = "state of the run"};
  const int place = mesh.world()->rank() % epoch_.replica_size;
  const int source = epoch_.sources.at(static_cast<size_t>(place));
  const auto records = comm::all_gather_text(*mesh.world(), now_ ? now_->record.dump() : "", site);
  const auto slices = state.slices_in_memory();
  const bool is_behind = std::ranges::find(epoch_.behind, mesh.world()->rank()) != epoch_.behind.end();
  FSDP_CHECK(is_behind || step() == epoch_.step, "this rank has the state after step ", step(),
             ", not after step ", epoch_.step);
  // Ranks that have the part already receive its bytes once more, from memory to memory.
  const bool is_sent =
      std::ranges::any_of(epoch_.behind, [&](int rank) { return rank % epoch_.replica_size == place; });
  checkpoint::HostCopies received;
  checkpoint::HostCopies& tensors = is_behind ? received : now_->tensors;
  tensors.prepare(slices);
  if (is_sent) {
    before_transfer();
    // With local steps, each replica has a state of its own.
    const bool keeps_own = state.outer != nullptr && !is_behind && mesh.world()->rank() != source;
    const at::Tensor buffer = keeps_own ? at::empty_like(tensors.buffer()) : tensors.buffer();
    mesh.group({comm::MeshAxis::kDcn})->broadcast(buffer, source / epoch_.replica_size, site)->wait();
  }
  tensors.write_back(slices);
  if (state.outer != nullptr && !is_behind) return now_->record;
  // All ranks take the same record, also if only some have come through the validation of that step.
  nlohmann::json record = nlohmann::json::parse(records[static_cast<size_t>(epoch_.sources.front())]);
  if (state.outer != nullptr) record[kJoined] = true;
  return record;
}

}  // namespace fsdp::train
