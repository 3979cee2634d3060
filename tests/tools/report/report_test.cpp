#include "tools/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/util/error.h"
#include "base/util/file.h"
#include "setup/config/print.h"
#include "support/temporary_folder.h"
#include "tools/report/chart.h"
#include "tools/report/run_record.h"

namespace fsdp::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryFolder;

void write(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

const std::string kMetrics =
    R"({"step":1,"loss":5.5,"grad_norm":2.0,"lr":0.001,"tokens":100,"tokens_per_second":50.0,"peak_memory_bytes":1048576}
{"step":2,"loss":4.5,"grad_norm":1.0,"lr":0.001,"tokens":200,"tokens_per_second":70.0,"peak_memory_bytes":2097152}
{"step":2,"validation_loss":4.75,"validation_perplexity":115.6}
)";

std::string gather(int step, const std::string& unit, double begin) {
  return concat(R"({"step":)", step, R"(,"op":"all_gather","unit":")", unit,
                R"(","pass":"forward","bytes":4096,"issue_us":)", begin, R"(,"start_us":)", begin + 1,
                R"(,"wait_us":)", begin + 5, R"(,"done_us":)", begin + 10, "}\n");
}

TEST(Report, DrawsTheCurvesOfARunInOnePageOfItsOwn) {
  TemporaryFolder folder;
  write(folder / "metrics.jsonl", kMetrics);
  write(folder / "config.toml", "[run]\nname = \"a<b>\"\n");
  write(folder / "environment.json", R"({"libtorch":"2.11.0","ranks":2})");
  const auto path = write_report({folder.path()});
  EXPECT_EQ(path, folder / "report.html");
  const std::string page = util::read_file(path);
  EXPECT_EQ(count(page, "<svg viewBox"), 5);  // loss, norm, rate, speed, memory
  EXPECT_EQ(count(page, "d=\"M64"), 5);
  EXPECT_EQ(count(page, "class=\"dot c1\""), 1);  // validation
  EXPECT_THAT(page, HasSubstr("name = &quot;a&lt;b&gt;&quot;"));
  EXPECT_THAT(page, HasSubstr("<td>ranks</td><td>2</td>"));
  EXPECT_THAT(page, HasSubstr("2.0 MiB"));
  for (const char* outside : {"http:", "https:", "<script", "url(", "@import", "src="}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
}

TEST(Report, HasTheUtilisationWithRecomputationBesideThatOfTheModel) {
  TemporaryFolder folder;
  const auto page_of = [&](const std::string& hfu) {
    write(folder / "metrics.jsonl", "{\"step\":1,\"loss\":5,\"mfu\":0.25,\"hfu\":" + hfu +
                                        "}\n{\"step\":2,\"loss\":4,\"mfu\":0.25,\"hfu\":" + hfu + "}\n");
    return html_page({read_run(folder.path())});
  };
  EXPECT_THAT(page_of("0.3125"), HasSubstr("<b>25.0%</b><span>model FLOPs utilisation, mean, 31.2% with "
                                           "recomputation</span>"));
  EXPECT_THAT(page_of("0.25"), HasSubstr("<b>25.0%</b><span>model FLOPs utilisation, mean</span>"));
}

TEST(Report, NamesSlowRanksWithTheirHosts) {
  TemporaryFolder folder;
  const auto line = [](int step, const std::string& more) {
    return concat("{\"step\":", step, ",\"loss\":5,\"slowest_rank\":3,\"slowest_rank_factor\":2.5", more,
                  "}\n");
  };
  const std::string named = ",\"slow_rank\":3,\"slow_rank_factor\":2.5,\"slow_rank_host\":\"node<b>\"";
  write(folder / "metrics.jsonl", line(1, ""));
  EXPECT_THAT(html_page({read_run(folder.path())}), Not(HasSubstr("slow ranks")));
  write(folder / "metrics.jsonl", line(1, "") + line(2, named) + line(3, named) + line(4, ""));
  const std::string page = html_page({read_run(folder.path())});
  EXPECT_THAT(page, HasSubstr("<b>1</b><span>slow ranks: rank 3 on node&lt;b&gt;, steps 2 to 3</span>"));
  EXPECT_THAT(page, HasSubstr("Time of the slowest rank, relative to the others"));
}

TEST(Report, ShowsTheScheduleOfTheRunsConfig) {
  TemporaryFolder folder;
  write(folder / "metrics.jsonl", kMetrics);
  config::Config config;
  config.data.train = {"none.bin"};
  config.fsdp.backward_prefetch = "post";
  write(folder / "config.toml", config::to_toml(config));
  write(folder / "environment.json", R"({"ranks":2})");
  EXPECT_THAT(util::read_file(write_report({folder.path()})),
              HasSubstr("reduce model.layers.3.mlp, gather model.layers.2"));
  write(folder / "config.toml", "[fsdp]\nof_another_version = 1\n");
  EXPECT_THAT(util::read_file(write_report({folder.path()})), Not(HasSubstr("Schedule of a micro-batch")));
}

TEST(Report, CountsTheLinesThatAreNone) {
  TemporaryFolder folder;
  write(folder / "metrics.jsonl",
        kMetrics + "\xff\xfe\n[1]\n{\"loss\":1}\n{\"step\":\"x\"}\n{\"step\":3,\"lo");
  const RunRecord run = read_run(folder.path());
  EXPECT_EQ(run.skipped_lines, 5);
  EXPECT_EQ(run.values("loss").size(), 2u);
  EXPECT_THAT(html_page({run}), HasSubstr("5 lines of metrics.jsonl could not be read"));
}

TEST(Report, LeavesOutNumbersThatAreNone) {
  TemporaryFolder folder;
  write(folder / "metrics.jsonl",
        "{\"step\":1,\"loss\":null,\"lr\":1e-3}\n{\"step\":2,\"loss\":1e999}\n{\"step\":9223372036854775807,"
        "\"loss\":"
        "1e308,\"lr\":-1e308}\n{\"step\":4,\"loss\":-1e308,\"lr\":1e308}\n");
  const RunRecord run = read_run(folder.path());
  EXPECT_EQ(run.values("loss").size(), 2u);
  const std::string page = html_page({run});
  for (const char* wrong : {"\"nan", "\"inf", " nan", " inf", "-nan"})
    EXPECT_THAT(page, Not(HasSubstr(wrong)));
}

TEST(Report, ShowsNoTextOfAFileAsMarkup) {
  TemporaryFolder folder;
  const std::string evil = "<script>alert('x')</script>";
  write(folder / "metrics.jsonl", "{\"step\":1,\"loss\":1,\"" + evil + "\":2}\n");
  write(folder / "config.toml", evil + "\x1b[2J\xff");
  write(folder / "environment.json", "{\"" + evil + "\":\"" + evil + "\"}");
  write(folder / "trace.rank0.jsonl", gather(1, evil, 0));
  const std::string page = html_page({read_run(folder.path())});
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, HasSubstr("\\x1b[2J\\xff"));
}

TEST(Report, LeavesOutAnEnvironmentThatNestsDeeply) {
  TemporaryFolder folder;
  write(folder / "metrics.jsonl", kMetrics);
  write(folder / "config.toml", "[run]\nname = \"a\"\n");
  write(folder / "environment.json",
        "{\"ranks\":" + std::string(400000, '[') + std::string(400000, ']') + "}");
  EXPECT_THAT(util::read_file(write_report({folder.path()})), Not(HasSubstr("<td>ranks</td>")));
}

TEST(Report, TellsOfARunThatHasLoggedNothing) {
  TemporaryFolder folder;
  write(folder / "metrics.jsonl", "");
  EXPECT_THAT(html_page({read_run(folder.path())}), HasSubstr("No step has been logged yet."));
}

TEST(Report, RefusesAFolderWithoutARun) {
  TemporaryFolder folder;
  try {
    read_run(folder.path());
    FAIL() << "accepted";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("there is no metrics.jsonl in "));
  }
}

TEST(Report, SaysWhenTheFolderCannotBeLookedAt) {
  TemporaryFolder folder;
  std::filesystem::create_symlink("loop", folder / "loop");
  try {
    read_run(folder / "loop");
    FAIL() << "accepted";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_THAT(error.what(), HasSubstr("cannot examine "));
  }
}

TEST(Report, DrawsTheLastStepOfTheTraceThatIsSurelyWhole) {
  TemporaryFolder folder;
  write(folder / "metrics.jsonl", kMetrics);
  write(folder / "trace.rank1.jsonl", gather(9, "other.rank", 0));
  write(
      folder / "trace.rank0.jsonl",
      gather(1, "first", 0) +
          R"({"step":2,"op":"buffer","event":"allocate","unit":"second","bytes":8,"kind":"parameters","at_us":20})"
          "\n" +
          gather(2, "second", 20) +
          R"({"step":2,"op":"buffer","event":"free","unit":"second","bytes":8,"kind":"parameters","at_us":90})"
          "\n{\"step\":2,\"op\":\"all_gather\"}\n" +
          gather(3, "third", 100) + "{\"step\":3,\"op\"");
  const RunRecord run = read_run(folder.path());
  ASSERT_TRUE(run.trace);
  EXPECT_EQ(run.trace->step, 2);
  EXPECT_EQ(run.skipped_trace_lines, 2);
  ASSERT_EQ(run.trace->events.size(), 3u);
  EXPECT_EQ(run.trace->events[0].issue_us, 20);
  EXPECT_EQ(run.trace->events[1].begin_us(), 21);
  EXPECT_EQ(run.trace->events[1].wait_us, 25);
  EXPECT_EQ(run.trace->events[2].issue_us, 90);
  const std::string page = html_page({run});
  EXPECT_EQ(count(page, "<rect class=\"held\""), 2);  // in the legend, and of the unit
  EXPECT_THAT(page, HasSubstr("Step 2 on one process"));
  EXPECT_THAT(page, HasSubstr("all_gather of second, forward: 4.0 KiB in 0.009 ms"));
  EXPECT_THAT(page, HasSubstr("2 lines of it could not be read"));
}

/// A run's folder in `parent`.
std::filesystem::path make_run(const TemporaryFolder& parent, const std::string& name, double lr) {
  const std::filesystem::path folder = parent / name;
  std::filesystem::create_directory(folder);
  write(folder / "metrics.jsonl", kMetrics);
  config::Config config;
  config.run.output_dir = folder;
  config.data.train = {"none.bin"};
  config.optimizer.lr = lr;
  write(folder / "config.toml", config::to_toml(config));
  return folder;
}

TEST(Comparison, DrawsACurveOfEachRunAndTellsWhatDiffersInTheirConfigs) {
  TemporaryFolder folder;
  const std::string page =
      html_page({read_run(make_run(folder, "slow<1>", 0.001)), read_run(make_run(folder, "fast", 0.003))});
  EXPECT_EQ(count(page, "<h2>"), 7 + 1)
      << "training and validation loss, training loss over tokens, norm, rate, "
         "speed, memory; no seconds were logged; the table of keys";
  for (const char* css : {"<path class=\"curve c0\" d=\"M6", "<path class=\"curve c1\" d=\"M6"}) {
    EXPECT_EQ(count(page, css), 6);  // a single validation is a dot
  }
  EXPECT_THAT(page, HasSubstr("<td>optimizer.lr</td><td>0.001</td><td>0.003</td>"));
  EXPECT_EQ(count(page, "<tr><td>"), 2 + 1) << "the runs, and one key; where they write is no difference";
  EXPECT_THAT(page, HasSubstr("slow&lt;1&gt;"));
  EXPECT_THAT(page, HasSubstr("<td>4.7500, at step 2</td>"));
}

TEST(Comparison, NamesRunsOfTheSameNameByTheirPaths) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  std::filesystem::create_directory(folder / "b");
  const auto first = make_run(folder, "a/run", 0.001), second = make_run(folder, "b/run", 0.001);
  const std::string page = html_page({read_run(first), read_run(second)});
  EXPECT_THAT(page, HasSubstr(second.string() + "</td>"));
  EXPECT_THAT(page, HasSubstr("No config key differs"));
}

TEST(Comparison, GoesOnWithoutAConfigThatCannotBeRead) {
  TemporaryFolder folder;
  const auto first = make_run(folder, "first", 0.001), second = make_run(folder, "second", 0.002);
  write(second / "config.toml", "[fsdp]\nof_another_version = 1\n");
  EXPECT_THAT(html_page({read_run(first), read_run(second)}),
              HasSubstr("The config.toml of second could not be read."));
}

TEST(Comparison, IsWrittenWhereItIsWanted) {
  TemporaryFolder folder;
  const auto first = make_run(folder, "first", 0.001), second = make_run(folder, "second", 0.002);
  EXPECT_EQ(write_report({first, second}, folder / "both.html"), folder / "both.html");
  EXPECT_THAT(util::read_file(folder / "both.html"), HasSubstr("<title>2 runs</title>"));
  EXPECT_FALSE(std::filesystem::exists(first / "report.html"));
}

TEST(Comparison, RefusesMoreRunsThanCanBeToldApart) {
  TemporaryFolder folder;
  const std::vector<std::filesystem::path> runs(kMostCurves + 1, make_run(folder, "run", 0.001));
  try {
    write_report(runs, folder / "all.html");
    FAIL() << "accepted";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("at most 8 runs can be compared"));
  }
}

TEST(LineChart, KeepsTheExtremesOfVeryManyPoints) {
  std::vector<CurvePoint> points;
  for (int i = 0; i < 100'000; ++i) points.push_back({double(i), i == 54'321 ? 100.0 : 1.0});
  const std::string chart = line_chart({{"loss", points}}, {.label = "loss"});
  EXPECT_LT(chart.size(), 40'000u);
  EXPECT_THAT(chart, HasSubstr(" 12L"));  // the top of the figure: the spike is there
}

TEST(LineChart, DrawsASinglePointAndValuesThatAreAllAlike) {
  const std::vector<CurvePoint> one = {{7, 0}}, same = {{1, 3}, {2, 3}, {3, 3}}, none;
  EXPECT_THAT(line_chart({{"loss", one}}, {.label = "loss"}), HasSubstr("<circle"));
  EXPECT_THAT(line_chart({{"loss", same}}, {.label = "loss"}), HasSubstr("<path"));
  EXPECT_EQ(line_chart({{"loss", none}}, {.label = "loss"}), "");
}

TEST(RunRecordOf, AFolderFromOthersCannotStopTheReader) {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl",
               "{\"step\": 1, \"loss\": 2}\n" + std::string(100'000, '[') + "\n{\"step\":2,\"loss\":1}\n");
  folder.write("environment.json",
               "{\"deep\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}");
  ASSERT_EQ(::mkfifo((folder / "config.toml").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo((folder / "trace.rank0.jsonl").c_str(), 0600), 0);
  const auto read = [&] { return read_run(folder.path()); };
  const RunRecord run = read();
  EXPECT_EQ(run.values("loss").size(), 2U);
  EXPECT_EQ(run.skipped_lines, 1);
  EXPECT_TRUE(run.environment.empty());
  EXPECT_EQ(run.config, "");
  std::filesystem::remove(folder / "metrics.jsonl");
  ASSERT_EQ(::mkfifo((folder / "metrics.jsonl").c_str(), 0600), 0);
  EXPECT_THROW(read(), util::Error);
}

}  // namespace
}  // namespace fsdp::report
