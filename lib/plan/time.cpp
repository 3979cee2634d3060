#include "plan/time.h"

#include <algorithm>
#include <optional>
#include <string>

#include "plan/flops.h"
#include "plan/linear_layers.h"

namespace fsdp::plan {
namespace {

using shard::UnitSizes;

struct Work {
  double flops = 0;
  double saved_flops = 0;  ///< of these, those whose time the speed of 8-bit products saves

  Work& operator+=(const Work& other) {
    flops += other.flops;
    saved_flops += other.saved_flops;
    return *this;
  }
};

Work operator*(double factor, const Work& work) { return {factor * work.flops, factor * work.saved_flops}; }

/// A unit that computes: what forward takes, and what backward takes with recomputation.
struct Visit {
  size_t unit = 0;
  Work forward;
  Work backward;
};

class Visits {
 public:
  Visits(const config::Config& config, const std::vector<UnitSizes>& units) : config_(config), units_(units) {
    const nn::ModelOptions& model = config.model;
    const bool llama = model.architecture == "llama";
    const TokenFlops flops = forward_flops(model, config.data.sequence_length);
    const Float8Choice float8 = float8_choice(config);
    const LinearLayers of_attention = attention_layers(model), of_feed_forward = feed_forward_layers(model);
    const auto work = [&](double all, LinearLayers layers, const std::string& stage) {
      choose_float8(layers, stage, float8);
      double in_float8 = 0;
      for (const LinearLayer& layer : layers) {
        if (layer.float8) in_float8 += 2 * static_cast<double>(layer.in) * static_cast<double>(layer.out);
      }
      return Work{all, (1 - 1 / kFloat8Speed) * in_float8};
    };
    add(llama ? "model.embed_tokens" : "transformer.wte", "embedding", {});
    if (!llama) add("transformer.wpe", "embedding", {});
    for (int64_t layer = 0; layer < model.num_hidden_layers; ++layer) {
      std::string block = (llama ? "model.layers." : "transformer.h.") + std::to_string(layer);
      const std::string attention = block + (llama ? ".self_attn" : ".attn"), feed_forward = block + ".mlp";
      add(attention, "attention", work(flops.attention, of_attention, attention));
      add(feed_forward, "feed_forward", work(flops.feed_forward, of_feed_forward, feed_forward));
    }
    add("lm_head", "head", {flops.head});
  }

  const std::vector<Visit>& all() const { return visits_; }

 private:
  /// Units are named by their stage, so the nearest unit around a stage has the longest name that begins the
  /// stage's.
  size_t unit_around(const std::string& stage) const {
    size_t best = 0, length = 0;
    for (size_t i = hint_; i < units_.size() + hint_; ++i) {
      const UnitSizes& unit = units_[i % units_.size()];
      if (unit.is_root || unit.name.size() <= length) continue;
      if (stage != unit.name && !stage.starts_with(unit.name + ".")) continue;
      best = i % units_.size();
      length = unit.name.size();
      if (stage == unit.name) break;
    }
    return best;
  }

  bool recomputes(const std::string& type) const {
    if (config_.activation_checkpointing.mode == "none") return false;
    const auto& types = config_.activation_checkpointing.stage_types;
    auto has = [&](const std::string& name) {
      return std::find(types.begin(), types.end(), name) != types.end();
    };
    bool in_block = type == "attention" || type == "feed_forward";
    return has(type) || (in_block && has("block"));
  }

  void add(const std::string& stage, const std::string& type, const Work& of_a_token) {
    double tokens = static_cast<double>(config_.data.micro_batch_size) *
                    static_cast<double>(config_.data.sequence_length);
    const Work forward = tokens * of_a_token;
    const Work backward = (recomputes(type) ? 3 : 2) * forward;
    size_t unit = unit_around(stage);
    if (unit > 0) hint_ = unit;
    if (!visits_.empty() && visits_.back().unit == unit) {
      visits_.back().forward += forward;
      visits_.back().backward += backward;
    } else {
      visits_.push_back({unit, forward, backward});
    }
  }

  const config::Config& config_;
  const std::vector<UnitSizes>& units_;
  std::vector<Visit> visits_;
  size_t hint_ = 0;  ///< units come in the order of the stages
};

/// Two clocks, that of compute and that of communication, moved on by what the engine would do.
class Clocks {
 public:
  Clocks(const config::Config& config, const std::vector<UnitSizes>& units, const MachineSpeed& speed)
      : options_(config.fsdp), units_(units), speed_(speed), ready_(units.size()) {}

  TimePlan result() const { return plan_; }

  void forward(const std::vector<Visit>& visits) {
    for (const Visit& visit : visits) {
      if (visit.unit != 0) last_ = visit.unit;
    }
    for (size_t i = 0; i < units_.size(); ++i) {
      if (units_[i].is_root) use(i);
    }
    for (size_t place = 0; place < visits.size(); ++place) {
      use(visits[place].unit);
      if (options_.forward_prefetch != "none") gather_next(visits, place, +1);
      compute(visits[place].forward);
    }
    for (size_t i = 0; i < units_.size(); ++i) {
      bool kept = !units_[i].reshard_after_forward || (i == last_ && !options_.reshard_last_after_forward);
      if (!kept) ready_[i].reset();
    }
  }

  void backward(const std::vector<Visit>& visits, bool reduces) {
    for (size_t i = 0; i < units_.size(); ++i) {
      if (units_[i].is_root) use(i);
    }
    for (size_t place = visits.size(); place-- > 0;) {
      const size_t unit = visits[place].unit;
      use(unit);
      if (options_.backward_prefetch == "pre") gather_next(visits, place, -1);
      compute(visits[place].backward);
      if (units_[unit].is_root || !units_[unit].input_is_differentiable) continue;
      if (reduces) reduce(unit);
      if (options_.backward_prefetch == "post") gather_next(visits, place, -1);
    }
    for (size_t i = units_.size(); i-- > 0 && reduces;) {
      if (units_[i].is_root || !units_[i].input_is_differentiable) reduce(i);
    }
    wait_until(reduced_);
    wait_until(replicated_);
    ready_.assign(units_.size(), std::nullopt);
  }

 private:
  void compute(const Work& work) {
    const double seconds = (work.flops - work.saved_flops) / speed_.flops_per_second;
    plan_.flops += work.flops;
    plan_.compute += seconds;
    now_ += seconds;
  }

  void wait_until(double time) {
    if (time <= now_) return;
    plan_.exposed += time - now_;
    now_ = time;
  }

  double others_share(const UnitSizes& unit, int64_t payload) const {
    const double each = static_cast<double>(payload), shards = unit.groups.shards;
    if (speed_.ranks_of_node == 0) return each * (shards - 1) / speed_.bytes_per_second;
    const double of_node = static_cast<double>(speed_.ranks_of_node);
    const double inside =
        speed_.node_bytes_per_second > 0 ? speed_.node_bytes_per_second : speed_.bytes_per_second;
    const double between = each * std::max(shards - of_node, 0.0) / (of_node * speed_.bytes_per_second);
    return std::max(each * (shards - 1) / inside, between);
  }

  void gather(size_t index) {
    if (ready_[index]) return;
    const UnitSizes& unit = units_[index];
    ready_[index] =
        unit.is_cut() ? on(communication_, others_share(unit, unit.gather_payload_bytes())) : now_;
  }

  /// Puts a collective behind those of a stream; returns when it ends.
  double on(double& stream, double seconds) {
    stream = std::max(stream, now_) + seconds;
    plan_.communication += seconds;
    return stream;
  }

  void use(size_t index) {
    gather(index);
    wait_until(*ready_[index]);
  }

  void gather_next(const std::vector<Visit>& visits, size_t place, int step) {
    size_t next = place + static_cast<size_t>(step);
    if (next < visits.size()) gather(visits[next].unit);
  }

  void reduce(size_t index) {
    const UnitSizes& unit = units_[index];
    if (!unit.has_trainable_parameters) return;
    wait_until(reduced_);
    const int replicas = unit.groups.replicas;
    if (unit.is_cut()) reduced_ = on(communication_, others_share(unit, unit.reduce_payload_bytes()));
    if (replicas < 2) return;
    double bytes = static_cast<double>(unit.reduce_payload_bytes()) * 2 * (replicas - 1) / replicas;
    double seconds = bytes / speed_.replica_bytes_per_second;
    if (unit.is_cut()) {
      replicated_ = std::max(replicated_, reduced_);
      replicated_ = on(replicated_, seconds);
    } else {
      reduced_ = on(communication_, seconds);
    }
  }

  const shard::ShardOptions& options_;
  const std::vector<UnitSizes>& units_;
  const MachineSpeed& speed_;
  std::vector<std::optional<double>> ready_;  ///< when a gathered unit is there
  double now_ = 0, communication_ = 0, replicated_ = 0, reduced_ = 0;
  size_t last_ = 0;  ///< the unit whose forward ends last
  TimePlan plan_;
};

}  // namespace

TimePlan plan_time(const config::Config& config, const std::vector<UnitSizes>& units,
                   const MachineSpeed& speed) {
  const Visits visits(config, units);
  // Nothing is under way between micro-batches, so their times add up.
  auto micro_batch = [&](bool reduces) {
    Clocks clocks(config, units, speed);
    clocks.forward(visits.all());
    clocks.backward(visits.all(), reduces);
    return clocks.result();
  };
  TimePlan plan = micro_batch(true);
  const TimePlan other = micro_batch(!config.training.no_sync);
  const double others = static_cast<double>(config.training.gradient_accumulation_steps - 1);
  plan.compute += others * other.compute;
  plan.communication += others * other.communication;
  plan.exposed += others * other.exposed;
  plan.flops += others * other.flops;
  return plan;
}

}  // namespace fsdp::plan
