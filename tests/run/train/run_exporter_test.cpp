#include "run/train/run_exporter.h"

#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "base/util/file.h"
#include "support/blocked_folder.h"
#include "support/free_port.h"
#include "support/http_client.h"
#include "support/log_lines.h"
#include "support/source_folder.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::http_answer;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kOpenMetrics = "Accept: application/openmetrics-text;version=1.0.0\r\n";

class RunExporterTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    config_.run.name = "a \"b\"";
    config_.logging.metrics_port = testing::free_port();
    config_.logging.interval_steps = 1;
  }

  int port(int local_rank = 0) const { return static_cast<int>(config_.logging.metrics_port) + local_rank; }

  /// Trains, and calls `visit` on rank 0 in each step.
  RunSummary train_with(int world_size, const std::function<void(int64_t step)>& visit) {
    RunSummary summary;
    comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
      const bool visits = communicator.rank() == 0;
      const auto activity = std::make_shared<comm::Activity>();
      int64_t visited = 0;
      const auto visit_once = [&] {
        const int64_t step = activity->snapshot().step;
        if (visits && std::exchange(visited, step) != step) visit(step);
        return false;
      };
      Trainer trainer(config_, testing::borrowed(communicator), {},
                      {.stop_requested = visit_once, .activity = activity});
      RunSummary mine = trainer.run();
      if (visits) summary = mine;
    });
    return summary;
  }

  /// The value of the sample that begins so; NaN if there is none.
  static double value(const std::string& text, const std::string& sample) {
    const size_t at = text.find("\n" + sample);
    return at == std::string::npos ? std::nan("") : std::stod(text.substr(text.find("} ", at) + 2));
  }
};

TEST_F(RunExporterTest, ServesTheRunWhileItTrains) {
  config_.evaluation.interval_steps = 2;
  config_.evaluation.accuracy = true;
  config_.checkpoint.interval_steps = 2;
  std::vector<std::string> pages;
  const RunSummary summary = train_with(2, [&](int64_t step) {
    if (step == 6) {
      pages.push_back(http_answer(port(), "/metrics", kOpenMetrics));
      pages.push_back(http_answer(port(), "/metrics"));
    }
  });
  ASSERT_GE(pages.size(), 2u);
  EXPECT_THROW(testing::HttpConnection{port()}, std::runtime_error);  // the run has ended
  EXPECT_THAT(pages[0], StartsWith("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; "
                                   "version=1.0.0; charset=utf-8\r\n"));
  EXPECT_THAT(pages[0], EndsWith("\n# EOF\n"));
  EXPECT_THAT(pages[0], HasSubstr("# TYPE fsdp_tokens counter\n"));
  EXPECT_THAT(pages[1], StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; "));
  EXPECT_THAT(pages[1], HasSubstr("# TYPE fsdp_tokens_total counter\n"));
  const std::string run = "{run=\"a \\\"b\\\"\"";
  const auto of = [&](const std::string& name, const std::string& more = "") {
    return value(pages[1], name + run + more + "}");
  };
  const auto lines = testing::metrics_with(folder_ / "out/metrics.jsonl", "loss");
  const auto validations = testing::metrics_with(folder_ / "out/metrics.jsonl", "validation_loss");
  ASSERT_EQ(of("fsdp_step"), 5);  // step 6 was under way
  const auto& line = lines.at(4);
  EXPECT_EQ(of("fsdp_loss"), line.at("loss").get<double>());
  EXPECT_EQ(of("fsdp_grad_norm"), line.at("grad_norm").get<double>());
  EXPECT_EQ(of("fsdp_learning_rate"), line.at("lr").get<double>());
  EXPECT_EQ(of("fsdp_tokens_total"), line.at("tokens").get<double>());
  EXPECT_EQ(of("fsdp_tokens_per_second"), line.at("tokens_per_second").get<double>());
  EXPECT_EQ(of("fsdp_mfu_ratio"), line.at("mfu").get<double>());
  EXPECT_EQ(of("fsdp_remaining_seconds"), line.at("eta_seconds").get<double>());
  EXPECT_EQ(of("fsdp_validation_loss"), validations.at(1).at("validation_loss").get<double>());
  EXPECT_EQ(of("fsdp_validation_step"), 4);
  EXPECT_EQ(of("fsdp_validation_metric", ",metric=\"accuracy\""),
            validations.at(1).at("validation_accuracy").get<double>());
  EXPECT_EQ(of("fsdp_planned_steps"), 6);
  EXPECT_EQ(of("fsdp_step_duration_seconds_count"), 5);
  EXPECT_GT(of("fsdp_step_duration_seconds_sum"), 0);
  EXPECT_EQ(of("fsdp_checkpoint_step"), 4);
  EXPECT_EQ(of("fsdp_checkpoint_save_duration_seconds_count"), 2);
  EXPECT_EQ(of("fsdp_checkpoint_failures_total"), 0);
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_NEAR(of("fsdp_checkpoint_timestamp_seconds"), now, 60);
  EXPECT_NEAR(of("fsdp_last_step_timestamp_seconds"), now, 60);
  EXPECT_GT(of("fsdp_pause_seconds_total", ",purpose=\"save\""), 0);
  EXPECT_GT(of("fsdp_resident_memory_bytes"), 1 << 20);
  EXPECT_GE(of("fsdp_resident_memory_peak_bytes"), of("fsdp_resident_memory_bytes"));
  EXPECT_GE(of("fsdp_data_wait_seconds_total"), 0);
  EXPECT_EQ(of("fsdp_ranks"), 2);
  EXPECT_EQ(of("fsdp_replicas"), 1);
  EXPECT_EQ(of("fsdp_restarts_total"), 0);
  EXPECT_EQ(of("fsdp_running"), 1);
  EXPECT_THAT(pages[1], HasSubstr("fsdp_run_info" + run + ",version=\""));
  EXPECT_THAT(pages[1], Not(HasSubstr(",rank=\"")));
  EXPECT_EQ(summary.step, 6);
}

TEST_F(RunExporterTest, EachRankServesItsOwnNumbersAtAPortOfItsOwn) {
  config_.logging.metrics_ranks = config::MetricsRanks::kAll;
  std::vector<std::string> pages;
  train_with(3, [&](int64_t step) {
    if (step != 3) return;
    for (int rank = 0; rank < 3; ++rank) pages.push_back(http_answer(port(rank), "/metrics"));
  });
  ASSERT_EQ(pages.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string& page = pages[static_cast<size_t>(rank)];
    const std::string labels = concat("{run=\"a \\\"b\\\"\",rank=\"", rank, "\"");
    EXPECT_EQ(value(page, "fsdp_step" + labels), 2) << page;
    EXPECT_GT(value(page, "fsdp_resident_memory_bytes" + labels), 0);
    EXPECT_GT(value(page, "fsdp_step_duration_seconds_sum" + labels), 0);
    // A sum over ranks must not count the run several times.
    EXPECT_EQ(page.find("fsdp_tokens_total") != std::string::npos, rank == 0);
    EXPECT_EQ(page.find("fsdp_run_info") != std::string::npos, rank == 0);
  }
  EXPECT_THROW(testing::HttpConnection{port(1)}, std::runtime_error);
}

TEST_F(RunExporterTest, OnlyTheFirstRankListensOtherwise) {
  train_with(2, [&](int64_t) { EXPECT_THROW(testing::HttpConnection{port(1)}, std::runtime_error); });
}

TEST_F(RunExporterTest, APortInUseIsAnErrorOfAllRanksBeforeAnythingIsWritten) {
  const openmetrics::HttpServer other("127.0.0.1", port(), "/", [](auto) { return openmetrics::HttpPage{}; });
  EXPECT_EQ(
      failure(2, config_,
              concat("logging.metrics_port must be a free port at logging.metrics_host, but this process "
                     "cannot listen at 127.0.0.1 port ",
                     port(), ": another program listens there; choose others, or 0 to serve no metrics")),
      ErrorKind::kUsage);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/metrics.jsonl"));
  config_.logging.metrics_port = port() - 1;
  config_.logging.metrics_ranks = config::MetricsRanks::kAll;
  EXPECT_EQ(failure(2, config_, "+ 1 (logging.metrics_ranks = \"all\") must be a free port"),
            ErrorKind::kUsage);
  config_.logging.metrics_port = 65535;
  EXPECT_EQ(failure(2, config_, "must be at most 65535, but is 65536; lower it"), ErrorKind::kUsage);
  config_.logging.metrics_host = "no such host";
  config_.logging.metrics_port = port();
  EXPECT_EQ(failure(1, config_, "cannot listen at no such host port"), ErrorKind::kUsage);
}

TEST_F(RunExporterTest, AnotherRunOfTheProcessTakesThePortAgain) {
  int answers = 0;
  for (int i = 0; i < 2; ++i) {
    config_.training.steps += 2;
    train_with(1, [&](int64_t) { answers += http_answer(port(), "/metrics").starts_with("HTTP/1.1 200 "); });
  }
  EXPECT_GE(answers, 8 + 2);
}

TEST_F(RunExporterTest, TextFileHasTheEndOfTheRun) {
  config_.logging.metrics_port = 0;
  config_.logging.metrics_textfile = folder_ / "run.prom";
  config_.checkpoint.save_at_end = true;
  train_with(2, [&](int64_t step) {
    const std::string text = util::read_file(folder_ / "run.prom");
    EXPECT_THAT(text, HasSubstr("\nfsdp_running{run=\"a \\\"b\\\"\"} 1\n")) << step;
  });
  const std::string text = util::read_file(folder_ / "run.prom");
  EXPECT_THAT(text, StartsWith("# HELP "));
  EXPECT_THAT(text, Not(HasSubstr("# EOF")));
  EXPECT_EQ(value(text, "fsdp_step{"), 6);
  EXPECT_EQ(value(text, "fsdp_running{"), 0);
  EXPECT_EQ(value(text, "fsdp_checkpoint_step{"), 6);
  config_.logging.metrics_textfile = folder_ / "missing/run.prom";
  config_.run.output_dir = folder_ / "other";
  EXPECT_EQ(failure(2, config_, "cannot create"), ErrorKind::kIo);
}

TEST_F(RunExporterTest, FailedSavesAreCounted) {
  config_.logging.metrics_port = 0;
  config_.logging.metrics_textfile = folder_ / "run.prom";
  config_.checkpoint.interval_steps = 2;
  config_.checkpoint.save_at_end = true;
  std::optional<testing::BlockedFolder> blocked;
  const RunSummary summary = train_with(1, [&](int64_t step) {
    if (step == 2) blocked.emplace(folder_ / "out");
    if (step == 3) blocked.reset();
  });
  EXPECT_EQ(summary.step, 6);
  const std::string text = util::read_file(folder_ / "run.prom");
  EXPECT_EQ(value(text, "fsdp_checkpoint_failures_total{"), 1) << text;
  EXPECT_EQ(value(text, "fsdp_checkpoint_save_duration_seconds_count{"), 2);
}

/// Figures of which every family has a sample.
RunFigures all_figures() {
  StepMetrics line{.step = 3, .loss = 2.5};
  line.loss_scale = line.mfu = line.hfu = line.eta_seconds = 1;
  line.skipped_steps = 1;
  line.slowest = line.slow = RankFactor{1, "node-b", 2.0};
  line.of_objective = {{"rewards/margins", 0.5}};
  SharedFigures shared{.info = {{"version", "1"}}, .line = line};
  shared.validation = {{"step", 2}, {"validation_loss", 3.0}, {"validation_accuracy", 0.5}};
  shared.checkpoint_step = 2;
  shared.saves = {.saved = 1, .seconds = 1};
  return {.labels = {{"run", "r"}},
          .last_step_at = 1.0,
          .communication_wait_seconds = 1.0,
          .gpu = util::CudaMemory{},
          .shared = shared};
}

std::set<std::string> names_in(const std::string& text, const char* pattern) {
  const std::regex expression(pattern);
  std::set<std::string> names;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

std::set<std::string> exported_names() {
  for (const openmetrics::Family& family : families_of(all_figures())) {
    EXPECT_FALSE(family.samples.empty()) << family.name;
    EXPECT_TRUE(family.unit.empty() || family.name.ends_with("_" + family.unit)) << family.name;
    EXPECT_TRUE(family.help.ends_with(".")) << family.help;
  }
  const std::string text = text_of(families_of(all_figures()), openmetrics::TextFormat::kPrometheus);
  return names_in(text, "\n(fsdp_[a-z_]+)\\{");
}

/// Adds the strings of this key at any depth.
void collect(const nlohmann::json& value, const std::string& key, std::string& strings) {
  if (value.is_object() && value.contains(key)) strings += value.at(key).get<std::string>() + "\n";
  if (!value.is_structured()) return;
  for (const auto& each : value) collect(each, key, strings);
}

TEST(RunFigures, EveryNumberOfTheDashboardIsExported) {
  const std::string file =
      util::read_file(testing::source_folder() + "/scripts/recipes/grafana_dashboard.json");
  std::string queries;
  collect(nlohmann::json::parse(file), "expr", queries);
  const std::set<std::string> exported = exported_names(), shown = names_in(queries, "(fsdp_[a-z_]+)");
  EXPECT_GT(shown.size(), 30u);
  for (const std::string& name : shown) EXPECT_TRUE(exported.contains(name)) << name;
}

TEST(RunFigures, DocumentationListsEveryNumber) {
  const std::string page = util::read_file(testing::source_folder() + "/docs/monitoring.md");
  const std::set<std::string> listed = names_in(page, "\n\\| `(fsdp_[a-z_]+)");
  EXPECT_EQ(listed, exported_names());
}

TEST(RunFigures, NamesOfRanksAndMetricsAreLabels) {
  const std::string text = text_of(families_of(all_figures()), openmetrics::TextFormat::kOpenMetrics);
  for (const char* sample : {"fsdp_slow_rank_ratio{run=\"r\",slow_rank=\"1\",slow_host=\"node-b\"} 2\n",
                             "fsdp_objective_metric{run=\"r\",metric=\"rewards/margins\"} 0.5\n",
                             "fsdp_validation_metric{run=\"r\",metric=\"accuracy\"} 0.5\n",
                             "fsdp_skipped_steps_total{run=\"r\"} 1\n", "# UNIT fsdp_pause_seconds seconds\n",
                             "# TYPE fsdp_run info\nfsdp_run_info{run=\"r\",version=\"1\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(sample));
  }
}

TEST(RunFigures, WhatIsUnknownIsLeftOut) {
  RunFigures figures = all_figures();
  figures.gpu.reset();
  figures.communication_wait_seconds.reset();
  figures.last_step_at.reset();
  figures.shared->line.reset();
  figures.shared->validation = nullptr;
  figures.shared->saves = {};
  const std::string text = text_of(families_of(figures), openmetrics::TextFormat::kPrometheus);
  for (const char* name : {"fsdp_gpu", "fsdp_communication", "fsdp_last_step", "fsdp_loss", "fsdp_mfu",
                           "fsdp_slow", "fsdp_validation", "fsdp_objective", "fsdp_checkpoint_timestamp"}) {
    EXPECT_THAT(text, Not(HasSubstr(name)));
  }
}

}  // namespace
}  // namespace fsdp::train
