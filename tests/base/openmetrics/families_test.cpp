#include "base/openmetrics/families.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fsdp::openmetrics {
namespace {

std::vector<Family> some_of_each() {
  return {{"fsdp_run", MetricType::kInfo, "", "What the run is.", {{1, {{"run", "a \"b\"\\c\nd"}}}}},
          {"fsdp_loss", MetricType::kGauge, "", "Says \"loss\"\\.", {{2.5}}},
          {"fsdp_wait_seconds",
           MetricType::kCounter,
           "seconds",
           "Waits.",
           {{0.1, {{"run", "r"}, {"rank", "1"}}}}},
          {"fsdp_step_seconds",
           MetricType::kSummary,
           "seconds",
           "Steps.",
           {{3, {}, "_count"}, {1.5, {}, "_sum"}}},
          {"fsdp_absent", MetricType::kGauge, "", "Nothing.", {}}};
}

TEST(MetricFamilies, AreTextOfOpenMetrics) {
  EXPECT_EQ(text_of(some_of_each(), TextFormat::kOpenMetrics),
            "# HELP fsdp_run What the run is.\n"
            "# TYPE fsdp_run info\n"
            "fsdp_run_info{run=\"a \\\"b\\\"\\\\c\\nd\"} 1\n"
            "# HELP fsdp_loss Says \\\"loss\\\"\\\\.\n"
            "# TYPE fsdp_loss gauge\n"
            "fsdp_loss 2.5\n"
            "# HELP fsdp_wait_seconds Waits.\n"
            "# TYPE fsdp_wait_seconds counter\n"
            "# UNIT fsdp_wait_seconds seconds\n"
            "fsdp_wait_seconds_total{run=\"r\",rank=\"1\"} 0.1\n"
            "# HELP fsdp_step_seconds Steps.\n"
            "# TYPE fsdp_step_seconds summary\n"
            "# UNIT fsdp_step_seconds seconds\n"
            "fsdp_step_seconds_count 3\n"
            "fsdp_step_seconds_sum 1.5\n"
            "# EOF\n");
}

TEST(MetricFamilies, AreTextOfPrometheus) {
  EXPECT_EQ(text_of(some_of_each(), TextFormat::kPrometheus),
            "# HELP fsdp_run_info What the run is.\n"
            "# TYPE fsdp_run_info gauge\n"
            "fsdp_run_info{run=\"a \\\"b\\\"\\\\c\\nd\"} 1\n"
            "# HELP fsdp_loss Says \"loss\"\\\\.\n"
            "# TYPE fsdp_loss gauge\n"
            "fsdp_loss 2.5\n"
            "# HELP fsdp_wait_seconds_total Waits.\n"
            "# TYPE fsdp_wait_seconds_total counter\n"
            "fsdp_wait_seconds_total{run=\"r\",rank=\"1\"} 0.1\n"
            "# HELP fsdp_step_seconds Steps.\n"
            "# TYPE fsdp_step_seconds summary\n"
            "fsdp_step_seconds_count 3\n"
            "fsdp_step_seconds_sum 1.5\n");
}

TEST(MetricFamilies, WriteNumbersThatReadBackAsTheSame) {
  const auto written = [](double value) {
    const std::string text =
        text_of({{"x", MetricType::kGauge, "", "X.", {{value}}}}, TextFormat::kPrometheus);
    return text.substr(text.rfind(' ') + 1);
  };
  EXPECT_EQ(written(0.1), "0.1\n");
  EXPECT_EQ(std::stod(written(1.0 / 3)), 1.0 / 3);
  EXPECT_EQ(std::stod(written(123456789012345678.0)), 123456789012345678.0);
  EXPECT_EQ(written(std::nan("")), "NaN\n");
  EXPECT_EQ(written(-std::nan("")), "NaN\n");
  EXPECT_EQ(written(std::numeric_limits<double>::infinity()), "+Inf\n");
  EXPECT_EQ(written(-std::numeric_limits<double>::infinity()), "-Inf\n");
}

TEST(MetricFamilies, LabelsOfAnyBytesStayOneLineOfUtf8) {
  const std::string text =
      text_of({{"x", MetricType::kGauge, "", "X.", {{1, {{"run", "\xff\x01\r\xc3\xa9}"}}}}}},
              TextFormat::kOpenMetrics);
  EXPECT_NE(text.find("x{run=\"\\\\xff\\\\x01\\\\x0d\xc3\xa9}\"} 1\n"), std::string::npos) << text;
}

TEST(MetricFamilies, FormatIsThatWhichTheReaderPrefers) {
  const auto is_open = [](std::string_view accept) { return format_for(accept) == TextFormat::kOpenMetrics; };
  // Of Prometheus 2.42, 2.55 and 3.5.
  EXPECT_TRUE(
      is_open("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
              "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"));
  EXPECT_TRUE(
      is_open("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;"
              "version=0.0.4;q=0.5,*/*;q=0.1"));
  EXPECT_TRUE(is_open(" application/openmetrics-text ; q=0.3 "));
  EXPECT_FALSE(is_open(""));
  EXPECT_FALSE(is_open("*/*"));
  EXPECT_FALSE(is_open("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"));
  EXPECT_FALSE(is_open("application/openmetrics-text;q=0.2,text/plain;q=0.7"));
  EXPECT_FALSE(is_open("application/openmetrics-text;version=2.0.0"));
  for (const char* nonsense : {"application/openmetrics-text;q=0", "application/openmetrics-text;q=nan",
                               "application/openmetrics-text;q=-1", "application/openmetrics-text;q=x",
                               ";;;,,,;=", "q=1", "application/openmetrics-textual"}) {
    EXPECT_FALSE(is_open(nonsense)) << nonsense;
  }
}

}  // namespace
}  // namespace fsdp::openmetrics
