#include "comm/trace_event.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

namespace fsdp::comm {
namespace {

using nlohmann::json;

TraceEvent compute_event(const std::string& unit, const std::string& pass, double begin_us,
                         std::optional<double> end_us) {
  return {.step = 2,
          .op = "compute",
          .unit = unit,
          .pass_or_event = pass,
          .issue_us = begin_us,
          .start_us = begin_us,
          .done_us = end_us};
}

TraceEvent gather_event(const std::string& unit, double begin_us, double end_us,
                        std::optional<double> wait_us = std::nullopt) {
  return {.step = 2,
          .op = "all_gather",
          .unit = unit,
          .pass_or_event = "forward",
          .bytes = 64,
          .issue_us = begin_us - 1,
          .start_us = begin_us,
          .wait_us = wait_us,
          .done_us = end_us};
}

TraceEvent buffer_event(bool allocated, int64_t bytes, double at_us) {
  return {.step = 2,
          .op = "buffer",
          .unit = "a",
          .pass_or_event = allocated ? "allocate" : "free",
          .bytes = bytes,
          .issue_us = at_us,
          .buffer_kind = "parameters"};
}

TEST(TraceEvent, HasLinesOfThisForm) {
  EXPECT_EQ(trace_line(gather_event("a", 20.5, 30, 25)),
            R"({"step":2,"op":"all_gather","unit":"a","pass":"forward","bytes":64,"issue_us":19.5,)"
            R"("start_us":20.5,"wait_us":25.0,"done_us":30.0})");
  EXPECT_EQ(trace_line(buffer_event(true, 8, 19.25)),
            R"({"step":2,"op":"buffer","event":"allocate","unit":"a","bytes":8,"kind":"parameters",)"
            R"("at_us":19.25})");
  EXPECT_EQ(
      trace_line(compute_event("a", "backward", 1, std::nullopt)),
      R"({"step":2,"op":"compute","unit":"a","pass":"backward","bytes":0,"issue_us":1.0,"start_us":1.0})");
}

TEST(TraceEvent, ComesBackFromItsLine) {
  for (const TraceEvent& event :
       {gather_event("a", 20.5, 30, 25), gather_event("b", 1, 2), buffer_event(false, 8, 19.25),
        compute_event("a", "recompute", 1, 4), compute_event("a", "backward", 1, std::nullopt)}) {
    const auto read = parse_trace_line(trace_line(event));
    ASSERT_TRUE(read);
    EXPECT_EQ(trace_line(*read), trace_line(event));
  }
}

TEST(TraceEvent, IsNotReadFromOtherLines) {
  for (const char* line :
       {"", "[1]", "{\"step\":1", R"({"step":1})", R"({"step":1,"op":"all_gather"})",
        R"({"step":"1","op":"all_gather","issue_us":1})", R"({"step":1e300,"op":"all_gather","issue_us":1})",
        R"({"step":1,"op":"buffer","issue_us":1})", R"({"step":1,"op":"all_gather","issue_us":1e999})",
        R"({"step":1,"op":"all_gather","issue_us":5,"done_us":4})"}) {
    EXPECT_FALSE(parse_trace_line(line)) << line;
  }
}

TEST(ChromeTrace, HasTracksForComputeCommunicationAndWaits) {
  const json events = json::parse(
      chrome_trace({gather_event("root", 110, 130, 120), compute_event("root", "forward", 130, 200),
                    compute_event("a", "forward", 140, 150), gather_event("late", 120, 160)},
                   /*rank=*/3, /*begin_us=*/100));
  std::map<int, std::string> tracks;
  std::multimap<std::string, json> slices;
  for (const json& event : events) {
    EXPECT_EQ(event["pid"], 3);
    if (event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], "rank 3");
    }
    if (event["name"] == "thread_name") tracks[event["tid"]] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    EXPECT_EQ(event["cat"], tracks.at(event["tid"])) << "named before it is used";
    slices.emplace(event["cat"], event);
  }
  EXPECT_EQ(slices.count("compute"), 2u);
  EXPECT_EQ(slices.count("communication"), 2u);
  ASSERT_EQ(slices.count("waits"), 1u);
  const json& wait = slices.find("waits")->second;
  EXPECT_EQ(wait["name"], "all_gather root");
  EXPECT_EQ(wait["ts"], 20);
  EXPECT_EQ(wait["dur"], 10);
  EXPECT_EQ(tracks.size(), 4u) << "the second gather overlaps the first, as in another group";
}

TEST(ChromeTrace, EndsABackwardWithoutAnEndBeforeTheNextMicroBatch) {
  const json events = json::parse(chrome_trace(
      {compute_event("root", "forward", 0, 10), compute_event("root", "backward", 10, std::nullopt),
       compute_event("a", "backward", 12, 20), compute_event("root", "forward", 30, 40),
       compute_event("root", "backward", 40, std::nullopt), compute_event("a", "backward", 42, 55)},
      0, 0));
  std::vector<double> durations;
  for (const json& event : events) {
    if (event["name"] == "backward root") durations.push_back(event["dur"]);
  }
  EXPECT_EQ(durations, (std::vector<double>{10, 15}));
}

TEST(ChromeTrace, CountsWhatWasThereBeforeTheStepAsLive) {
  const json events = json::parse(chrome_trace(
      {buffer_event(true, 10, 1), buffer_event(false, 10, 2), buffer_event(false, 100, 3)}, 0, 0));
  std::vector<int64_t> live;
  for (const json& event : events) {
    if (event["ph"] == "C") live.push_back(event["args"]["parameters"]);
  }
  EXPECT_EQ(live, (std::vector<int64_t>{110, 100, 0}));
}

TEST(ChromeTrace, OfNothingIsAnArrayToo) { EXPECT_TRUE(json::parse(chrome_trace({}, 0, 0)).is_array()); }

}  // namespace
}  // namespace fsdp::comm
