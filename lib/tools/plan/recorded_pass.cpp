#include "tools/plan/recorded_pass.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/matrix_units.h"
#include "base/util/system.h"
#include "data/options/datasets.h"
#include "model/families/families.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/meta.h"
#include "model/kernels/recomputed.h"
#include "model/kernels/sample_sums.h"
#include "model/nn/decoder.h"
#include "model/nn/layers.h"
#include "model/nn/lora.h"
#include "model/nn/loss.h"
#include "model/nn/parameter.h"
#include "model/nn/recompute.h"
#include "model/parallel/cut_sequence.h"
#include "shard/engine/autograd_hooks.h"
#include "shard/engine/wrap_policy.h"
#include "tools/plan/meta_group.h"
#include "tools/plan/meta_memory.h"

namespace fsdp::plan {
namespace {

/// Collects the events of a pass on the calling thread while it lives.
class Recorder {
 public:
  Recorder(c10::DeviceType device, bool counts_memory)
      : memory_({.takes = [this](int64_t bytes) { return take(bytes); },
                 .gives = [this](size_t number) { give(number); }}),
        device_{
            .type = device,
            .threads = util::default_compute_threads(),
            .multiplies = [this](const kernels::MetaProduct& product) { multiply(product); },
            .copies = {.begin =
                           [this](int64_t bytes) {
                             events_.push_back({PassEventKind::kCopy, static_cast<double>(bytes), sends_});
                             return sends_++;
                           },
                       .wait =
                           [this](int64_t number) {
                             events_.push_back({PassEventKind::kWait, 0, number});
                           },
                       .keep =
                           [this](int64_t bytes) {
                             events_.push_back({PassEventKind::kHost, 0, bytes});
                           }}},
        device_guard_(device_),
        callback_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&called).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {
    if (!counts_memory) muted_.emplace();
  }
  ~Recorder() { at::removeCallback(callback_); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// The group over which sequences are cut, as this rank sees it.
  std::shared_ptr<comm::Communicator> group(int world_size) {
    return std::make_shared<MetaGroup>(
        world_size,
        MetaGroup::Events{.sends =
                              [this](int64_t bytes) {
                                events_.push_back({PassEventKind::kSend, static_cast<double>(bytes), sends_});
                                return sends_++;
                              },
                          .waits =
                              [this](int64_t number) {
                                events_.push_back({PassEventKind::kWait, 0, number});
                              }});
  }
  void at_stage(PassEventKind kind, size_t path) { events_.push_back({kind, 0, static_cast<int64_t>(path)}); }
  void turn() { events_.push_back({PassEventKind::kTurn}); }

  RecordedPass take_pass(std::vector<std::string> paths) {
    int64_t kept = 0;
    for (const size_t at : open_) kept += std::exchange(events_[at].value, 0);
    open_.clear();
    return RecordedPass({.events = std::move(events_),
                         .paths = std::move(paths),
                         .kept_bytes = kept,
                         .on_device = device_.type != c10::kCPU,
                         .shapes = std::move(shapes_)});
  }

 private:
  void multiply(const kernels::MetaProduct& product) {
    const bool in_float8 = product.kind == kernels::ProductKind::kFloat8;
    const auto [place, is_new] = numbers_of_shapes_.try_emplace(
        {product.m, product.n, product.k, product.kind}, static_cast<int64_t>(shapes_.size()));
    if (is_new) shapes_.push_back(product);
    events_.push_back({in_float8 ? PassEventKind::kMultiplyInFloat8 : PassEventKind::kMultiply,
                       product.flops(), place->second});
  }
  size_t take(int64_t bytes) {
    open_.insert(events_.size());
    events_.push_back({PassEventKind::kTake, 0, bytes});
    return events_.size() - 1;
  }
  void give(size_t at) {
    if (open_.erase(at) == 0) return;
    events_.push_back({PassEventKind::kGive, 0, events_[at].value});
  }

  /// Called before each operation of libtorch.
  static std::unique_ptr<at::ObserverContext> called(const at::RecordFunction& function) {
    const std::string_view name = function.name();
    const bool multiplies = name == "aten::mm" || name == "aten::bmm";
    const bool adds = name == "aten::addmm" || name == "aten::baddbmm" || name == "aten::addmm_";
    const size_t first = adds ? 1 : 0;  // index of the first factor
    const auto inputs = function.inputs();
    if (!(multiplies || adds) || inputs.size() < first + 2) return nullptr;
    const at::Tensor &a = inputs[first].toTensor(), &b = inputs[first + 1].toTensor();
    // Experts may have no rows.
    if (a.is_meta() && a.numel() > 0) kernels::note_product(a.numel() / a.size(-1), b.size(-1), a.size(-1));
    return nullptr;
  }

  std::vector<PassEvent> events_;
  std::vector<kernels::MetaProduct> shapes_;
  std::map<std::tuple<int64_t, int64_t, int64_t, kernels::ProductKind>, int64_t> numbers_of_shapes_;
  int64_t sends_ = 0;
  std::set<size_t> open_;  ///< kTake events without a kGive
  MetaMemory memory_;
  std::optional<MetaMemory::Muted> muted_;
  kernels::MetaDevice device_;
  kernels::MetaDeviceGuard device_guard_;
  at::CallbackHandle callback_;
};

/// Records the events of a stage as shard/engine/unit_hook.cpp reports them.
class StageHook final : public nn::CallHook {
 public:
  StageHook(Recorder& recorder, size_t path, bool is_unit)
      : recorder_(recorder), path_(path), is_unit_(is_unit) {}

  std::shared_ptr<void> before(const nn::CallTensors& inputs) override {
    recorder_.at_stage(PassEventKind::kForwardBegins, path_);
    if (!at::GradMode::is_enabled()) return nullptr;
    const nn::CallTensors with_gradient = shard::differentiable(inputs);
    if (!with_gradient.empty()) {
      shard::when_backward_ends(with_gradient,
                                [this] { recorder_.at_stage(PassEventKind::kBackwardEnds, path_); });
    }
    return nullptr;
  }

  void after(const nn::CallTensors& outputs) override {
    recorder_.at_stage(PassEventKind::kForwardEnds, path_);
    if (!at::GradMode::is_enabled()) return;
    const auto begun = std::make_shared<bool>(false);
    for (at::Tensor* output : shard::differentiable(outputs)) {
      if (is_unit_) kernels::keep_result(*output);
      shard::when_backward_begins(*output, [this, begun] {
        if (!std::exchange(*begun, true)) recorder_.at_stage(PassEventKind::kBackwardBegins, path_);
      });
    }
  }

 private:
  Recorder& recorder_;
  size_t path_;
  bool is_unit_;
};

std::set<std::string> unit_paths(nn::Stage& model, const config::Config& config,
                                 std::vector<nn::ParameterPart> parts) {
  shard::ShardOptions options = config::shard_options(config);
  options.parts = std::move(parts);
  std::set<std::string> paths;
  for (const shard::UnitPlan& unit : shard::plan_units(model, options)) paths.insert(unit.name);
  return paths;
}

/// Stands in for the place of a parameter's gradient in the buffer of its unit
/// (shard/engine/gradient_buffer.h), whose memory counts as the unit's.
class UnitGradient final : public kernels::GradientSink {
 public:
  struct Buffer {
    at::ScalarType type = at::kFloat;  ///< type of the buffer
    bool in_one_piece = true;
    bool holds = false;  ///< whether it has a gradient of an earlier micro-batch
    bool on_cpu = true;
    bool apart = false;  ///< whether further gradients of a parameter are kept apart from its first
  };
  UnitGradient(const at::Tensor& parameter, const Buffer& buffer) : buffer_(buffer), holds_(buffer.holds) {
    const MetaMemory::Muted muted;
    memory_ = at::empty(parameter.sizes(), parameter.options().dtype(buffer.type).requires_grad(false));
  }

  void operator()(const at::Tensor& parameter) override {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) return;
    // On the CPU, a sum of two types needs a converted copy.
    if (holds_ && !buffer_.apart && buffer_.on_cpu && gradient.scalar_type() != buffer_.type)
      gradient.to(buffer_.type);
    holds_ = true;
    at::Tensor(parameter).mutable_grad() = at::Tensor();
  }

  std::optional<SinkPlace> place(at::ScalarType type) const override {
    if (!buffer_.in_one_piece || type != buffer_.type) return std::nullopt;
    return SinkPlace{memory_, holds_ && !buffer_.apart};
  }

 private:
  void note_taken() override { holds_ = true; }

  Buffer buffer_;
  bool holds_;
  at::Tensor memory_;
};

std::shared_ptr<nn::Stage> meta_model(nn::ModelOptions options, const nn::LoraOptions& lora,
                                      at::ScalarType type, at::ScalarType buffer_type = at::kFloat) {
  // The planned machine may have matrix units that this one lacks.
  if (options.matmul == nn::MatmulChoice::kAmx && !util::has_matrix_unit())
    options.matmul = nn::MatmulChoice::kAuto;
  const nn::ParameterType parameters_of(type);
  auto model = nn::make_decoder(options, at::kMeta);
  if (lora.is_on()) nn::add_lora(*model, lora);
  for (at::Tensor& buffer : model->buffers()) {
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(buffer_type));
  }
  return model;
}

at::Tensor meta_tokens(int64_t rows, int64_t tokens) {
  return at::empty({rows, tokens}, at::TensorOptions().dtype(at::kLong).device(at::kMeta));
}

bool sums_by_sample(const config::Config& config) {
  return config.training.reproducible == config::Reproducible::kWorldSize;
}

void keep_gradients_in_units(nn::Stage& model, const config::Config& config, bool on_cpu) {
  const UnitGradient::Buffer options{
      .type = util::scalar_type(config.mixed_precision.reduce_dtype),
      .in_one_piece = config.fsdp.layout == shard::Layout::kFlat,
      .holds = config.training.no_sync && config.training.gradient_accumulation_steps > 1,
      .on_cpu = on_cpu,
      .apart = sums_by_sample(config)};
  std::set<const void*> seen;
  for (const at::Tensor& parameter : model.parameters()) {
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(parameter,
                                                   std::make_unique<UnitGradient>(parameter, options));
  }
}

/// Batches on the device: the one in use, or all of a step if the number of targets varies
/// (run/train/train_step.h), and the next one (data/loading/prefetch.h).
int64_t batches_on_device(const config::Config& config) {
  const int64_t in_use =
      data::counts_vary(config.data) ? config.training.gradient_accumulation_steps : int64_t{1};
  return in_use + (config.data.prefetch_batches > 0 ? 1 : 0);
}

nn::LossOptions loss_options(const config::Config& config) {
  const nn::ModelOptions& model = config.model;
  nn::LossOptions options;
  options.terms = {.label_smoothing = config.training.label_smoothing, .z_loss = config.training.z_loss};
  options.function = nn::losses().get(config.training.loss, "training.loss");
  options.plugin_values = config.plugin_values;
  options.router_aux_loss_coef = nn::aux_loss_coef(model);
  if (model.embedding_dropout > 0 || model.attention_dropout > 0 || model.hidden_dropout > 0 ||
      (config.lora.is_on() && config.lora.dropout > 0)) {
    options.dropout.emplace();
  }
  options.documents = data::one_document_a_row(config.data, config.data.micro_batch_size);
  return options;
}

RecordedPass record(const config::Config& config, c10::DeviceType device) {
  Recorder recorder(device, /*counts_memory=*/true);
  std::vector<std::string> paths;
  std::shared_ptr<nn::Stage> model;
  {
    const MetaMemory::Muted muted;
    // The buffers of these models are tables that their modules compute.
    const auto buffers = shard::float_type_of(config.mixed_precision.buffer_dtype);
    model = meta_model(config.model, config.lora, util::scalar_type(config.mixed_precision.param_dtype),
                       buffers ? util::scalar_type(*buffers) : at::kFloat);
    const std::set<std::string> units = unit_paths(
        *model, config,
        nn::parallelize_decoder(*model, config.model, {.sequence_parallel = config.mesh.sequence_parallel},
                                recorder.group(static_cast<int>(std::max<int64_t>(1, config.mesh.model)))));
    use_float8(*model, config);
    for (const auto& item : model->named_modules(/*name_prefix=*/std::string(), /*include_self=*/true)) {
      auto* stage = dynamic_cast<nn::Hookable*>(item.value().get());
      if (stage == nullptr) continue;
      stage->attach(std::make_shared<StageHook>(recorder, paths.size(), units.contains(item.key())));
      paths.push_back(item.key());
    }
    keep_gradients_in_units(*model, config, device == c10::kCPU);
    nn::apply_checkpointing(*model, config.activation_checkpointing);
  }
  const auto context = static_cast<int>(std::max<int64_t>(1, config.mesh.context));
  const int64_t rows = config.data.micro_batch_size, tokens = config.data.sequence_length / context;
  nn::LossOptions options = loss_options(config);
  if (context > 1) {
    options.cut = std::make_shared<parallel::CutSequence>(
        parallel::CutSequence{.rank = 0,
                              .degree = context,
                              .group = recorder.group(context),
                              .attention = config.mesh.context_attention.value()});
  }
  const at::Tensor ids = meta_tokens(rows, tokens), targets = meta_tokens(rows, tokens);
  std::vector<at::Tensor> other_batches;
  for (int64_t i = 1; device != c10::kCPU && i < batches_on_device(config); ++i) {
    other_batches.push_back(meta_tokens(2 * rows, tokens));
  }
  std::optional<kernels::SampleSums> sums;
  if (sums_by_sample(config)) sums.emplace(config.data.max_tokens > 0 ? 1 : rows, /*counted=*/1);
  at::Tensor loss = nn::loss_of(*model, ids, targets, options);
  recorder.turn();
  loss.backward();
  loss.reset();
  recorder.at_stage(PassEventKind::kBackwardEnds, 0);
  return recorder.take_pass(std::move(paths));
}

/// Operations in the products of one row; with grad mode its backward too.
double flops_of_row(const nn::ModelOptions& model, const nn::LoraOptions& lora, int64_t tokens,
                    const nn::CheckpointingOptions& checkpointing) {
  Recorder recorder(c10::kCPU, /*counts_memory=*/false);
  const auto stages = meta_model(model, lora, at::kFloat);
  nn::apply_checkpointing(*stages, checkpointing);
  const at::Tensor loss = nn::loss_of(*stages, meta_tokens(1, tokens), meta_tokens(1, tokens));
  if (at::GradMode::is_enabled()) loss.backward();
  return recorder.take_pass({}).flops();
}

}  // namespace

void RecordedPass::play(MemoryTape& tape, const StageEvents& events) const {
  for (const auto& [kind, flops, value] : parts_.events) {
    const auto number = static_cast<size_t>(value);
    if (kind == PassEventKind::kTake) {
      tape.take(value);
      events.takes(value);
    }
    if (kind == PassEventKind::kGive) tape.give(value);
    if (kind == PassEventKind::kMultiply || kind == PassEventKind::kMultiplyInFloat8) {
      const double in_float8 = kind == PassEventKind::kMultiplyInFloat8 ? flops : 0;
      events.computes({.flops = flops, .flops_in_float8 = in_float8, .shape = parts_.shapes[number]});
    }
    if (kind == PassEventKind::kSend) events.sends(value, static_cast<int64_t>(flops));
    if (kind == PassEventKind::kCopy) events.copies(value, static_cast<int64_t>(flops));
    if (kind == PassEventKind::kWait) events.waits(value);
    if (kind == PassEventKind::kForwardBegins) events.forward_begins(parts_.paths[number]);
    if (kind == PassEventKind::kForwardEnds) events.forward_ends(parts_.paths[number]);
    if (kind == PassEventKind::kBackwardBegins) events.backward_begins(parts_.paths[number]);
    if (kind == PassEventKind::kBackwardEnds) events.backward_ends(parts_.paths[number]);
  }
}

StageEvents run_schedule(shard::Schedule& schedule, const Units& units, std::function<void()> before_end) {
  auto by_path = std::make_shared<std::map<std::string, size_t>>();
  (*by_path)[""] = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    if (!units[i].is_root) (*by_path)[units[i].name] = i;
  }
  const auto of = [&by_path](auto event) {
    return [by_path, event](const std::string& path) {
      if (const auto unit = by_path->find(path); unit != by_path->end()) event(unit->second);
    };
  };
  const auto end = [before_end = std::move(before_end)] {
    if (before_end) before_end();
  };
  StageEvents events;
  events.forward_begins = of([&schedule](size_t unit) { schedule.forward_begins(unit); });
  events.forward_ends = of([&schedule, &units, end](size_t unit) {
    end();
    schedule.forward_ends(unit, units[unit].output_is_differentiable);
  });
  events.backward_begins = of([&schedule](size_t unit) { schedule.backward_begins(unit); });
  events.backward_ends = of([&schedule, end](size_t unit) {
    if (unit == 0) return schedule.whole_backward_ends();
    end();
    schedule.backward_ends(unit);
  });
  return events;
}

int64_t RecordedPass::saved_bytes() const {
  int64_t live = 0;
  for (const PassEvent& event : parts_.events) {
    if (event.kind == PassEventKind::kTurn) break;
    if (event.kind == PassEventKind::kTake) live += event.value;
    if (event.kind == PassEventKind::kGive) live -= event.value;
  }
  return live;
}

int64_t RecordedPass::host_bytes() const {
  MemoryTape tape;
  for (const PassEvent& event : parts_.events) {
    if (event.kind == PassEventKind::kHost) tape.take(event.value);
  }
  return tape.peak();
}

std::vector<RecordedPass::StageShare> RecordedPass::shares(const std::vector<std::string>& stages) const {
  std::map<int64_t, size_t> numbers;  // of stages, keyed by the number of the path
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const auto path = std::ranges::find(parts_.paths, stages[stage]);
    FSDP_CHECK(path != parts_.paths.end(), stages[stage]);
    numbers[path - parts_.paths.begin()] = stage;
  }
  std::vector<StageShare> shares(stages.size());
  StageShare* current = nullptr;
  bool is_backward = false;
  for (const auto& [kind, flops, value] : parts_.events) {
    if (kind == PassEventKind::kTurn) is_backward = true;
    const PassEventKind begins = is_backward ? PassEventKind::kBackwardBegins : PassEventKind::kForwardBegins,
                        ends = is_backward ? PassEventKind::kBackwardEnds : PassEventKind::kForwardEnds;
    if (kind == begins && numbers.contains(value)) current = &shares[numbers[value]];
    if (kind == ends && numbers.contains(value)) current = nullptr;
    if (current == nullptr) continue;
    if (!is_backward && kind == PassEventKind::kTake) current->saved_bytes += value;
    if (!is_backward && kind == PassEventKind::kGive) current->saved_bytes -= value;
    const bool multiplies = kind == PassEventKind::kMultiply || kind == PassEventKind::kMultiplyInFloat8;
    if (multiplies) (is_backward ? current->backward_flops : current->forward_flops) += flops;
  }
  return shares;
}

double RecordedPass::flops() const {
  double flops = 0;
  for (const PassEvent& event : parts_.events) {
    if (event.kind == PassEventKind::kMultiply || event.kind == PassEventKind::kMultiplyInFloat8)
      flops += event.flops;
  }
  return flops;
}

bool is_for_gpu(const config::Config& config, PassDevice device) {
  return device == PassDevice::kOfConfig && config.training.device != config::DeviceChoice::kCpu &&
         !sums_by_sample(config);
}

nn::Float8Layers use_float8(nn::Stage& model, const config::Config& config) {
  if (config.training.float8 == config::Float8Recipe::kNone) return {};
  std::vector<std::string> exclude = config.training.float8_exclude;
  // Products in fp32 must not lose digits.
  const std::vector<std::string>& in_float32 = config.mixed_precision.keep_float32;
  exclude.insert(exclude.end(), in_float32.begin(), in_float32.end());
  const bool by_rows = config.training.float8 == config::Float8Recipe::kRowwise;
  return nn::use_float8(model, exclude,
                        by_rows ? kernels::Float8Scaling::kRow : kernels::Float8Scaling::kTensor);
}

RecordedPass record_pass(const config::Config& config, PassDevice device) {
  try {
    return record(config, is_for_gpu(config, device) ? c10::kCUDA : c10::kCPU);
  } catch (const c10::Error& error) {
    fail(ErrorKind::kUsage, "model.architecture \"", config.model.architecture,
         "\" cannot be planned, because libtorch has no meta kernel for one of its "
         "operations: ",
         error.what_without_backtrace());
  }
}

FlopsAToken flops_a_token(const nn::ModelOptions& model, int64_t sequence_length,
                          const nn::CheckpointingOptions& checkpointing, const nn::LoraOptions& lora) {
  const auto tokens = static_cast<double>(sequence_length);
  try {
    FlopsAToken flops;
    if (lora.is_on()) {
      flops.model = flops_of_row(model, lora, sequence_length, {}) / tokens;
    } else {
      const at::NoGradGuard forward_only;
      flops.model = 3 * flops_of_row(model, lora, sequence_length, {}) / tokens;
    }
    flops.hardware = flops.model;
    if (checkpointing.mode != nn::RecomputeMode::kNone || checkpointing.feed_forward_tokens > 0) {
      const double once = flops_of_row(model, lora, sequence_length, {});
      flops.hardware += (flops_of_row(model, lora, sequence_length, checkpointing) - once) / tokens;
    }
    return flops;
  } catch (const c10::Error&) {
    return {};
  }
}

}  // namespace fsdp::plan
