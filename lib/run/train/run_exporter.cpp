#include "run/train/run_exporter.h"

#include <exception>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/version.h"
#include "comm/api/launch_environment.h"

namespace fsdp::train {
namespace {

constexpr int kLastPort = 65535;

/// Returns the number of ranks below this one whose ports are this rank's too. Collective.
int rank_on_host(comm::Communicator& communicator) {
  const comm::HostIdentity host = comm::HostIdentity::read();
  const auto hosts = comm::all_gather_text(communicator, concat(host.boot_id, ' ', host.network_namespace),
                                           {.unit = "hosts of the ranks"});
  int number = 0;
  for (int rank = 0; rank < communicator.rank(); ++rank) {
    number += hosts[static_cast<size_t>(rank)] == hosts[static_cast<size_t>(communicator.rank())];
  }
  return number;
}

openmetrics::Labels info_of(const RunState& run) {
  const nn::ModelOptions& model = run.config.model;
  return {{"version", util::version()},
          {"model", model.preset.empty() ? model.architecture : model.preset},
          {"device", run.communicator->device().is_cpu() ? "cpu" : "cuda"},
          {"output_dir", std::filesystem::absolute(run.output_folder()).lexically_normal().string()}};
}

bool serves_all(const config::LoggingOptions& logging) {
  return logging.metrics_port > 0 && logging.metrics_ranks == config::MetricsRanks::kAll;
}

}  // namespace

RunExporter::RunExporter(const Sources& sources, int local_rank) : from_(sources) {
  const RunState& run = from_.run;
  const config::LoggingOptions& logging = run.config.logging;
  figures_.labels = {{"run", run.config.run.name}};
  if (serves_all(logging)) figures_.labels.emplace_back("rank", std::to_string(run.communicator->rank()));
  if (run.is_first_rank()) {
    figures_.shared.emplace();
    figures_.shared->info = info_of(run);
    figures_.shared->ranks = run.communicator->world_size();
    figures_.shared->replicas = run.mesh->shape().dcn;
    figures_.shared->restarts = comm::read_launch_environment().restarts;
  }
  update();
  if (logging.metrics_port > 0) serve(static_cast<int>(logging.metrics_port) + local_rank);
  if (logging.metrics_textfile.empty() || !run.is_first_rank()) return;
  file_ = std::make_unique<openmetrics::TextFile>(
      logging.metrics_textfile, [this] { return text(openmetrics::TextFormat::kPrometheus); });
}

RunExporter::~RunExporter() {
  try {
    update();
  } catch (const std::exception&) {
    // The memory of a GPU that has failed is unknown.
  }
  const bool goes_on_elsewhere =
      file_ != nullptr && figures_.shared->is_running && from_.run.hooks.membership.has_value();
  file_.reset();
  std::error_code ignored;
  if (goes_on_elsewhere) std::filesystem::remove(from_.run.config.logging.metrics_textfile, ignored);
}

void RunExporter::serve(int port) {
  const config::LoggingOptions& logging = from_.run.config.logging;
  const std::string key = port == logging.metrics_port
                              ? "logging.metrics_port"
                              : concat("logging.metrics_port ", logging.metrics_port, " + ",
                                       port - logging.metrics_port, " (logging.metrics_ranks = \"all\")");
  if (port > kLastPort) {
    fail(ErrorKind::kUsage, key, " must be at most ", kLastPort, ", but is ", port, "; lower it");
  }
  try {
    server_ = std::make_unique<openmetrics::HttpServer>(
        logging.metrics_host, port, "/metrics", [this](std::string_view accept) {
          const openmetrics::TextFormat format = openmetrics::format_for(accept);
          return openmetrics::HttpPage{openmetrics::content_type(format), text(format)};
        });
  } catch (const util::Error& error) {
    fail(error.kind(), key, " must be a free port at logging.metrics_host, but this process ", error.what(),
         "; choose others, or 0 to serve no metrics");
  }
}

std::string RunExporter::text(openmetrics::TextFormat format) const {
  std::unique_lock lock(mutex_);
  const RunFigures figures = figures_;
  lock.unlock();
  return openmetrics::text_of(families_of(figures), format);
}

void RunExporter::update() {
  const RunState& run = from_.run;
  const std::lock_guard lock(mutex_);
  figures_.step = run.position.step;
  figures_.data_wait_seconds = from_.batches.waited_seconds();
  figures_.communication_wait_seconds = run.communicator->waited_seconds();
  if (const at::Device device = run.communicator->device(); device.is_cuda()) {
    figures_.gpu = util::cuda_memory(device.index());
  }
  if (!figures_.shared) return;
  SharedFigures& shared = *figures_.shared;
  shared.planned_steps = run.config.training.steps;
  shared.tokens = run.position.tokens_seen;
  shared.line = from_.metrics.last_line();
  shared.validation = from_.metrics.last_validation();
  shared.pause_seconds = run.time_left.pause_seconds();
  shared.checkpoint_step = from_.checkpointer.saved_step();
  shared.saves = from_.checkpointer.save_counts();
}

void RunExporter::begin(ObservedStep&) { update(); }

void RunExporter::begin_step(const ObservedStep&) { step_began_ = std::chrono::steady_clock::now(); }

void RunExporter::end_step(ObservedStep&) {
  {
    const std::lock_guard lock(mutex_);
    ++figures_.steps;
    figures_.step_seconds += util::seconds_since(step_began_);
    const auto now = std::chrono::system_clock::now();
    figures_.last_step_at = std::chrono::duration<double>(now.time_since_epoch()).count();
  }
  update();
}

void RunExporter::between_steps(ObservedStep&) { update(); }

void RunExporter::finish() {
  const std::lock_guard lock(mutex_);
  if (figures_.shared) figures_.shared->is_running = from_.run.summary.left;
}

std::shared_ptr<RunExporter> make_run_exporter(const RunExporter::Sources& sources) {
  comm::Communicator& communicator = *sources.run.communicator;
  const config::LoggingOptions& logging = sources.run.config.logging;
  if (logging.metrics_port == 0 && logging.metrics_textfile.empty()) return nullptr;
  const int local_rank = serves_all(logging) ? rank_on_host(communicator) : 0;
  std::shared_ptr<RunExporter> exporter;
  comm::agree(communicator, "metrics", [&] {
    if (!sources.run.is_first_rank() && !serves_all(logging)) return;
    exporter = std::make_shared<RunExporter>(sources, local_rank);
  });
  return exporter;
}

}  // namespace fsdp::train
