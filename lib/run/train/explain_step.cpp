#include "run/train/explain_step.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/util/error.h"
#include "base/util/text.h"
#include "model/parallel/context_attention.h"
#include "run/train/run_parts.h"
#include "run/train/step_timeline.h"
#include "setup/config/checks.h"
#include "setup/config/global_batch.h"
#include "shard/engine/engine_sizes.h"
#include "shard/units/schedule_text.h"
#include "state/groups/learning_rate.h"
#include "tools/plan/local_steps.h"
#include "tools/plan/memory.h"
#include "tools/report/timeline_file.h"
#include "tools/simulate/simulate.h"

namespace fsdp::train {
namespace {

using util::with_commas;

constexpr int64_t kExplainedStep = 2;
constexpr size_t kScheduledUnits = 4;  ///< units in the schedule, of many

/// Legend of the timeline.
constexpr const char* kLegend =
    "unit        parameters that are gathered, used and freed together; root: those of no other unit\n"
    "gather      all-gather of a unit's parameters; issued: queued beside the compute, with this rank's "
    "payload\n"
    "reduce      reduce-scatter of a unit's gradients; all-reduce of what several ranks hold\n"
    "attention   with mesh.context: keys and values gathered, or shifted to the next rank, and their gradients\n"
    "layer       with mesh.model: activations between the ranks that compute it together\n"
    "waited      how long this rank stood still for it; hidden: not at all, it computed meanwhile\n"
    "forward     where it begins and how long it takes, with the units inside; backward likewise\n"
    "live        gathered parameters and unreduced gradients, of units that are cut\n";

/// Measurements of a step: collectives of units, attention, layers and optimizer by the communicator's trace,
/// memory by the engine.
struct Counted {
  shard::Traffic forward{}, backward{}, between_slices{}, attention{}, layers{}, optimizer{};
  int64_t unsharded_bytes = 0;
  int64_t shard_bytes = 0, source_bytes = 0;

  /// Returns the member that counts a collective; null if there is none.
  shard::Traffic* place_of(const comm::TraceEvent& event, const std::set<std::string>& names) {
    const std::string& pass = event.pass_or_event;
    if (!event.is_collective()) return nullptr;
    if (event.unit == parallel::kAttentionSite) return &attention;
    if (event.unit.starts_with(parallel::kLayerSite)) return &layers;
    if (!names.contains(event.unit)) return nullptr;  // of the loss, of the norm
    if (pass == "optimizer") return &optimizer;
    if (pass == shard::kBetweenSlices) return &between_slices;
    return pass == "forward" ? &forward : &backward;
  }
};

Counted count(const shard::Engine& engine, const StepRecord& step) {
  Counted counted{.unsharded_bytes = engine.unsharded_memory().peak,
                  .shard_bytes = engine.shard_bytes(),
                  .source_bytes = engine.source_bytes()};
  std::set<std::string> names;
  for (const auto& unit : engine.units()) names.insert(unit->name());
  for (const shard::Segment& segment : engine.segments()) names.insert(segment.name);
  for (const auto& event : step.events) {
    if (shard::Traffic* traffic = counted.place_of(event, names)) *traffic += traffic_of(event);
  }
  return counted;
}

/// Describes the run in a few words.
std::string one_line(const config::Config& config, const ShardedModel& parts) {
  const shard::Engine& engine = *parts.engine;
  int world = engine.communicator().world_size();
  std::string ranks = world == 1 ? "1 rank (no communication)"
                                 : concat(world, " ranks over ", engine.communicator().backend_name());
  return concat(config.model.architecture, ", ", with_commas(shard::parameter_count(engine, *parts.model)),
                " parameters, ", ranks, ", ", config.fsdp.strategy, ", ", engine.units().size(), " units");
}

std::string heading(const config::Config& config, const ShardedModel& parts, const StepResult& result) {
  std::string text = concat(one_line(config, parts), "\n",
                            "Rank 0 in the second of two steps: prefetching knows the order of the units "
                            "from then on. Nothing is saved.\n");
  if (result.skipped) text += concat("The weights were not updated: ", result.skip_reason, ".\n");
  return text;
}

/// Returns "equal" or the difference; for a bound, whether the count is within it.
std::string verdict(int64_t formula, int64_t counted, bool bound) {
  if (bound) return counted <= formula ? "within the bound" : "OVER THE BOUND";
  return counted == formula ? "equal" : concat(counted > formula ? "+" : "", with_commas(counted - formula));
}

/// A number of the formula beside its measurement.
struct FormulaRow {
  std::string name;
  int64_t formula = 0, counted = 0;
  bool is_bound = false;  ///< whether the formula is an upper bound
};
using FormulaRows = std::vector<FormulaRow>;

constexpr const char* kBytesOfRowBefore = "  bytes";

std::string text_of_row(const FormulaRow& row) {
  return util::printed("%-34s %18s %18s  %s\n", row.name.c_str(), with_commas(row.formula).c_str(),
                       with_commas(row.counted).c_str(),
                       verdict(row.formula, row.counted, row.is_bound).c_str());
}

/// Returns rows of the collectives that do not belong to passes of units. `whose`: "attention", over
/// mesh.context, "layers", over mesh.model, or "the update".
FormulaRows collective_rows(const std::string& whose, const shard::Traffic& formula,
                            const shard::Traffic& counted) {
  FormulaRows rows;
  for (const auto& [op, name, number, bytes] : shard::kTrafficKinds) {
    if (formula.*number == 0 && counted.*number == 0) continue;
    rows.push_back({concat(name, " of ", whose), formula.*number, counted.*number});
    rows.push_back({kBytesOfRowBefore, formula.*bytes, counted.*bytes});
  }
  return rows;
}

/// Compares the formula with the counts.
struct OtherTraffic {
  shard::Traffic attention, layers, optimizer;
};

FormulaRows formula_rows(const shard::StepFormula& formula, const OtherTraffic& other,
                         const Counted& counted) {
  const shard::Traffic &f = formula.traffic, &forward = counted.forward, &backward = counted.backward;
  const shard::Traffic &between = formula.between_slices, &slices_counted = counted.between_slices;
  FormulaRows rows = {
      {"all-gathers in forward", formula.forward_all_gathers, forward.all_gathers},
      {kBytesOfRowBefore, formula.forward_all_gather_bytes, forward.all_gather_bytes},
      {"all-gathers in backward", formula.backward_all_gathers, backward.all_gathers},
      {kBytesOfRowBefore, formula.backward_all_gather_bytes, backward.all_gather_bytes},
      {"reduce-scatters of gradients", f.reduce_scatters - between.reduce_scatters, backward.reduce_scatters},
      {kBytesOfRowBefore, f.reduce_scatter_bytes - between.reduce_scatter_bytes,
       backward.reduce_scatter_bytes},
      {"all-reduces of gradients", f.all_reduces, backward.all_reduces},
      {kBytesOfRowBefore, f.all_reduce_bytes, backward.all_reduce_bytes}};
  if (between.all_gathers > 0) {
    rows.insert(rows.end(),
                {{"all-gathers between slices", between.all_gathers, slices_counted.all_gathers},
                 {kBytesOfRowBefore, between.all_gather_bytes, slices_counted.all_gather_bytes},
                 {"reduce-scatters between slices", between.reduce_scatters, slices_counted.reduce_scatters},
                 {kBytesOfRowBefore, between.reduce_scatter_bytes, slices_counted.reduce_scatter_bytes}});
  }
  if (formula.source_bytes > 0) {
    rows.push_back({"bytes of copies that gathers send", formula.source_bytes, counted.source_bytes});
  }
  for (const FormulaRows& others : {collective_rows("attention", other.attention, counted.attention),
                                    collective_rows("layers", other.layers, counted.layers),
                                    collective_rows("the update", other.optimizer, counted.optimizer)}) {
    rows.insert(rows.end(), others.begin(), others.end());
  }
  rows.push_back({"shard bytes", formula.shard_bytes, counted.shard_bytes});
  rows.push_back({"peak live bytes, at most", formula.unsharded_bytes, counted.unsharded_bytes, true});
  return rows;
}

std::string table(const FormulaRows& rows, const shard::StepFormula& formula) {
  std::string text = util::printed("%-34s %18s %18s\n", "rank 0 in this step", "formula", "measured");
  for (const FormulaRow& row : rows) text += text_of_row(row);
  // The estimate leaves out units that stay gathered and gradients that wait to be reduced.
  if (formula.unsharded_bytes > 0 && formula.unsharded_bytes < formula.separate_buffers_bytes) {
    text += concat(
        "  separate buffers, for two units, two shards and two gradients of the largest unit, would need ",
        with_commas(formula.separate_buffers_bytes), "\n");
  }
  return text;
}

nlohmann::ordered_json json_of_rows(const FormulaRows& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::string before;
  for (const FormulaRow& row : rows) {
    const bool is_bytes = row.name == kBytesOfRowBefore;
    if (!is_bytes) before = row.name;
    list.push_back({{"name", is_bytes ? before + ", bytes" : row.name},
                    {"formula", row.formula},
                    {"measured", row.counted},
                    {"is_bound", row.is_bound},
                    {"agrees", row.is_bound ? row.counted <= row.formula : row.counted == row.formula}});
  }
  return list;
}

std::string schedule(const shard::Engine& engine, const ExplainOptions& options) {
  return concat(
      "what a micro-batch does when the forward and backward of a unit begin and end\n",
      schedule_text(shard::unit_sizes(engine), engine.options(), options.all_units ? 0 : kScheduledUnits));
}

std::string times(const StepRecord& step, int world_size) {
  std::string text = concat("step ", milliseconds(step.end_us - step.begin_us));
  if (world_size == 1) return concat(text, "\n");
  CommunicationTime time = communication_time(step);
  const double share = time.total_us > 0 ? std::min(100.0, 100 * time.exposed_us / time.total_us) : 0.0;
  return concat(text, ", communication ", milliseconds(time.total_us),
                "; exposed, without compute beside it, ", milliseconds(time.exposed_us),
                util::printed(" (%.0f%%)\n", share));
}

/// Bytes that each host receives from the others; nothing if there are no others, or if hosts have different
/// numbers of ranks.
std::optional<int64_t> bytes_from_other_hosts(const config::Config& config, const ShardedModel& parts,
                                              const comm::MeshShape& mesh, int ranks_of_host,
                                              plan::PassDevice device) {
  const int world = mesh.world_size();
  if (ranks_of_host == 0 || ranks_of_host >= world || world % ranks_of_host != 0) return std::nullopt;
  const bool on_device = device != plan::PassDevice::kCpu;
  const simulate::Cluster all{
      .mesh = mesh,
      .ranks_of_host = ranks_of_host,
      .backend = comm::backend_in_use(config.comm.backend, world, ranks_of_host, on_device)};
  const plan::Units units = shard::unit_sizes(*parts.engine);
  simulate::Cluster cluster = all;  // of a replica, with local steps
  cluster.mesh = plan::mesh_of_step(config, mesh);
  return std::llround(simulate::bytes_from_other_hosts(config, units, cluster, device) +
                      simulate::simulate_exchange(config, units, all, 0).bytes_from_other_hosts);
}

std::string step_json(const config::Config& config, const ShardedModel& parts, const StepResult& result,
                      const StepRecord& step, const FormulaRows& rows,
                      const std::optional<int64_t>& from_other_hosts) {
  constexpr double kMicroseconds = 1e6;
  const shard::Engine& engine = *parts.engine;
  const CommunicationTime time = communication_time(step);
  const nlohmann::ordered_json json = {
      {"architecture", config.model.architecture},
      {"parameters", shard::parameter_count(engine, *parts.model)},
      {"world_size", engine.communicator().world_size()},
      {"backend", engine.communicator().backend_name()},
      {"strategy", config.fsdp.strategy.name()},
      {"units", engine.units().size()},
      {"skip_reason", result.skipped ? nlohmann::ordered_json(result.skip_reason) : nlohmann::ordered_json()},
      {"step_seconds", (step.end_us - step.begin_us) / kMicroseconds},
      {"communication_seconds", time.total_us / kMicroseconds},
      {"exposed_seconds", time.exposed_us / kMicroseconds},
      {"bytes_from_other_hosts",
       from_other_hosts ? nlohmann::ordered_json(*from_other_hosts) : nlohmann::ordered_json()},
      {"rows", json_of_rows(rows)}};
  return json.dump(2) + "\n";
}

TimelineLimits limits_for(const shard::Engine& engine, const ExplainOptions& options) {
  TimelineLimits limits{.units = {}, .root_units = 0};
  for (const auto& unit : engine.units()) {
    limits.units.push_back(unit->name());
    limits.root_units += engine.is_root(*unit);
  }
  if (options.all_units) limits.most_lines = 0;
  return limits;
}

}  // namespace

std::string explain_step(const config::Config& given, std::shared_ptr<comm::Communicator> communicator,
                         const ExplainOptions& options) {
  config::Config config = given;
  config.training.cuda_graphs = false;  // no hook runs inside a graph
  auto trace = std::make_shared<comm::Trace>();
  // In a world of one, the collectives are those of the loss and the norm, which move nothing.
  if (communicator->world_size() > 1) {
    communicator = comm::make_tracing_communicator(std::move(communicator), trace);
  }
  std::optional<data::TrainLoader> loader;
  comm::agree(*communicator, "set-up", [&] {
    if (communicator->rank() == 0) report::check_timeline(options.timeline);  // not after the steps
    config::check_world(config, communicator->world_size());
    config::resolve_batch(config, communicator->world_size());
    loader.emplace(open_training_data(config, *communicator));
  });
  const comm::Mesh mesh(config.mesh, communicator);
  RunParts parts = build_run_parts(config, mesh, trace);
  config.activation_checkpointing = parts.checkpointing;
  record_compute(*parts.model, *parts.engine, trace);
  const data::PrefetchingBatches batches(*loader, prefetch_options(config, mesh));
  const auto train_step = make_train_step(config, parts, batches);

  StepRecord record;
  StepResult result;
  for (int64_t step = 1; step <= kExplainedStep; ++step) {
    communicator->barrier({.unit = "begin of a step"});
    parts.engine->reset_counters();
    trace->begin_step(step);
    record.begin_us = trace->now_us();
    double lr = optim::lr_at(config.optimizer, config.lr_scheduler, std::min(step, config.training.steps),
                             config.training.steps);
    result = train_step->run(
        {.step = step, .first_global_sample = (step - 1) * loader->samples_per_step(), .lr = lr});
    record.end_us = trace->now_us();
  }
  communicator->barrier({.unit = "end of the step"});
  if (communicator->rank() != 0) return {};

  record.events = trace->events(kExplainedStep);
  report::write_timeline(options.timeline, comm::tracks_of(record.events),
                         concat("Step ", kExplainedStep, " on rank 0: ", one_line(config, parts)),
                         {.begin_us = record.begin_us, .end_us = record.end_us});
  const auto device = communicator->device().is_cpu() ? plan::PassDevice::kCpu : plan::PassDevice::kOfConfig;
  shard::StepFormula formula = step_formula(
      *parts.engine,
      {.micro_batches = config.training.gradient_accumulation_steps, .no_sync = config.training.no_sync});
  const comm::MeshShape of_step = plan::mesh_of_step(config, mesh.shape());
  const FormulaRows rows =
      formula_rows(formula,
                   {.attention = plan::attention_traffic(config, of_step),
                    .layers = plan::layer_traffic(config, of_step, device),
                    .optimizer = plan::optimizer_traffic(config.optimizer, shard::unit_sizes(*parts.engine))},
                   count(*parts.engine, record));
  const std::optional<int64_t> from_other_hosts =
      bytes_from_other_hosts(config, parts, mesh.shape(), options.ranks_of_host, device);
  if (options.json) return step_json(config, parts, result, record, rows, from_other_hosts);
  const std::string between =
      from_other_hosts
          ? concat("each of ", communicator->world_size() / options.ranks_of_host, " hosts receives ",
                   with_commas(*from_other_hosts), " bytes from other hosts in a step",
                   config.training.has_local_steps() ? ", on average" : "", "\n\n")
          : std::string();
  return concat(heading(config, parts, result), "\n", schedule(*parts.engine, options), "\n", kLegend, "\n",
                timeline_text(record, limits_for(*parts.engine, options)), "\n", table(rows, formula), "\n",
                between, times(record, communicator->world_size()));
}

}  // namespace fsdp::train
