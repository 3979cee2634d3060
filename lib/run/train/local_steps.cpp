#include "run/train/local_steps.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "shard/engine/engine.h"
#include "state/outer/outer_optimizer.h"

namespace fsdp::train {
namespace {

constexpr const char* kOuterLoss = "replicas_loss";
constexpr const char* kOuterSeconds = "exchange_seconds";
constexpr const char* kReplicas = "replicas";

}  // namespace

std::vector<std::string> LocalSteps::metric_names() { return {kOuterLoss, kOuterSeconds}; }

void LocalSteps::begin(ObservedStep& last) {
  optim::OuterOptimizer& outer = *run_.parts.outer;
  outer.begin();
  outer.require_equal(*run_.communicator, "before the first step");
  if (run_.hooks.membership) {
    outer.set_before_use([this] { run_.communicator->barrier({.unit = "exchange of replicas"}); });
  }
  const int64_t step = last.position.step;
  const bool is_due = outer.schedule().begins(step, 0) || step >= run_.config.training.steps;
  if (run_.continues() && is_due && outer.last_exchange() < step) exchange(last);
  if (run_.is_first_rank() && !run_.continues()) util::log_info(described());
}

std::string LocalSteps::described() const {
  const optim::OuterOptions& options = run_.config.outer_optimizer;
  const optim::OuterOptimizer& outer = *run_.parts.outer;
  return concat(outer.replicas().world_size(), " replicas take ", run_.config.training.local_steps,
                " steps each between two exchanges of ", util::human_bytes(outer.payload_bytes()),
                " a rank in ", options.reduce_dtype, " (", options.name, ", lr ", options.lr, ", momentum ",
                options.momentum, options.fragments > 1 ? concat("; ", options.fragments, " fragments") : "",
                options.fragment_delay > 0 ? concat("; beside ", options.fragment_delay, " steps") : "",
                "); outer weights and momentum take ", util::human_bytes(outer.state_bytes()));
}

void LocalSteps::end_step(ObservedStep& step) {
  if (std::isfinite(step.result.loss_sum)) {
    loss_sum_ += step.result.loss_sum;
    losses_ += static_cast<double>(step.result.losses);
  }
  tokens_ += static_cast<double>(step.result.tokens);
  exchange(step);
}

void LocalSteps::exchange(ObservedStep& step) {
  optim::OuterOptimizer& outer = *run_.parts.outer;
  const int64_t number = step.position.step;
  const bool is_last = number >= run_.config.training.steps;
  const auto began = std::chrono::steady_clock::now();
  if (is_last || outer.schedule().begins_any(number))
    meet(is_last ? number : number + outer.schedule().delay);
  const bool is_exchange = !meetings_.empty() && (is_last || meetings_.front().ends <= number);
  while (!meetings_.empty() && (is_last || meetings_.front().ends <= number)) {
    Meeting meeting = std::move(meetings_.front());
    meetings_.pop_front();
    conclude(std::move(meeting), step);
  }
  outer.after_step(number, is_last);
  if (is_exchange) step.numbers.emplace_back(kOuterSeconds, util::seconds_since(began));
}

void LocalSteps::meet(int64_t ends) {
  Meeting meeting{.ends = ends, .sums = at::zeros({kPlaces}, at::kDouble), .own_tokens = tokens_, .work = {}};
  auto* sums = meeting.sums.data_ptr<double>();
  // All ranks of a replica have the same numbers.
  const double ranks = run_.parts.engine->communicator().world_size();
  sums[kLoss] = loss_sum_ / ranks;
  sums[kLosses] = losses_ / ranks;
  sums[kTokens] = tokens_ / ranks;
  sums[kStop] = run_.parts.standing.stop_requested || run_.wants_to_stop() ? 1 : 0;
  sums[kContributors] = run_.parts.outer->contributes() ? 1 / ranks : 0;
  sums[kFailed] = run_.parts.standing.failure.empty() ? 0 : 1;
  meeting.work = run_.communicator->all_reduce(meeting.sums, comm::ReduceOp::kSum,
                                               {.unit = "replicas", .pass = "optimizer"});
  meetings_.push_back(std::move(meeting));
  loss_sum_ = losses_ = tokens_ = 0;
}

void LocalSteps::conclude(Meeting meeting, ObservedStep& step) {
  meeting.work->wait();
  const auto* sums = meeting.sums.const_data_ptr<double>();
  if (sums[kFailed] > 0) {
    const optim::OuterOptimizer& outer = *run_.parts.outer;
    const std::string own = run_.parts.standing.failure.empty()
                                ? ""
                                : concat("replica ", outer.replicas().rank(), " of ",
                                         outer.replicas().world_size(), ": ", run_.parts.standing.failure);
    throw comm::AgreedError(ErrorKind::kDiverged,
                            comm::first_text(*run_.communicator, own, {.unit = "replicas"}));
  }
  // A rank joins just before an exchange with weights to which it has contributed nothing.
  run_.parts.outer->set_contributors(std::max(1.0, std::round(sums[kContributors])));
  if (sums[kStop] > 0 && step.position.step < run_.config.training.steps) {
    step.ends_run = true;
    run_.stop();
  }
  // The step has counted the tokens of its own replica.
  if (data::counts_vary(run_.config.data)) {
    run_.position.tokens_seen += std::llround(sums[kTokens] - meeting.own_tokens);
  }
  if (sums[kLosses] > 0) step.numbers.emplace_back(kOuterLoss, sums[kLoss] / sums[kLosses]);
}

void LocalSteps::between_steps(ObservedStep& step) {
  if (!run_.is_due(run_.config.fsdp.replica_check_interval)) return;
  run_.parts.outer->require_equal(*run_.communicator, concat("after step ", step.position.step));
}

nlohmann::json exchange_record(const optim::OuterOptimizer& outer) {
  return {{"last_exchange", outer.last_exchange()}, {"has_local_weights", outer.has_local_weights()}};
}

void continue_exchanges(optim::OuterOptimizer& outer, const nlohmann::json& record, const RunState& run) {
  const bool has_joined = record.value(kJoined, false);
  const bool has_local_weights = record.at("has_local_weights").get<bool>();
  outer.loaded(!has_joined && has_local_weights, std::vector<bool>(outer.inner().parameters().size(), false),
               record.at("last_exchange").get<int64_t>());
  // The others may be about to exchange.
  if (!has_joined || !has_local_weights) return;
  const bool is_due = outer.schedule().begins(run.position.step, 0) || run.is_complete();
  if (is_due && outer.last_exchange() < run.position.step) outer.contribute_nothing();
}

nlohmann::json replica_record(const nlohmann::json& record) {
  nlohmann::json own = nlohmann::json::object();
  for (const char* key : {"optimizer_steps", "optimizer_steps_of_units", "loss_scaler", "update_guard"}) {
    if (record.contains(key)) own[key] = record[key];
  }
  return own;
}

void add_replica_records(nlohmann::json& record, optim::OuterOptimizer& outer) {
  const auto texts = comm::all_gather_text(outer.replicas(), replica_record(record).dump(),
                                           {.unit = "records of the replicas"});
  nlohmann::json others = nlohmann::json::array();
  for (size_t replica = 1; replica < texts.size(); ++replica)
    others.push_back(nlohmann::json::parse(texts[replica]));
  record[kReplicas] = std::move(others);
}

nlohmann::json record_of_replica(nlohmann::json record, const optim::OuterOptimizer& outer) {
  const auto replica = static_cast<size_t>(outer.replicas().rank());
  const auto others = record.find(kReplicas);
  if (replica == 0 || others == record.end() || !others->is_array() || others->size() < replica)
    return record;
  const nlohmann::json own = (*others)[replica - 1];
  if (!own.is_object()) return record;
  record.erase("optimizer_steps_of_units");
  record.update(own);
  return record;
}

}  // namespace fsdp::train
