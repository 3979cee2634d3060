#include "plan/text.h"

#include <cmath>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>

#include "plan/linear_layers.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::plan {
namespace {

using shard::UnitSizes;
using util::concat;
using util::human_bytes;
using util::with_commas;

template <typename... Values>
std::string printed(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

/// Neighbouring units of one size, and what they communicate in a step.
struct UnitGroup {
  std::string first, last;
  int64_t count = 0;
  UnitSizes each;
  shard::StepFormula step;  ///< of all of them
};

bool alike(const UnitSizes& a, const UnitSizes& b) {
  return a.numel == b.numel && a.shard_numel == b.shard_numel && a.param_dtype == b.param_dtype &&
         a.reduce_dtype == b.reduce_dtype && a.is_root == b.is_root && a.groups.shards == b.groups.shards;
}

int64_t collectives(const shard::Traffic& traffic) {
  return traffic.all_gathers + traffic.reduce_scatters + traffic.all_reduces;
}

int64_t payload(const shard::Traffic& traffic) {
  return traffic.all_gather_bytes + traffic.reduce_scatter_bytes + traffic.all_reduce_bytes;
}

/// What the units [begin, end) communicate, as the difference that they make: which unit stays gathered at
/// the end of forward depends on all.
shard::Traffic traffic_of(const Plan& plan, size_t begin, size_t end) {
  std::vector<UnitSizes> without = plan.units;
  for (size_t i = begin; i < end; ++i) without[i].groups = {};  // there, but communicates nothing
  const config::TrainingOptions& training = plan.config.training;
  const shard::Traffic all = plan.step.traffic;
  const shard::Traffic rest = shard::step_formula(without, config::shard_options(plan.config),
                                                  {.micro_batches = training.gradient_accumulation_steps,
                                                   .no_sync = training.no_sync,
                                                   .with_peak = false})
                                  .traffic;
  return {.all_gathers = all.all_gathers - rest.all_gathers,
          .all_gather_bytes = all.all_gather_bytes - rest.all_gather_bytes,
          .reduce_scatters = all.reduce_scatters - rest.reduce_scatters,
          .reduce_scatter_bytes = all.reduce_scatter_bytes - rest.reduce_scatter_bytes,
          .all_reduces = all.all_reduces - rest.all_reduces,
          .all_reduce_bytes = all.all_reduce_bytes - rest.all_reduce_bytes};
}

std::vector<UnitGroup> groups_of(const Plan& plan) {
  std::vector<UnitGroup> groups;
  for (size_t begin = 0; begin < plan.units.size();) {
    size_t end = begin + 1;
    while (end < plan.units.size() && alike(plan.units[begin], plan.units[end])) ++end;
    UnitGroup& group = groups.emplace_back();
    group.first = plan.units[begin].name;
    group.last = plan.units[end - 1].name;
    group.count = static_cast<int64_t>(end - begin);
    group.each = plan.units[begin];
    group.step.traffic = traffic_of(plan, begin, end);
    begin = end;
  }
  return groups;
}

std::string name_of(const UnitGroup& group) {
  return group.count == 1 ? group.first : concat(group.first, " ... ", group.last);
}

std::string duration(double seconds) {
  if (seconds >= 1) return printed("%.2f s", seconds);
  return seconds >= 1e-3 ? printed("%.1f ms", 1e3 * seconds) : printed("%.0f us", 1e6 * seconds);
}

double share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

int64_t tokens_of_step(const Plan& plan) {
  return plan.machines.world_size * plan.config.training.gradient_accumulation_steps *
         plan.config.data.micro_batch_size * plan.config.data.sequence_length;
}

std::string communication_table(const Plan& plan) {
  std::string text = printed("%-44s %6s %16s %12s %12s\n", "communication of a rank in a step", "number",
                             "parameters each", "payload each", "payload");
  for (const UnitGroup& group : groups_of(plan)) {
    const int64_t number = collectives(group.step.traffic), bytes = payload(group.step.traffic);
    std::string name = name_of(group);
    if (name.size() > 44) name = concat(name.substr(0, 41), "...");
    text += printed("  %-42s %6ld %16s %12s %12s\n", name.c_str(), static_cast<long>(number),
                    with_commas(group.each.numel).c_str(),
                    decimal_bytes(number > 0 ? bytes / number : 0).c_str(), decimal_bytes(bytes).c_str());
  }
  const shard::Traffic& traffic = plan.step.traffic;
  text += printed("  %-42s %6ld %16s %12s %12s\n", "all", static_cast<long>(collectives(traffic)),
                  with_commas(plan.parameters).c_str(), "", decimal_bytes(payload(traffic)).c_str());
  text += concat("  ", traffic.all_gathers, " all-gathers (", plan.step.forward_all_gathers, " forward, ",
                 plan.step.backward_all_gathers, " backward), ", traffic.reduce_scatters,
                 " reduce-scatters, ", traffic.all_reduces, " all-reduces\n");
  if (const shard::Traffic& update = plan.optimizer_traffic; collectives(update) > 0) {
    text += printed("  %-42s %6ld %16s %12s %12s\n", "besides, whole matrices for muon",
                    static_cast<long>(collectives(update)), "", "", decimal_bytes(payload(update)).c_str());
  }
  return text;
}

std::string memory_table(const Plan& plan) {
  const MemoryPlan& memory = plan.memory;
  auto row = [](const char* name, int64_t bytes, const char* remark) {
    return printed("  %-42s %12s  %s\n", name, human_bytes(bytes).c_str(), remark);
  };
  const bool offload = plan.config.fsdp.cpu_offload, moved = plan.config.fsdp.move_grads_to_cpu;
  const char* host = "in host memory";
  std::string text = "memory of a rank\n";
  text += row("shards (master weights)", memory.shards, offload ? host : "");
  text += row("optimizer state", memory.optimizer, offload ? host : "");
  text += row("gradients of shards", memory.gradients, moved ? host : "after backward");
  text += row("gathered parameters, unreduced gradients", memory.buffers, "at most");
  text += row("saved activations", memory.saved_activations, "when backward begins");
  text += row("peak", memory.peak, "of all of it together");
  text += row("resident, trained on the CPUs of one host", memory.resident, "and about 160 MiB of libraries");
  if (offload) text += row("peak of the device", memory.device_peak, "");
  text += printed("  %-42s %12s  %s\n", "memory of the device", human_bytes(plan.memory_limit()).c_str(),
                  plan.fits() ? "it fits" : "IT DOES NOT FIT");
  text += concat("  largest data.micro_batch_size that fits    ",
                 plan.largest_micro_batch > 0 ? std::to_string(plan.largest_micro_batch) : "none", "\n");
  return text;
}

std::string time_table(const Plan& plan) {
  const TimePlan& time = plan.time;
  auto row = [](const char* name, const std::string& value, const std::string& remark) {
    return printed("  %-42s %12s  %s\n", name, value.c_str(), remark.c_str());
  };
  std::string text = "time of a step (a simple model of it: lib/plan/time.h)\n";
  text += row("compute", duration(time.compute),
              concat(printed("%.4g TFLOP", time.flops / 1e12),
                     float8_choice(plan.config).on ? ", float8 twice as fast" : ""));
  text += row("communication", duration(time.communication), "");
  text += row("exposed, without compute beside it", duration(time.exposed),
              printed("%.0f%% of the communication", share(time.exposed, time.communication)));
  text += row("step", duration(time.step()),
              time.step() > 0
                  ? concat(with_commas(std::llround(static_cast<double>(tokens_of_step(plan)) / time.step())),
                           " tokens/s")
                  : std::string());
  return text;
}

std::string advice_text(const Plan& plan) {
  if (plan.fits()) return {};
  std::string text = "to make it fit, on top of one another\n";
  for (const Advice& advice : plan.advice) {
    text += printed("  %-42s %12s  %s\n", advice.change.c_str(), human_bytes(advice.device_peak).c_str(),
                    advice.fits ? "fits" : "");
  }
  if (plan.advice.empty() || !plan.advice.back().fits) {
    text += "  not enough: make the model smaller, or take devices with more memory\n";
  }
  return text;
}

nlohmann::ordered_json json_of(const shard::Traffic& traffic) {
  return {
      {"all_gathers", traffic.all_gathers},         {"all_gather_bytes", traffic.all_gather_bytes},
      {"reduce_scatters", traffic.reduce_scatters}, {"reduce_scatter_bytes", traffic.reduce_scatter_bytes},
      {"all_reduces", traffic.all_reduces},         {"all_reduce_bytes", traffic.all_reduce_bytes},
      {"collectives", collectives(traffic)},        {"payload_bytes", payload(traffic)}};
}

}  // namespace

std::string decimal_bytes(int64_t bytes) {
  static const char* const kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  // 0.80 GB reads better beside 24.00 GB than 800.02 MB does.
  if (value >= 100 && unit > 0 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return printed(unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
}

std::string plan_heading(const Plan& plan) {
  const config::Config& config = plan.config;
  const auto& precision = config.mixed_precision;
  std::string text = concat("model      ", config.model.architecture, ", ", with_commas(plan.parameters),
                            " parameters in ", plan.units.size(), " units\n");
  text += concat("ranks      ", plan.machines.world_size, " (", comm::to_string(plan.mesh), "), ",
                 config.fsdp.strategy, ", ", precision.param_dtype,
                 config.training.float8 == "none" ? "" : " and float8", " reduced in ",
                 precision.reduce_dtype, config.fsdp.cpu_offload ? ", shards in host memory" : "",
                 config.activation_checkpointing.mode == "none" ? "" : ", activations recomputed", "\n");
  text +=
      concat("batch      ", with_commas(tokens_of_step(plan)), " tokens a step (", plan.machines.world_size,
             " ranks x ", config.training.gradient_accumulation_steps, " micro-steps x ",
             config.data.micro_batch_size, " sequences x ", config.data.sequence_length, " tokens)\n");
  text += printed("machines   %g GiB, %g Gbit/s, %g TFLOP/s a rank\n", plan.machines.memory_gib,
                  plan.machines.bandwidth_gbps, plan.machines.flops_tflops);
  return text;
}

std::string plan_text(const Plan& plan) {
  std::string advice = advice_text(plan);
  return concat(plan_heading(plan), "\n", memory_table(plan), "\n", communication_table(plan), "\n",
                time_table(plan), advice.empty() ? "" : "\n", advice);
}

std::string plan_json(const Plan& plan) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const UnitGroup& group : groups_of(plan)) {
    nlohmann::ordered_json entry = {{"first", group.first},
                                    {"last", group.last},
                                    {"units", group.count},
                                    {"parameters_each", group.each.numel},
                                    {"shard_bytes_each", group.each.shard_bytes()},
                                    {"unsharded_bytes_each", group.each.unsharded_bytes()}};
    entry["communication"] = json_of(group.step.traffic);
    groups.push_back(std::move(entry));
  }
  nlohmann::ordered_json advice = nlohmann::ordered_json::array();
  for (const Advice& each : plan.advice) {
    advice.push_back({{"change", each.change}, {"device_peak_bytes", each.device_peak}, {"fits", each.fits}});
  }
  const MemoryPlan& memory = plan.memory;
  nlohmann::ordered_json json = {
      {"parameters", plan.parameters},
      {"world_size", plan.machines.world_size},
      {"mesh", {{"dcn", plan.mesh.dcn}, {"data", plan.mesh.data}, {"model", plan.mesh.model}}},
      {"tokens_per_step", tokens_of_step(plan)},
      {"memory",
       {{"shard_bytes", memory.shards},
        {"optimizer_bytes", memory.optimizer},
        {"gradient_bytes", memory.gradients},
        {"unsharded_bytes", memory.buffers},
        {"saved_activation_bytes", memory.saved_activations},
        {"peak_bytes", memory.peak},
        {"resident_bytes", memory.resident},
        {"device_peak_bytes", memory.device_peak},
        {"device_limit_bytes", plan.memory_limit()},
        {"fits", plan.fits()},
        {"largest_micro_batch", plan.largest_micro_batch}}},
      {"communication", json_of(plan.step.traffic)},
      {"optimizer_communication", json_of(plan.optimizer_traffic)},
      {"time",
       {{"flops", plan.time.flops},
        {"compute_seconds", plan.time.compute},
        {"communication_seconds", plan.time.communication},
        {"exposed_seconds", plan.time.exposed},
        {"step_seconds", plan.time.step()}}},
      {"units", std::move(groups)},
      {"advice", std::move(advice)}};
  return json.dump(2) + "\n";
}

}  // namespace fsdp::plan
