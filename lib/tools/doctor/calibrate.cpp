#include "tools/doctor/calibrate.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <set>
#include <tuple>

#include "base/device/cuda.h"
#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "model/kernels/adam.h"
#include "model/kernels/attention.h"
#include "model/kernels/fused.h"
#include "model/kernels/matmul.h"
#include "model/nn/decoder.h"
#include "model/nn/loss.h"
#include "model/nn/parameter.h"
#include "shard/engine/fully_shard.h"
#include "state/optim/engine_shards.h"
#include "tools/doctor/checks.h"
#include "tools/doctor/stopwatch.h"
#include "tools/plan/plan.h"
#include "tools/plan/recorded_pass.h"
#include "tools/simulate/step_program.h"

namespace fsdp::doctor {
namespace {

using kernels::MetaProduct;

constexpr double kMostFlops = 4e11;  ///< most operations of a product that is measured on a CPU
constexpr double kMostFlopsOfGpu = 4e13;
/// Number of rounds. The fastest counts, because other load on the machine only slows measurements down.
constexpr int kRounds = 3;
constexpr int64_t kMostReferenceTokens = 640;
constexpr size_t kMostShapes = 40;             ///< most shapes of the config's products
constexpr double kBytesOfNoCache = 256 << 20;  ///< tensors of so many bytes are in no cache of a CPU

/// Measures the kernels on one device.
class Bench {
 public:
  Bench(const config::Config& config, comm::Communicator& communicator)
      : config_(config),
        communicator_(communicator),
        type_(util::scalar_type(config.mixed_precision.param_dtype)),
        options_(at::TensorOptions().dtype(type_).device(communicator.device())),
        matmul_(kernels::matmul_by_name(config.training.matmul.name())) {}

  simulate::ComputeTable table() const {
    const bool is_gpu = !options_.device().is_cpu();
    simulate::ComputeTable table{
        .machine = is_gpu ? util::cuda_device(options_.device().index()).name
                          : util::line_value("/proc/cpuinfo", "model name").value_or("a CPU"),
        .source = "measured",
        .dtype = config_.mixed_precision.param_dtype.name(),
        .threads = is_gpu ? 0 : at::get_num_threads(),
        .element_bytes = static_cast<double>(c10::elementSize(type_))};
    for (const MetaProduct& shape : shapes(is_gpu)) table.products.push_back({.shape = shape});
    const auto raise = [](double& rate, double measured) { rate = std::max(rate, measured); };
    std::vector<double> references;
    for (int round = 0; round < kRounds; ++round) {
      for (int pass = 0; pass < 2; ++pass) references.push_back(reference_seconds());
      for (simulate::ProductRate& rate : table.products) {
        const bool is_attention = rate.shape.kind == kernels::ProductKind::kAttention;
        raise(rate.flops_per_second, rate.shape.flops() / (is_attention ? attention_seconds(rate.shape)
                                                                        : product_seconds(rate.shape)));
        if (!is_attention) raise(table.flops_per_second, rate.flops_per_second);
      }
      raise(table.elementwise_bytes_per_second, elementwise_rate());
      raise(table.loss_bytes_per_second, loss_rate());
      raise(table.optimizer_bytes_per_second, optimizer_rate());
      raise(table.norm_bytes_per_second, norm_rate());
    }
    table.host_seconds = host_seconds();
    // The median, not the fastest as for kernels: predictions are for a usual step.
    std::ranges::sort(references);
    table.scale = references[references.size() / 2] / predicted_seconds(table);
    return table;
  }

 private:
  std::vector<double> sorted_seconds_of(const std::function<void()>& run, double least) const {
    return sorted_seconds(
        [&] {
          run();
          wait();
        },
        least);
  }
  double seconds_of(const std::function<void()>& run, double least = 0.05) const {
    const std::vector<double> seconds = sorted_seconds_of(run, least);
    return seconds[seconds.size() / 4];
  }
  /// Waits for the device.
  void wait() const {
    if (!options_.device().is_cpu()) at::ones({1}, options_).item<double>();
  }

  at::Tensor random(at::IntArrayRef shape) const { return at::randn(shape, options_); }
  at::Tensor in_float32(int64_t numel) const { return at::ones({numel}, options_.dtype(at::kFloat)); }

  /// The shapes to measure: a grid, and the shapes of the config's products.
  std::vector<MetaProduct> shapes(bool is_gpu) const {
    std::vector<MetaProduct> found;
    const double most = is_gpu ? kMostFlopsOfGpu : kMostFlops;
    for (const int64_t rows : {64, 512, 4096}) {
      for (const int64_t width : {64, 256, 1024, 4096}) {
        const MetaProduct shape{.m = rows, .n = width, .k = width};
        if (shape.flops() <= most / 4) found.push_back(shape);
      }
    }
    const auto add = [&](std::vector<MetaProduct> own, size_t most_shapes) {
      std::ranges::sort(own,
                        [](const MetaProduct& a, const MetaProduct& b) { return a.flops() > b.flops(); });
      for (const MetaProduct& shape : own) {
        const bool is_measured = shape.kind != kernels::ProductKind::kFloat8 && shape.flops() <= most &&
                                 std::min({shape.m, shape.n, shape.k}) > 0;
        if (is_measured && found.size() < most_shapes) found.push_back(shape);
      }
    };
    // The scale would be wrong with rates between those of other shapes.
    add(shapes_of(reference()), 2 * kMostShapes);
    add(shapes_of(config_), found.size() + kMostShapes);
    const bool has_attention = std::ranges::any_of(
        found, [](const MetaProduct& shape) { return shape.kind == kernels::ProductKind::kAttention; });
    if (!has_attention) {
      found.push_back({.m = 8 * 512, .n = 2 * 512, .k = 64, .kind = kernels::ProductKind::kAttention});
    }
    return found;
  }

  /// The shapes of a step's products, each once.
  std::vector<MetaProduct> shapes_of(const config::Config& config) const {
    std::vector<MetaProduct> found;
    std::set<std::tuple<int64_t, int64_t, int64_t, kernels::ProductKind>> seen;
    plan::StageEvents events;
    events.computes = [&](const plan::Products& products) {
      const MetaProduct& shape = products.shape;
      if (seen.emplace(shape.m, shape.n, shape.k, shape.kind).second) found.push_back(shape);
    };
    plan::MemoryTape tape;
    plan::record_pass(config,
                      options_.device().is_cpu() ? plan::PassDevice::kCpu : plan::PassDevice::kOfConfig)
        .play(tape, events);
    return found;
  }

  /// Mean seconds of a product. On a CPU, so many take turns that no cache keeps their tensors: in a step,
  /// weights come from memory, and gradients of weights go there.
  double product_seconds(const MetaProduct& shape) const {
    const at::NoGradGuard no_grad;
    struct Product {
      at::Tensor a, b, result;
    };
    const at::Tensor a = random({shape.m, shape.k}), b = random({shape.n, shape.k});
    std::vector<Product> products{{a, b, {}}};
    if (options_.device().is_cpu()) {
      const double bytes = static_cast<double>(a.nbytes() + b.nbytes()) +
                           static_cast<double>(shape.m * shape.n) * static_cast<double>(a.element_size());
      const auto count = static_cast<size_t>(std::clamp(kBytesOfNoCache / bytes, 1.0, 64.0));
      while (products.size() < count) products.push_back({a.clone(), b.clone(), {}});
    }
    return seconds_of(
               [&] {
                 for (Product& each : products) each.result = kernels::product(each.a, each.b, matmul_);
               },
               0.03) /
           static_cast<double>(products.size());
  }

  /// Seconds of one of the three attentions that a forward and a backward count as (model/kernels/meta.h).
  /// The queries of one row, with as many keys.
  double attention_seconds(const MetaProduct& shape) const {
    const int64_t tokens = std::max<int64_t>(1, shape.n / 2), rows = std::max<int64_t>(1, shape.m / tokens);
    const auto tensor = [&] { return random({1, tokens, rows, shape.k}).requires_grad_(true); };
    const at::Tensor q = tensor(), k = tensor(), v = tensor(), dy = random({1, tokens, rows, shape.k});
    const bool is_ours = options_.device().is_cpu() && kernels::can_attend(q);
    const double both = seconds_of([&] {
      at::Tensor y;
      if (is_ours) {
        y = kernels::causal_attention(q, k, v, matmul_);
      } else {
        y = at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), {}, 0.0,
                                             /*is_causal=*/true)
                .transpose(1, 2);
      }
      y.backward(dy);
      for (const at::Tensor* input : {&q, &k, &v}) input->mutable_grad() = at::Tensor();
    });
    return both / 3;
  }

  int64_t rows() const {
    return std::clamp<int64_t>(config_.data.micro_batch_size * config_.data.sequence_length, 64, 16384);
  }
  int64_t width() const { return config_.model.hidden_size; }

  /// Bytes per second of norm, activation and sum with their backward, which have three results each way.
  /// Uses so many tensors that no cache keeps them from forward to backward, as in training.
  double elementwise_rate() const {
    constexpr double kResults = 6;
    const auto tensor = [&] { return random({rows(), width()}).requires_grad_(true); };
    const at::Tensor dy = random({rows(), width()}),
                     weight = at::ones({width()}, options_).requires_grad_(true);
    const double bytes = static_cast<double>(dy.nbytes());
    std::vector<std::array<at::Tensor, 3>> inputs(
        static_cast<size_t>(std::clamp(kBytesOfNoCache / ((3 + kResults) * bytes), 1.0, 64.0)));
    for (auto& [x, residual, gate] : inputs) x = tensor(), residual = tensor(), gate = tensor();
    const double seconds = seconds_of([&] {
      std::vector<at::Tensor> results;
      for (const auto& [x, residual, gate] : inputs) {
        const auto [sum, y] = kernels::add_rms_norm(x, residual, weight, 1e-5);
        results.push_back(kernels::swiglu(gate, y));
      }
      for (; !results.empty(); results.pop_back()) {
        results.back().backward(dy);
        for (const at::Tensor& input : inputs[results.size() - 1]) input.mutable_grad() = at::Tensor();
      }
    });
    weight.mutable_grad() = at::Tensor();
    return kResults * bytes * static_cast<double>(inputs.size()) / seconds;
  }

  /// Bytes per second of the loss, without its three products.
  double loss_rate() const {
    const int64_t vocabulary = std::clamp<int64_t>(config_.model.vocab_size, 64, 32768);
    const at::Tensor x = random({rows(), width()}).requires_grad_(true),
                     weight = random({vocabulary, width()}).requires_grad_(true),
                     targets = at::randint(vocabulary, {rows()}, options_.dtype(at::kLong));
    const double whole = seconds_of([&] {
      kernels::linear_cross_entropy(x, weight, targets, matmul_).backward();
      for (const at::Tensor* input : {&x, &weight}) input->mutable_grad() = at::Tensor();
    });
    const double products = product_seconds({.m = rows(), .n = vocabulary, .k = width()}) +
                            product_seconds({.m = rows(), .n = width(), .k = vocabulary}) +
                            product_seconds({.m = vocabulary, .n = width(), .k = rows()});
    const double bytes =
        static_cast<double>(rows() * vocabulary) * static_cast<double>(c10::elementSize(type_));
    return bytes / std::max(whole - products, 0.02 * whole);
  }

  double optimizer_rate() const {
    constexpr int64_t kElements = 1 << 22;
    /// Bytes per element: value and averages are read and written, the gradient is read.
    constexpr double kBytes = 28;
    const kernels::AdamTensors tensors{.value = in_float32(kElements),
                                       .gradient = in_float32(kElements),
                                       .exp_avg = in_float32(kElements),
                                       .exp_avg_sq = in_float32(kElements),
                                       .rates = {.step_size = 1e-6f, .second_correction = 1}};
    const kernels::AdamNumbers numbers{
        .beta1 = 0.9f, .one_minus_beta1 = 0.1f, .beta2 = 0.95f, .one_minus_beta2 = 0.05f, .eps = 1e-8f};
    const at::NoGradGuard no_grad;
    return kBytes * static_cast<double>(kElements) /
           seconds_of([&] { kernels::step_adam({tensors}, numbers); });
  }

  double norm_rate() const {
    const at::NoGradGuard no_grad;
    const at::Tensor x = in_float32(1 << 22);
    return static_cast<double>(x.nbytes()) / seconds_of([&] { at::linalg_vector_norm(x, 2); });
  }

  /// Host time of a kernel launch, measured by a tiny norm and its backward, which are two kernels.
  double host_seconds() const {
    constexpr int kTimes = 64;
    const at::Tensor x = random({1, 16}).requires_grad_(true), dy = random({1, 16});
    const at::Tensor weight = at::ones({16}, options_);
    return seconds_of([&] {
             for (int i = 0; i < kTimes; ++i) {
               kernels::rms_norm(x, weight, 1e-5).backward(dy);
               x.mutable_grad() = at::Tensor();
             }
           }) /
           (2 * kTimes);
  }

  // ---- a whole step of one rank alone, with a reference model

  /// Whether the engine would cast all weights, while a rank of a larger world casts only its shard. The step
  /// is then only forward and backward.
  bool would_cast() const { return type_ != at::kFloat; }

  config::Config reference() const {
    config::Config config;
    config.model.vocab_size = 1000;
    config.model.hidden_size = 512;  // too many weights for a cache, as in training
    config.model.intermediate_size = 1376;
    config.model.num_hidden_layers = 4;
    config.model.num_attention_heads = config.model.num_key_value_heads = 8;
    // Products of few tokens depend more on memory, so as many are taken as the config has, up to a number
    // that is enough for the others.
    config.data.sequence_length = std::clamp<int64_t>(config_.data.sequence_length, 16, kMostReferenceTokens);
    config.data.micro_batch_size =
        std::clamp<int64_t>(config_.data.micro_batch_size, 1,
                            std::max<int64_t>(1, kMostReferenceTokens / config.data.sequence_length));
    config.model.max_position_embeddings = config.data.sequence_length;
    config.training.device =
        options_.device().is_cpu() ? config::DeviceChoice::kCpu : config::DeviceChoice::kCuda;
    config.training.matmul = config_.training.matmul;
    config.model.matmul = config_.training.matmul;
    config.mixed_precision.param_dtype = config_.mixed_precision.param_dtype;
    return config;
  }

  double reference_seconds() const {
    const config::Config config = reference();
    const nn::ParameterType parameters_of(type_);
    const std::shared_ptr<nn::Stage> model = nn::make_decoder(config.model, options_.device());
    {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : model->parameters()) at::Tensor(parameter).normal_(0, 0.02);
    }
    std::shared_ptr<shard::Engine> engine;
    std::unique_ptr<optim::Optimizer> optimizer;
    if (!would_cast()) {
      engine = shard::fully_shard(*model, config::shard_options(config),
                                  communicator_.subgroup("calibration rank", {communicator_.rank()}));
      optimizer = optim::make_optimizer(config.optimizer, optim::flat_parameters(*engine, config.optimizer));
    }
    const auto tokens = [&] {
      return at::randint(config.model.vocab_size, {config.data.micro_batch_size, config.data.sequence_length},
                         options_.dtype(at::kLong));
    };
    const at::Tensor ids = tokens(), targets = tokens();
    const std::vector<double> seconds = sorted_seconds_of(
        [&] {
          if (engine) engine->zero_gradients();
          nn::loss_of(*model, ids, targets).backward();
          if (engine) return optimizer->step(optim::shard_gradients(*engine), config.optimizer.lr);
          for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
        },
        1);
    return of_slowest_rank(seconds[seconds.size() / 2]);
  }

  /// The largest value of all ranks. Ranks wait for the slowest in a step, and cores differ.
  double of_slowest_rank(double seconds) const {
    const at::Tensor slowest = at::full({1}, seconds, options_.dtype(at::kDouble));
    communicator_.all_reduce(slowest, comm::ReduceOp::kMax, {.unit = "calibration"})->synchronize();
    return slowest.item<double>();
  }

  double predicted_seconds(const simulate::ComputeTable& table) const {
    const config::Config config = reference();
    const std::vector<shard::UnitSizes> units = plan::planned_units(config, {});
    const plan::RecordedPass pass = plan::record_pass(config);
    simulate::KernelSeconds seconds = simulate::step_program(config, units, pass, table).computed();
    seconds[simulate::KernelClass::kNorm] = 0;
    if (would_cast()) seconds[simulate::KernelClass::kOptimizer] = 0;
    return seconds.sum();
  }

  const config::Config& config_;
  comm::Communicator& communicator_;
  const at::ScalarType type_;
  const at::TensorOptions options_;
  const kernels::Matmul matmul_;
};

}  // namespace

double usable_cores() {
  const double cores = std::max(1, allowed_cpus());
  return std::min(cores, util::cpu_time_quota().value_or(cores));
}

simulate::Calibration calibrate(const config::Config& config, comm::Communicator& communicator,
                                const RankPlaces& places, bool links_only) {
  const bool is_gpu = !communicator.device().is_cpu();
  simulate::Calibration calibration{.cores_of_host = is_gpu ? 0 : usable_cores()};
  const double threads = static_cast<double>(places.local_world_size) * at::get_num_threads();
  if (!is_gpu && !links_only && threads > calibration.cores_of_host) {
    fail(ErrorKind::kUsage, "`calibrate` requires a core for each thread, but the ", places.local_world_size,
         " ranks of this host have ", threads, " threads on ", calibration.cores_of_host,
         " cores; launch fewer ranks, set OMP_NUM_THREADS, or measure links only");
  }
  communicator.barrier({.unit = "calibration"});
  if (!links_only) calibration.compute = Bench(config, communicator).table();
  communicator.barrier({.unit = "calibration"});
  if (communicator.world_size() > 1) {
    calibration.networks[communicator.backend_name()] = measure_network(communicator, places);
  }
  return calibration;
}

std::string write_calibration(const std::filesystem::path& path, simulate::Calibration calibration) {
  if (util::is_there(path)) {
    const simulate::Calibration before = simulate::read_calibration(path);
    for (const auto& [backend, network] : before.networks) calibration.networks.emplace(backend, network);
    if (calibration.compute.products.empty()) {
      calibration.compute = before.compute;
      calibration.cores_of_host = before.cores_of_host;
    }
  }
  if (calibration.compute.products.empty()) {
    fail(ErrorKind::kUsage, "`links-only` requires a file with the compute of this machine, but ",
         path.string(), " is not there; calibrate first with a process for each core");
  }
  util::write_file_atomically(path, simulate::calibration_json(calibration));
  const simulate::ComputeTable& compute = calibration.compute;
  const auto giga = [](double rate) { return util::fixed(rate / 1e9, 1); };
  std::string text =
      concat("wrote ", path.string(), ": ", compute.machine, ", ", compute.dtype, "\n  products up to ",
             giga(compute.flops_per_second), " GFLOP/s in ", compute.products.size(), " shapes, optimizer ",
             giga(compute.optimizer_bytes_per_second), " GB/s, a kernel ",
             util::fixed(1e6 * compute.host_seconds, 1), " us of the host\n  a whole pass takes ",
             util::fixed(compute.scale, 3), " times as long as its kernels\n");
  for (const auto& [backend, network] : calibration.networks) {
    text += concat("  ", backend, ":");
    for (const auto& [level, name] : enum_names(simulate::Level{})) {
      const simulate::Link& link = network.at(level);
      if (link.latency_seconds == 0 && link.bytes_per_second == 0) continue;
      text += concat(" ", name, " ", util::fixed(1e6 * link.latency_seconds, 1), " us");
      if (link.bytes_per_second > 0) text += concat(", ", giga(link.bytes_per_second), " GB/s");
      text += ";";
    }
    text += "\n";
  }
  return text;
}

}  // namespace fsdp::doctor
