#include "tools/plan/text.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::plan {
namespace {

using shard::UnitSizes;
using util::human_bytes;
using util::printed;
using util::with_commas;

/// Units of one size that follow each other, or alternate with others in a fixed order.
struct UnitGroup {
  UnitSizes first;
  std::string last;
  size_t count = 0;
  shard::Traffic traffic;  ///< traffic of the whole group in a step
};

bool alike(const UnitSizes& a, const UnitSizes& b) {
  return a.numel == b.numel && a.shard_numel == b.shard_numel && a.options == b.options &&
         a.is_root == b.is_root && a.groups == b.groups;
}

/// The traffic of `count` units, one in `stride`, as the difference that they make: all units decide which
/// unit stays gathered at the end of forward.
shard::Traffic traffic_of(const Plan& plan, size_t begin, size_t stride, size_t count) {
  Units without = plan.units;
  // Without groups, units communicate nothing.
  for (size_t i = 0; i < count; ++i) without[begin + i * stride].groups = {};
  return plan.step.traffic - step_formula(plan.config, without).traffic;
}

/// How many times the `period` units from `begin` on repeat, at least once.
size_t repetitions(const Units& units, size_t begin, size_t period) {
  size_t end = begin + period;
  while (end < units.size() && alike(units[end], units[end - period])) ++end;
  return (end - begin) / period;
}

std::vector<UnitGroup> groups_of(const Plan& plan) {
  constexpr size_t kMostAlternating = 4;
  const Units& units = plan.units;
  std::vector<UnitGroup> groups;
  for (size_t begin = 0; begin < units.size();) {
    size_t period = 1, times = repetitions(units, begin, 1);
    for (size_t other = 2; other <= kMostAlternating && begin + other <= units.size() && times == 1;
         ++other) {
      const size_t count = repetitions(units, begin, other);
      if (count > 1) period = other, times = count;
    }
    for (size_t first = begin; first < begin + period; ++first) {
      groups.push_back({.first = units[first],
                        .last = units[first + (times - 1) * period].name,
                        .count = times,
                        .traffic = traffic_of(plan, first, period, times)});
    }
    begin += period * times;
  }
  return groups;
}

std::string communication_table(const Plan& plan) {
  const auto row = [](std::string name, const shard::Traffic& traffic, const std::string& parameters,
                      const std::string& payload_each = "") {
    if (name.size() > 44) name = concat(name.substr(0, 41), "...");
    return printed("  %-42s %6ld %16s %12s %12s\n", name.c_str(), static_cast<long>(traffic.collectives()),
                   parameters.c_str(), payload_each.c_str(), decimal_bytes(traffic.payload()).c_str());
  };
  std::string text = printed("%-44s %6s %16s %12s %12s\n", "communication of a rank in a step", "number",
                             "parameters each", "payload each", "payload");
  for (const UnitGroup& group : groups_of(plan)) {
    const std::string& name = group.first.name;
    const int64_t number = group.traffic.collectives();
    text +=
        row(group.count == 1 ? name : concat(name, " ... ", group.last), group.traffic,
            with_commas(group.first.numel), decimal_bytes(number > 0 ? group.traffic.payload() / number : 0));
  }
  const shard::Traffic& traffic = plan.step.traffic;
  const int64_t between = plan.step.between_slices.all_gathers;
  text += row("all", traffic, with_commas(plan.parameters));
  text += concat("  ", traffic.all_gathers, " all-gathers (", plan.step.forward_all_gathers, " forward, ",
                 plan.step.backward_all_gathers, " backward",
                 between > 0 ? concat(", ", between, " between slices") : "", "), ", traffic.reduce_scatters,
                 " reduce-scatters, ", traffic.all_reduces, " all-reduces\n");
  if (plan.optimizer_traffic.collectives() > 0) {
    const std::string& optimizer = plan.config.optimizer.name;
    const char* what = optimizer == "muon" ? "whole matrices" : "sums over tensors";
    text += row(concat("in addition, ", what, " for ", optimizer), plan.optimizer_traffic, "");
  }
  if (plan.attention_traffic.collectives() > 0) {
    text += row("in addition, attention over mesh.context", plan.attention_traffic, "");
  }
  if (plan.layer_traffic.collectives() > 0) {
    text += row("in addition, layers over mesh.model", plan.layer_traffic, "");
  }
  if (plan.outer.is_on()) {
    text += row(concat("in addition, every ", plan.outer.every_steps, " steps, replicas"), plan.outer.traffic,
                "");
    text += concat("  on average, ", decimal_bytes(std::llround(plan.outer.bytes_per_step())), " a step for ",
                   plan.outer.replicas, " replicas in ", plan.config.outer_optimizer.reduce_dtype, "\n");
  }
  return text;
}

/// The memory that activation_checkpointing.memory_budget keeps, and its cost.
std::string recomputation_rows(const Plan& plan) {
  const Recomputation& r = plan.recomputation;
  const bool moves = plan.memory.activations_on_host > 0;
  const double more =
      static_cast<double>(plan.config.training.gradient_accumulation_steps) * r.recomputed_flops;
  return table_row(printed("  with memory_budget = %g", r.options.memory_budget), human_bytes(r.kept),
                   concat("of ", human_bytes(r.most), "; ", human_bytes(r.least),
                          r.offloads ? " at least" : " with mode full")) +
         table_row("  recomputed", printed("+%.1f%%", share(r.recomputed_flops, r.flops)),
                   concat("of the products, ", duration(more / (plan.machines.flops_tflops * 1e12)),
                          " a step: ", r.text())) +
         (moves ? table_row("  in host memory", human_bytes(plan.memory.activations_on_host),
                            concat("pinned; ", duration(plan.time.copies), " of copies a step"))
                : std::string());
}

std::string memory_table(const Plan& plan) {
  const MemoryPlan& memory = plan.memory;
  auto row = [](const char* name, int64_t bytes, const char* remark) {
    return table_row(name, human_bytes(bytes), remark);
  };
  const bool offload = plan.config.fsdp.cpu_offload, moved = plan.config.fsdp.move_grads_to_cpu;
  const char* host = "in host memory";
  std::string text = "memory of a rank\n";
  const auto storage = plan.config.fsdp.param_storage;
  const bool masters = storage == util::FloatType::kFloat32;
  text +=
      row(masters ? "shards (master weights)" : concat("shards (", storage, ", no master weights)").c_str(),
          memory.shards, offload ? host : "");
  if (memory.sources > 0)
    text += row("copies of shards that gathers send", memory.sources,
                offload && !memory.sources_on_device ? host : "");
  text += row("optimizer state", memory.optimizer,
              memory.states_on_host > 0 ? "in host memory, updated by the device"
              : offload                 ? host
                                        : "");
  const char* updated =
      memory.gradients == 0 ? "after backward, in which units are updated" : "after backward";
  text += row("gradients of shards", memory.gradients, moved && memory.gradients > 0 ? host : updated);
  text += row("gathered parameters, unreduced gradients", memory.buffers, "at most");
  if (plan.step.separate_forward_bytes > 0 && plan.step.traffic.collectives() > 0) {
    text += row("  two units and two shards, kept apart", plan.step.separate_forward_bytes,
                concat(decimal_bytes(plan.step.separate_forward_bytes), "; with two gradients ",
                       decimal_bytes(plan.step.separate_buffers_bytes))
                    .c_str());
  }
  if (memory.codes > 0) {
    text += row("codes of quantized collectives", memory.codes,
                plan.config.fsdp.error_feedback ? "at most, with the errors that are fed back" : "at most");
  }
  if (memory.frozen > 0) text += row("second model", memory.frozen, "shards, which are not trained");
  if (memory.outer > 0) {
    text += row("outer weights, momentum, exchanges", memory.outer,
                "of training.local_steps, where the shards are");
  }
  text += row("saved activations", memory.saved_activations, "when backward begins");
  if (plan.recomputation.options.chosen) text += recomputation_rows(plan);
  text += row("peak", memory.peak + memory.beside(), "of the sum");
  text += row("resident, trained on the CPUs of one host", memory.resident + memory.beside(),
              "and about 120 MiB of libraries");
  if (memory.pinned > 0) text += row("pinned, where the device is a GPU", memory.pinned, host);
  if (offload || memory.states_on_host > 0)
    text += row("peak of the device", memory.device_peak + memory.beside(), "");
  if (const NcclMemory nccl = nccl_memory(plan.config, plan.mesh, plan.units); nccl.communicators > 0) {
    text +=
        row("in addition, NCCL's communicators", nccl.bytes,
            concat("about: ", nccl.communicators, nccl.communicators == 1 ? " group" : " groups").c_str());
  }
  text += row("memory of the device", plan.memory_limit() + memory.beside(),
              plan.fits() ? "it fits" : "IT DOES NOT FIT");
  text += concat("  largest data.micro_batch_size that fits    ",
                 plan.largest_micro_batch > 0 ? std::to_string(plan.largest_micro_batch) : "none", "\n");
  return text;
}

/// The update of what is in host memory, and the other way to do it.
std::string update_row(const Plan& plan) {
  const UpdateTimes update = update_times(plan.config, plan.units, plan.machines.speed());
  const bool streams = plan.config.optimizer.offload == optim::OptimizerOffload::kStream;
  std::string remark = streams ? "by the device" : "by the host";
  if (streams && plan.config.fsdp.cpu_offload) remark += concat("; by the host ", duration(update.by_host));
  if (!streams && update.by_device > 0) {
    remark += concat("; with optimizer.offload = \"stream\" ", duration(update.by_device));
  }
  return table_row("update of what is in host memory", duration(plan.time.update), remark);
}

std::string time_table(const Plan& plan) {
  const TimePlan& time = plan.time;
  std::string text = "time of a step (a simple model of it: lib/tools/plan/time.h)\n";
  text += table_row(
      "compute", duration(time.compute),
      concat(printed("%.4g TFLOP", time.flops / 1e12),
             plan.flops.recomputed() > 0
                 ? printed(", %.4g without recomputation", (time.flops - plan.recomputed_flops()) / 1e12)
                 : std::string(),
             plan.time.flops_in_float8 > 0 ? ", float8 twice as fast" : ""));
  text += table_row("communication", duration(time.communication), "");
  if (time.update > 0) text += update_row(plan);
  if (time.copies > 0) text += table_row("copies to and from host memory", duration(time.copies), "");
  text += table_row(
      "exposed, not hidden by compute", duration(time.exposed),
      printed("%.0f%% of the communication%s", share(time.exposed, time.communication + time.copies),
              time.copies > 0 ? " and the copies" : ""));
  if (plan.outer.is_on()) {
    text += table_row("waits for other replicas, on average", duration(time.exchange),
                      concat(duration(plan.outer.exposed_seconds), " of ", duration(plan.outer.seconds),
                             " for an exchange every ", plan.outer.every_steps, " steps"));
  }
  text += table_row("step", duration(time.step()),
                    time.step() > 0 ? concat(with_commas(std::llround(plan.tokens_per_second())), " tokens/s")
                                    : std::string());
  return text;
}

std::string advice_text(const Plan& plan) {
  if (plan.fits()) return {};
  std::string text = "to make it fit, each change on top of those above\n";
  for (const Advice& advice : plan.advice) {
    text += table_row(advice.change, human_bytes(advice.device_peak),
                      concat(duration(advice.step_seconds), " a step, ",
                             with_commas(std::llround(advice.tokens_per_second)), " tokens/s",
                             advice.fits ? "; fits" : ""));
  }
  if (plan.advice.empty() || !plan.advice.back().fits) {
    text += "  not enough: make the model smaller, or use devices with more memory\n";
  }
  return text;
}

/// "machines   8 x h100-sxm a node, ..."
std::string machines_text(const Plan& plan) {
  const PlanOptions& machines = plan.machines;
  std::string text = concat("machines   ", machines.gpu, machines.gpu.empty() ? "" : ", ",
                            printed("%g GiB, ", machines.memory_gib));
  if (machines.gpus_per_node > 0) {
    const double inside =
        machines.node_bandwidth_gbps > 0 ? machines.node_bandwidth_gbps : machines.bandwidth_gbps;
    text += printed("%ld a node, %g Gbit/s inside it, %g between nodes, ",
                    static_cast<long>(machines.gpus_per_node), inside, machines.bandwidth_gbps);
  } else {
    text += printed("%g Gbit/s, ", machines.bandwidth_gbps);
  }
  text += printed("%g TFLOP/s a rank", machines.flops_tflops);
  if (machines.peak_tflops > 0) {
    text += printed(",\n           %.0f%% of the %g that its data sheet gives",
                    share(machines.flops_tflops, machines.peak_tflops), machines.peak_tflops);
  }
  return text + "\n";
}

std::string days(double seconds) {
  constexpr double kDay = 24 * 3600;
  const double value = seconds / kDay;
  if (value >= 100) return concat(with_commas(std::llround(value)), " days");
  return value >= 1 ? printed("%.1f days", value) : printed("%.1f hours", 24 * value);
}

/// `text` in lines of at most 100 columns, after a title.
std::string titled(const std::string& title, const std::string& text) {
  constexpr size_t kWidth = 100, kIndent = 11;
  std::string lines = title + std::string(kIndent - title.size(), ' ');
  size_t column = kIndent;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (column > kIndent && column + 1 + end - at > kWidth) {
      lines += '\n';
      lines.append(kIndent, ' ');
      column = kIndent;
    } else if (column > kIndent) {
      lines += ' ';
      ++column;
    }
    lines += text.substr(at, end - at);
    column += end - at;
    at = end + 1;
  }
  return lines + "\n";
}

/// The first line of a plan for no machine in particular; otherwise empty.
std::string assumed_rates(const Plan& plan) {
  const PlanOptions& machines = plan.machines;
  if (!machines.rate_is_assumed()) return {};
  return titled("assumed",
                concat(printed("%g TFLOP/s, %g Gbit/s and %g GiB a rank are of no machine in "
                               "particular; ",
                               machines.flops_tflops, machines.bandwidth_gbps, machines.memory_gib),
                       "name a GPU (--gpu h100), give the rates of yours (--flops-tflops), or "
                       "measure this machine (fsdp-train doctor --calibrate FILE) and simulate"));
}

std::string summary(const Plan& plan) {
  const std::string limit = human_bytes(plan.memory_limit() + plan.memory.beside()),
                    peak = human_bytes(plan.memory.device_peak + plan.memory.beside());
  std::string text = assumed_rates(plan);
  if (plan.fits()) {
    text +=
        titled("memory", concat(peak, " of ", limit, " per rank: it fits, with data.micro_batch_size up to ",
                                plan.largest_micro_batch));
  } else {
    text += titled("memory",
                   concat(peak, " of ", limit, " per rank: IT DOES NOT FIT; see the end for what to change"));
  }
  if (plan.time.step() > 0) {
    std::string speed =
        concat(with_commas(std::llround(plan.tokens_per_second())), " tokens/s, ", duration(plan.time.step()),
               " a step; ", printed("%.4g", plan.model_tflops()), " TFLOP/s a GPU");
    const double peak = plan.machines.peak_tflops;
    if (peak > 0) speed += printed(", MFU %.1f%%", share(plan.model_tflops(), peak));
    if (plan.flops.recomputed() > 0) {
      speed += printed("; with recomputation %.4g", plan.hardware_tflops());
      if (peak > 0) speed += printed(", HFU %.1f%%", share(plan.hardware_tflops(), peak));
    }
    text += titled("speed", speed);
    if (plan.machines.tokens > 0) {
      const double seconds = plan.machines.tokens / plan.tokens_per_second();
      text += titled("training",
                     concat(with_commas(std::llround(plan.machines.tokens)), " tokens take ", days(seconds)));
    }
  }
  for (const std::string& warning : plan.warnings) text += titled("warning", warning);
  return text;
}

nlohmann::ordered_json json_of(const shard::Traffic& traffic) {
  nlohmann::ordered_json json;
  for (const auto& [op, name, number, bytes] : shard::kTrafficKinds) {
    json[concat(op, "s")] = traffic.*number;
    json[concat(op, "_bytes")] = traffic.*bytes;
  }
  json["collectives"] = traffic.collectives();
  json["payload_bytes"] = traffic.payload();
  return json;
}

/// null unless activation_checkpointing.mode has a budget
nlohmann::ordered_json json_of(const Recomputation& recomputation) {
  if (!recomputation.options.chosen) return nullptr;
  nlohmann::ordered_json stages = nlohmann::ordered_json::object();
  std::vector<std::string> whole, moved;
  for (const nn::StageRecomputation& stage : *recomputation.options.chosen) {
    stages[stage.path] = stage.operations;
    if (stage.whole) whole.push_back(stage.path);
    if (stage.offload) moved.push_back(stage.path);
  }
  return {{"memory_budget", recomputation.options.memory_budget},
          {"most_bytes", recomputation.most},
          {"least_bytes", recomputation.least},
          {"kept_bytes", recomputation.kept},
          {"recomputed_flops", recomputation.recomputed_flops},
          {"operations_by_stage", std::move(stages)},
          {"whole_stages", std::move(whole)},
          {"stages_in_host_memory", std::move(moved)}};
}

}  // namespace

std::string duration(double seconds) {
  if (seconds >= 1) return printed("%.2f s", seconds);
  return seconds >= 1e-3 ? printed("%.1f ms", 1e3 * seconds) : printed("%.0f us", 1e6 * seconds);
}

std::string table_row(const std::string& name, const std::string& value, const std::string& remark) {
  return printed("  %-42s %12s  %s\n", name.c_str(), value.c_str(), remark.c_str());
}

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
  return printed("%.*f %s", unit == 0 ? 0 : 2, value, kUnits[unit]);
}

std::string plan_heading(const Plan& plan) { return plan_subject(plan) + machines_text(plan); }

std::string plan_subject(const Plan& plan) {
  const config::Config& config = plan.config;
  const auto& precision = config.mixed_precision;
  std::string text = concat("model      ", config.model.architecture, ", ", with_commas(plan.parameters),
                            " parameters in ", plan.units.size(), " units\n");
  text += concat(
      "ranks      ", plan.machines.world_size, " (", comm::to_string(plan.mesh), "), ", config.fsdp.strategy,
      ", ", precision.param_dtype, config.training.float8 == config::Float8Recipe::kNone ? "" : " and float8",
      " reduced in ", precision.reduce_dtype,
      config.fsdp.param_storage == util::FloatType::kFloat32
          ? ""
          : concat(", shards in ", config.fsdp.param_storage),
      config.fsdp.cpu_offload ? ", shards in host memory" : "",
      config.activation_checkpointing.mode == nn::RecomputeMode::kNone ? "" : ", activations recomputed",
      plan.memory.activations_on_host > 0 ? " and in host memory" : "", "\n");
  text += concat("batch      ", with_commas(plan.tokens_per_step()), " tokens a step (",
                 plan.mesh.row_ranks(), plan.mesh.context > 1 ? concat(" groups of ", plan.mesh.context) : "",
                 " ranks x ", config.training.gradient_accumulation_steps, " micro-batches x ",
                 config.data.micro_batch_size, " sequences x ", config.data.sequence_length, " tokens)\n");
  return text;
}

std::string plan_text(const Plan& plan) {
  std::string advice = advice_text(plan);
  return concat(summary(plan), "\n", plan_heading(plan), "\n", memory_table(plan), "\n",
                communication_table(plan), "\n", time_table(plan), advice.empty() ? "" : "\n", advice);
}

std::string plan_json(const Plan& plan) {
  const NcclMemory nccl = nccl_memory(plan.config, plan.mesh, plan.units);
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const UnitGroup& group : groups_of(plan)) {
    groups.push_back({{"first", group.first.name},
                      {"last", group.last},
                      {"units", group.count},
                      {"parameters_each", group.first.numel},
                      {"shard_bytes_each", group.first.shard_bytes()},
                      {"unsharded_bytes_each", group.first.unsharded_bytes()},
                      {"communication", json_of(group.traffic)}});
  }
  nlohmann::ordered_json advice = nlohmann::ordered_json::array();
  for (const Advice& each : plan.advice) {
    advice.push_back({{"change", each.change},
                      {"device_peak_bytes", each.device_peak},
                      {"step_seconds", each.step_seconds},
                      {"tokens_per_second", each.tokens_per_second},
                      {"fits", each.fits}});
  }
  const auto of_peak = [peak = plan.machines.peak_tflops](double tflops) {
    return peak > 0 ? nlohmann::ordered_json(tflops / peak) : nlohmann::ordered_json();
  };
  const MemoryPlan& memory = plan.memory;
  nlohmann::ordered_json json = {
      {"parameters", plan.parameters},
      {"world_size", plan.machines.world_size},
      {"mesh",
       {{"dcn", plan.mesh.dcn},
        {"data", plan.mesh.data},
        {"context", plan.mesh.context},
        {"model", plan.mesh.model}}},
      {"tokens_per_step", plan.tokens_per_step()},
      {"memory",
       {{"shard_bytes", memory.shards},
        {"gather_source_bytes", memory.sources},
        {"optimizer_bytes", memory.optimizer},
        {"states_on_host_bytes", memory.states_on_host},
        {"gradient_bytes", memory.gradients},
        {"unsharded_bytes", memory.buffers},
        {"code_bytes", memory.codes},
        {"second_model_bytes", memory.frozen},
        {"outer_bytes", memory.outer},
        {"separate_buffers_bytes", plan.step.separate_buffers_bytes},
        {"separate_forward_bytes", plan.step.separate_forward_bytes},
        {"saved_activation_bytes", memory.saved_activations},
        {"activations_on_host_bytes", memory.activations_on_host},
        {"recomputation", json_of(plan.recomputation)},
        {"peak_bytes", memory.peak + memory.beside()},
        {"resident_bytes", memory.resident + memory.beside()},
        {"device_peak_bytes", memory.device_peak + memory.beside()},
        {"pinned_bytes", memory.pinned},
        {"nccl_bytes", nccl.bytes},
        {"nccl_communicators", nccl.communicators},
        {"device_limit_bytes", plan.memory_limit() + memory.beside()},
        {"fits", plan.fits()},
        {"largest_micro_batch", plan.largest_micro_batch}}},
      {"communication", json_of(plan.step.traffic)},
      {"communication_between_slices", json_of(plan.step.between_slices)},
      {"optimizer_communication", json_of(plan.optimizer_traffic)},
      {"attention_communication", json_of(plan.attention_traffic)},
      {"layer_communication", json_of(plan.layer_traffic)},
      {"exchange_communication", json_of(plan.outer.traffic)},
      {"exchange_steps", plan.outer.every_steps},
      {"time",
       {{"flops", plan.time.flops},
        {"compute_seconds", plan.time.compute},
        {"communication_seconds", plan.time.communication},
        {"copy_seconds", plan.time.copies},
        {"update_seconds", plan.time.update},
        {"exposed_seconds", plan.time.exposed},
        {"exchange_seconds", plan.time.exchange},
        {"step_seconds", plan.time.step()},
        {"tokens_per_second", plan.tokens_per_second()},
        {"recomputed_flops", plan.recomputed_flops()},
        {"model_tflops_per_rank", plan.model_tflops()},
        {"hardware_tflops_per_rank", plan.hardware_tflops()},
        {"mfu", of_peak(plan.model_tflops())},
        {"hfu", of_peak(plan.hardware_tflops())},
        {"training_seconds", plan.machines.tokens > 0 && plan.time.step() > 0
                                 ? nlohmann::ordered_json(plan.machines.tokens / plan.tokens_per_second())
                                 : nlohmann::ordered_json()}}},
      {"warnings", plan.warnings},
      {"units", std::move(groups)},
      {"advice", std::move(advice)}};
  return json.dump(2) + "\n";
}

}  // namespace fsdp::plan
