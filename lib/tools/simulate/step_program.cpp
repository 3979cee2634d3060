#include "tools/simulate/step_program.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "shard/units/nominal_pass.h"
#include "tools/plan/memory.h"
#include "tools/plan/unit_jobs.h"

namespace fsdp::simulate {
namespace {

/// Adds up kernels until the schedule has a command or a stage an event.
///
/// Kernels are recognised by their results: an allocation is the result of the product beside it if it has
/// that size, and otherwise of a kernel that is bound by memory.
class Kernels {
 public:
  /// `width`: width of the hidden states.
  Kernels(const ComputeTable& table, int64_t width) : table_(table), width_(static_cast<double>(width)) {}

  /// `in_head`: whether the product is outside the model's layers, between their forward and backward. There
  /// the logits are made and, in place, their loss and gradient; with the gradients of states and weight that
  /// makes three products of equal size.
  void product(const kernels::MetaProduct& shape, bool in_head) {
    const bool is_attention = shape.kind == kernels::ProductKind::kAttention;
    seconds_[is_attention ? KernelClass::kAttention : KernelClass::kProduct] += table_.product_seconds(shape);
    ++launches_;
    // The result was allocated just before, or will be.
    const double numbers = static_cast<double>(shape.m) * static_cast<double>(shape.n);
    if (is_attention) return;
    if (in_head) logit_bytes_ += shape.flops() / (3 * 2 * width_) * table_.element_bytes;
    if (last_result_ && is_of(*last_result_, numbers)) {
      bytes_ -= *std::exchange(last_result_, std::nullopt);
      --launches_;
    } else {
      awaited_numbers_ = numbers;
    }
  }

  void result(int64_t bytes) {
    const auto size = static_cast<double>(bytes);
    if (is_of(size, std::exchange(awaited_numbers_, 0))) return;
    bytes_ += size;
    ++launches_;
    last_result_ = size;
  }

  bool any() const { return launches_ > 0; }

  /// The compute since the last call.
  KernelSeconds take() {
    seconds_[KernelClass::kElementwise] +=
        seconds_at_rate(std::max(0.0, bytes_), table_.elementwise_bytes_per_second);
    seconds_[KernelClass::kLoss] += seconds_at_rate(logit_bytes_, table_.loss_bytes_per_second);
    const double launching = static_cast<double>(launches_) * table_.host_seconds;
    // The host of a GPU runs ahead by a stage at most; a CPU launches and computes in turn.
    const double waited = table_.is_gpu() ? std::max(0.0, launching - seconds_.sum()) : launching;
    seconds_[KernelClass::kHost] += waited;
    KernelSeconds taken;
    taken.add(seconds_, table_.scale);
    seconds_ = {};
    bytes_ = logit_bytes_ = 0;
    launches_ = 0;
    last_result_.reset();
    awaited_numbers_ = 0;
    return taken;
  }

 private:
  /// Whether so many numbers of 2 or 4 bytes have this size.
  static bool is_of(double bytes, double numbers) {
    return numbers > 0 && (bytes == 2 * numbers || bytes == 4 * numbers);
  }

  const ComputeTable& table_;
  const double width_;
  KernelSeconds seconds_;
  double bytes_ = 0;  ///< bytes of results that are not of products
  double logit_bytes_ = 0;
  int64_t launches_ = 0;
  std::optional<double> last_result_;
  double awaited_numbers_ = 0;
};

class ProgramWriter final : private shard::CommandReader {
 public:
  ProgramWriter(const config::Config& config, const plan::Units& units, const plan::RecordedPass& pass,
                const ComputeTable& table)
      : config_(config),
        units_(units),
        pass_(pass),
        table_(table),
        updates_alone_(!pass.on_device() && config::updates_units_alone(config)),
        kernels_(table, config.model.hidden_size),
        schedule_(config::shard_options(config), shard::scheduled_units(units), *this,
                  /*host_runs_ahead=*/pass.on_device()),
        updates_(units.size()) {
    for (size_t unit = 0; unit < units.size(); ++unit) {
      if (!units[unit].is_root) unit_at_[units[unit].name] = unit;
    }
    unit_at_[""] = 0;
  }

  StepProgram write() {
    micro_batch(/*sync=*/true, /*is_last=*/true);  // makes the order of the units known
    schedule_.forget_gradients();
    StepProgram program;
    plan::for_micro_batches(config_.training, [&](bool sync, bool is_last, double times) {
      program.sections.push_back({.operations = micro_batch(sync, is_last), .times = times});
    });
    program.sections.push_back({.operations = end_of_step()});
    return program;
  }

 private:
  void read(const shard::Command& command) override {
    flush();
    add({.kind = OperationKind::kCommand, .command = command});
    const shard::UnitSizes& unit = units_[command.unit];
    if (updates_[command.unit].is_due_after(command, unit, updates_now_)) {
      compute(KernelClass::kOptimizer, update_seconds(unit));
    }
  }

  bool is_updated_in_host_memory(const shard::UnitSizes& unit) const {
    return table_.is_gpu() && (unit.options.storage.cpu_offload ||
                               config_.optimizer.offload == optim::OptimizerOffload::kStream);
  }

  double update_seconds(const shard::UnitSizes& unit) const {
    return seconds_at_rate(update_bytes(config_, unit), table_.optimizer_bytes_per_second);
  }

  std::vector<Operation> micro_batch(bool sync, bool is_last) {
    updates_now_ = is_last && updates_alone_;
    schedule_.set_requires_gradient_sync(sync);
    schedule_.set_requires_all_reduce(is_last);
    const plan::StageEvents of_schedule = plan::run_schedule(schedule_, units_);
    std::vector<std::string> open;  ///< stages whose forward runs
    bool is_backward = false;
    plan::StageEvents events;
    // Gathering and waiting do not count as compute of a unit, as in a trace.
    events.forward_begins = [&](const std::string& path) {
      flush();
      open.push_back(path);
      of_schedule.forward_begins(path);
      mark(OperationKind::kBegin, path, schedule_.in_backward() ? "recompute" : "forward");
    };
    events.forward_ends = [&](const std::string& path) {
      flush();
      mark(OperationKind::kEnd, path, schedule_.in_backward() ? "recompute" : "forward");
      of_schedule.forward_ends(path);
      open.pop_back();
    };
    const auto is_outside_layers = [](const std::string& path) {
      return path.find('.') == std::string::npos;
    };
    events.backward_begins = [&](const std::string& path) {
      flush();
      // Kept logits are multiplied for the weight's gradient when backward has begun, before the layers.
      is_backward = is_backward || !is_outside_layers(path);
      of_schedule.backward_begins(path);
      mark(OperationKind::kBegin, path, "backward");
    };
    events.backward_ends = [&](const std::string& path) {
      flush();
      is_backward = is_backward || !is_outside_layers(path);
      if (!path.empty()) mark(OperationKind::kEnd, path, "backward");
      of_schedule.backward_ends(path);
    };
    events.computes = [&](const plan::Products& products) {
      const bool in_head = open.empty() || is_outside_layers(open.back());  // the model or its head
      kernels_.product(products.shape, !is_backward && in_head);
    };
    events.takes = [&](int64_t bytes) { kernels_.result(bytes); };
    events.sends = [&](int64_t number, int64_t bytes) {
      flush();
      add({.kind = OperationKind::kSend, .number = number, .bytes = static_cast<double>(bytes)});
    };
    events.copies = [&](int64_t number, int64_t bytes) {
      flush();
      add({.kind = OperationKind::kCopy, .number = number, .bytes = static_cast<double>(bytes)});
    };
    events.waits = [&](int64_t number) {
      flush();
      add({.kind = OperationKind::kWaitForSend, .number = number});
    };
    plan::MemoryTape tape;
    pass_.play(tape, events);
    flush();
    return std::exchange(operations_, {});
  }

  std::vector<Operation> end_of_step() {
    constexpr double kSums = 16;  ///< bytes of the loss and a flag, or of loss and norm
    const auto all_reduce = [this](const char* what) {
      add({.kind = OperationKind::kCollective,
           .bytes = kSums,
           .collective = CollectiveKind::kAllReduce,
           .what = what});
    };
    double elements = 0, update = 0;
    for (const shard::UnitSizes& unit : units_) {
      if (!unit.has_trainable_parameters) continue;
      elements += static_cast<double>(unit.shard_gradient_bytes());
      if (!is_updated_in_host_memory(unit)) update += update_seconds(unit);
    }
    // Where collectives add up host memory, they add up squares too.
    if (table_.is_gpu() && table_.norm_bytes_per_second > 0) {
      compute(KernelClass::kNorm, elements / table_.norm_bytes_per_second);
    }
    all_reduce(table_.is_gpu() ? "loss and gradient norm" : "loss");
    if (!table_.is_gpu()) all_reduce("gradient norm");
    const shard::Traffic traffic = plan::optimizer_traffic(config_.optimizer, units_);
    const auto exchange = [this](CollectiveKind kind, int64_t number, int64_t bytes) {
      for (int64_t i = 0; i < number; ++i) {
        add({.kind = OperationKind::kCollective,
             .bytes = static_cast<double>(bytes) / static_cast<double>(number),
             .collective = kind,
             .what = "optimizer"});
      }
    };
    exchange(CollectiveKind::kAllGather, traffic.all_gathers, traffic.all_gather_bytes);
    exchange(CollectiveKind::kReduceScatter, traffic.reduce_scatters, traffic.reduce_scatter_bytes);
    exchange(CollectiveKind::kAllReduce, traffic.all_reduces, traffic.all_reduce_bytes);
    if (!updates_alone_) compute(KernelClass::kOptimizer, update);
    KernelSeconds beside;
    beside[KernelClass::kOptimizer] = table_.host_update_seconds;
    if (beside.sum() > 0) add({.kind = OperationKind::kCompute, .seconds = beside});
    return std::exchange(operations_, {});
  }

  void flush() {
    if (kernels_.any()) add({.kind = OperationKind::kCompute, .seconds = kernels_.take()});
  }

  void compute(KernelClass kernels, double seconds) {
    KernelSeconds of;
    of[kernels] = table_.scale * seconds;
    if (seconds > 0) add({.kind = OperationKind::kCompute, .seconds = of});
  }

  void mark(OperationKind kind, const std::string& path, const char* pass) {
    const auto unit = unit_at_.find(path);
    if (unit == unit_at_.end()) return;
    add({.kind = kind, .number = static_cast<int64_t>(unit->second), .what = pass});
  }

  void add(Operation operation) { operations_.push_back(std::move(operation)); }

  const config::Config& config_;
  const plan::Units& units_;
  const plan::RecordedPass& pass_;
  const ComputeTable& table_;
  const bool updates_alone_;
  Kernels kernels_;
  shard::Schedule schedule_;
  std::map<std::string, size_t> unit_at_;  ///< keys are paths
  std::vector<plan::UnitUpdate> updates_;  ///< indexed by unit
  bool updates_now_ = false;
  std::vector<Operation> operations_;
};

}  // namespace

KernelSeconds StepProgram::computed() const {
  KernelSeconds seconds;
  for (const Section& section : sections) {
    for (const Operation& operation : section.operations) seconds.add(operation.seconds, section.times);
  }
  return seconds;
}

double update_bytes(const config::Config& config, const shard::UnitSizes& unit) {
  if (!unit.has_trainable_parameters) return 0;
  const int64_t states = plan::optimizer_state_bytes(config.optimizer, {unit});
  const int64_t copies = unit.options.storage.keeps_low_precision_shard ? unit.source_bytes() : 0;
  return static_cast<double>(2 * states + 2 * unit.shard_bytes() + unit.shard_gradient_bytes() + copies);
}

StepProgram step_program(const config::Config& config, const plan::Units& units,
                         const plan::RecordedPass& pass, const ComputeTable& table) {
  return ProgramWriter(config, units, pass, table).write();
}

}  // namespace fsdp::simulate
