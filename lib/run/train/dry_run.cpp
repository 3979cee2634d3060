#include "run/train/dry_run.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/device/cuda.h"
#include "base/tensor/seeded_random.h"
#include "base/tensor/tensor_memory.h"
#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/text.h"
#include "comm/api/trace.h"
#include "comm/fake/fake_communicator.h"
#include "data/loading/packed_documents.h"
#include "model/parallel/context_attention.h"
#include "run/train/run_parts.h"
#include "run/train/step_timeline.h"
#include "setup/config/global_batch.h"
#include "shard/engine/autograd_hooks.h"
#include "shard/engine/engine.h"
#include "tools/plan/text.h"

namespace fsdp::train {
namespace {

using util::with_commas;

/// Rows of tokens that depend only on the seed and the position in the run.
class RandomBatches final : public data::BatchSource {
 public:
  explicit RandomBatches(const config::Config& config) : config_(config) {}

  data::Batch batch(int64_t first_global_sample, int64_t micro_batch) const override {
    auto tokens = [&](const char* what) {
      at::Generator generator = util::named_generator(
          static_cast<uint64_t>(config_.run.seed), concat(what, " ", first_global_sample, " ", micro_batch));
      return at::randint(config_.model.vocab_size,
                         {config_.data.micro_batch_size, config_.data.sequence_length}, generator,
                         at::TensorOptions().dtype(at::kLong));
    };
    const data::Batch batch = {
        .inputs = tokens("inputs"),
        .targets = tokens("targets"),
        .valid_rows = config_.data.micro_batch_size,
        .counted = config_.data.micro_batch_size * config_.data.sequence_length,
        .document_starts = data::one_document_a_row(config_.data, config_.data.micro_batch_size)};
    if (!config_.data.preference.is_on()) return batch;
    const std::vector<std::vector<data::ScoredDocument>> rows(static_cast<size_t>(batch.valid_rows),
                                                              documents());
    return data::packed_documents(batch, rows, config_.data.preference.rows == data::PreferenceRows::kSingle);
  }

 private:
  /// The documents of a row of preferences: each has a half, and the last half of it is a completion.
  std::vector<data::ScoredDocument> documents() const {
    const int64_t length = config_.data.sequence_length, half = length / 2;
    std::vector<data::ScoredDocument> documents{{.begin = 0, .end = half, .preferred = true},
                                                {.begin = half, .end = length}};
    documents[1].exchanged = config_.data.preference.rows == data::PreferenceRows::kSingle;
    for (data::ScoredDocument& each : documents) {
      each.completes.resize(static_cast<size_t>(each.end - each.begin));
      std::fill(each.completes.begin() + (each.end - each.begin) / 2, each.completes.end(), true);
      if (config_.data.preference.stored_reference) each.reference = -1;
    }
    return documents;
  }

  const config::Config& config_;
};

/// Weights of this size keep all activations finite.
class ConstantWeights final : public shard::ParameterSource {
 public:
  void read(const shard::NamedParameter&, const std::vector<util::Rectangle>&,
            const at::Tensor& out) override {
    out.fill_(0.02);
  }
};

/// Peak of tensor memory on the device.
class PeakMemory {
 public:
  explicit PeakMemory(at::Device device) : device_(device) {
    device.is_cpu() ? void(host_.emplace())
                    : void(before_ = util::cuda_memory(device.index()).allocated_bytes);
  }
  void reset() { host_ ? host_->reset_peak() : util::reset_cuda_peak_memory(device_.index()); }
  int64_t bytes() const {
    return host_ ? host_->peak_bytes() : util::cuda_memory(device_.index()).peak_allocated_bytes - before_;
  }

 private:
  at::Device device_;
  std::optional<util::TensorMemory> host_;
  int64_t before_ = 0;  ///< bytes of tensors that were on the GPU already
};

/// Waits until the device has run all launched kernels.
void wait_for(at::Device device) {
  if (!device.is_cpu()) at::zeros({}, at::TensorOptions().device(device)).item<float>();
}

/// Lets communication progress at the end of each unit's forward and backward, while its buffers still exist.
class ProgressInCompute final : public nn::StageHook {
 public:
  /// `on`: shared switch.
  ProgressInCompute(std::shared_ptr<comm::FakeCommunicator> communicator, std::shared_ptr<bool> on)
      : communicator_(std::move(communicator)), on_(std::move(on)) {}

  at::Tensor around(nn::Stage&, const at::Tensor& input, const Next& next) override {
    at::Tensor inner = input;
    if (at::GradMode::is_enabled() && input.requires_grad()) {
      inner = shard::when_backward_ends(input, [communicator = communicator_, on = on_] {
        if (*on) communicator->progress();
      });
    }
    at::Tensor output = next(inner);
    if (*on_) communicator_->progress();
    return output;
  }

 private:
  std::shared_ptr<comm::FakeCommunicator> communicator_;
  std::shared_ptr<bool> on_;
};

/// Attaches hooks to the stages that are units, inside the hooks that are attached already.
void attach_progress(RunParts& parts, const std::shared_ptr<comm::FakeCommunicator>& communicator,
                     const std::shared_ptr<bool>& on) {
  auto hook = std::make_shared<ProgressInCompute>(communicator, on);
  auto modules = parts.model->named_modules();
  for (const auto& unit : parts.engine->units()) {
    if (parts.engine->is_root(*unit)) continue;
    auto* stage = dynamic_cast<nn::Stage*>(modules[unit->name()].get());
    FSDP_CHECK(stage != nullptr, unit->name(), " is no stage");
    stage->attach(hook);
  }
}

int64_t optimizer_bytes(const optim::Optimizer& optimizer) {
  int64_t bytes = 0;
  for (const std::string& name : optimizer.state_names()) {
    for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
      for (const at::Tensor& memory : optimizer.state_memory(name, i)) {
        if (memory.defined()) bytes += static_cast<int64_t>(memory.nbytes());
      }
    }
  }
  return bytes;
}

int64_t gradient_bytes(const shard::Engine& engine) {
  int64_t bytes = 0;
  for (const auto& unit : engine.units()) {
    const at::Tensor& gradient = unit->storage().shard_gradient();
    if (gradient.defined()) bytes += static_cast<int64_t>(gradient.nbytes());
  }
  return bytes;
}

struct ComparedRow {
  std::string name;
  int64_t planned, measured;
};

std::vector<ComparedRow> rows_of(const plan::Plan& plan, const DryRun& measured) {
  const int64_t planned_peak =
      plan.memory.frozen + (measured.gpu.empty() ? plan.memory.peak : plan.memory.device_peak);
  std::vector<ComparedRow> rows = {
      {"shards, bytes", plan.memory.shards, measured.shards},
      {"copies of shards that gathers send, bytes", plan.memory.sources, measured.sources},
      {"optimizer state, bytes", plan.memory.optimizer, measured.optimizer},
      {"gradients of shards, bytes", plan.memory.gradients, measured.gradients},
      {"gathered and unreduced, bytes", plan.memory.buffers, measured.buffers}};
  const auto add = [&rows](const std::string& whose, const shard::Traffic& a, const shard::Traffic& b) {
    for (const auto& [op, name, number, bytes] : shard::kTrafficKinds) {
      // Every table shows the collectives of units, except shifts, which are none of theirs.
      const bool is_shown = whose.empty() ? std::string_view(op) != "shift" : a.*number > 0 || b.*number > 0;
      if (!is_shown) continue;
      rows.push_back({name + whose, a.*number, b.*number});
      rows.push_back({"  payload, bytes", a.*bytes, b.*bytes});
    }
  };
  add("", plan.step.traffic, measured.traffic);
  rows.push_back({"peak of tensor memory, bytes", planned_peak, measured.peak});
  add(" of attention", plan.attention_traffic, measured.attention);
  add(" of layers", plan.layer_traffic, measured.layers);
  return rows;
}

std::string difference(const ComparedRow& row) {
  if (row.planned == row.measured) return "equal";
  double percent = 100.0 * static_cast<double>(row.measured - row.planned) / static_cast<double>(row.planned);
  std::string sign = row.measured > row.planned ? "+" : "";
  if (!std::isfinite(percent)) return concat(sign, with_commas(row.measured - row.planned));
  return concat(sign, util::fixed(percent, 2), " %");
}

}  // namespace

DryRun dry_run(const config::Config& given, int world_size, at::Device device) {
  config::Config config = given;
  config.training.cuda_graphs = false;  // two steps record none
  config::resolve_batch(config, world_size);
  config::plan_largest_batches(config);
  PeakMemory memory(device);
  DryRun result;
  auto communicator = comm::make_fake_communicator(world_size, device);
  ConstantWeights weights;
  const auto trace = std::make_shared<comm::Trace>();  // of the collectives of attention and of layers
  const comm::MeshShape shape = comm::resolve_mesh(config.mesh, world_size);
  const bool traces = shape.context > 1 || shape.model > 1;
  const comm::Mesh mesh(config.mesh,
                        traces ? comm::make_tracing_communicator(communicator, trace) : communicator);
  RunParts parts = build_run_parts(config, mesh, nullptr, {.weights = &weights});
  auto progress = std::make_shared<bool>(false);
  const auto fake = std::dynamic_pointer_cast<comm::FakeCommunicator>(communicator);  // on the CPU
  if (fake) attach_progress(parts, fake, progress);
  const RandomBatches random(config);
  data::PrefetchOptions prefetch = prefetch_options(config, mesh);
  if (fake) prefetch.depth = 0;  // the plan counts one batch in host memory
  const int64_t rows = config.data.micro_batch_size * mesh.shape().row_ranks();
  const data::PrefetchingBatches batches(random, rows, prefetch);
  const auto train_step = make_train_step(config, parts, batches);
  const int64_t samples = rows * config.training.gradient_accumulation_steps;
  int64_t step = 0;
  enum class Timing { kAtOnce, kBesideCompute, kAsLateAsCanBe };
  auto run_step = [&](Timing timing) {
    if (fake) {
      fake->set_timing(timing == Timing::kAtOnce ? comm::FakeTiming::kAtOnce
                                                 : comm::FakeTiming::kWhenWaitedFor);
    }
    *progress = timing == Timing::kBesideCompute;
    memory.reset();
    auto begin = std::chrono::steady_clock::now();
    trace->begin_step(++step);
    train_step->run({.step = step, .first_global_sample = (step - 1) * samples, .lr = config.optimizer.lr});
    wait_for(device);
    result.step_seconds = util::seconds_since(begin);
  };
  // Prefetching knows the order of units from the second step on.
  run_step(Timing::kAtOnce);
  result.first_arena = parts.engine->buffer_pool().held_bytes();
  run_step(Timing::kBesideCompute);
  run_step(Timing::kAsLateAsCanBe);
  run_step(Timing::kAtOnce);
  for (Timing timing : {Timing::kAsLateAsCanBe, Timing::kBesideCompute, Timing::kAtOnce}) {
    const shard::Traffic before = parts.engine->traffic();
    run_step(timing);
    result.traffic = parts.engine->traffic() - before;
    result.peak = std::max(result.peak, memory.bytes());
  }
  for (const comm::TraceEvent& event : trace->events(step)) {
    if (event.unit == parallel::kAttentionSite) result.attention += traffic_of(event);
    if (event.unit.starts_with(parallel::kLayerSite)) result.layers += traffic_of(event);
  }
  if (!fake) {
    const util::CudaDevice gpu = util::cuda_device(device.index());
    result.gpu = gpu.name;
    result.gpu_memory = gpu.memory_bytes;
    result.gpu_reserved = util::cuda_memory(device.index()).peak_reserved_bytes;
  }
  result.buffers = parts.engine->unsharded_memory().peak;
  result.arena = parts.engine->buffer_pool().held_bytes();
  result.shards = parts.engine->shard_bytes();
  result.sources = parts.engine->source_bytes();
  result.gradients = gradient_bytes(*parts.engine);
  result.optimizer = optimizer_bytes(*parts.optimizer);
  return result;
}

std::string dry_run_text(const plan::Plan& plan, const DryRun& measured) {
  std::string text = concat(plan_heading(plan), "\n",
                            util::printed("%-34s %22s %22s\n", "rank 0 in a step", "planned", "measured"));
  for (const ComparedRow& row : rows_of(plan, measured)) {
    text += util::printed("%-34s %22s %22s  %s\n", row.name.c_str(), with_commas(row.planned).c_str(),
                          with_commas(row.measured).c_str(), difference(row).c_str());
  }
  if (!measured.gpu.empty()) {
    text += concat("the allocator took ", util::human_bytes(measured.gpu_reserved), " of the ",
                   util::human_bytes(measured.gpu_memory), " of the GPU, ", measured.gpu, "\n");
  }
  return concat(text, "a step took ", util::fixed(1e3 * measured.step_seconds, 1),
                " ms of compute on this machine\n");
}

std::string dry_run_json(const plan::Plan& plan, const DryRun& measured) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(plan_json(plan));
  const shard::Traffic& traffic = measured.traffic;
  json["measured"] = {{"shard_bytes", measured.shards},
                      {"gather_source_bytes", measured.sources},
                      {"optimizer_bytes", measured.optimizer},
                      {"gradient_bytes", measured.gradients},
                      {"unsharded_bytes", measured.buffers},
                      {"peak_bytes", measured.peak},
                      {"all_gathers", traffic.all_gathers},
                      {"all_gather_bytes", traffic.all_gather_bytes},
                      {"reduce_scatters", traffic.reduce_scatters},
                      {"reduce_scatter_bytes", traffic.reduce_scatter_bytes},
                      {"all_reduces", traffic.all_reduces},
                      {"all_reduce_bytes", traffic.all_reduce_bytes},
                      {"step_seconds", measured.step_seconds}};
  if (!measured.gpu.empty()) {
    json["measured"]["gpu"] = measured.gpu;
    json["measured"]["gpu_reserved_bytes"] = measured.gpu_reserved;
    json["measured"]["gpu_memory_bytes"] = measured.gpu_memory;
  }
  return json.dump(2) + "\n";
}

}  // namespace fsdp::train
