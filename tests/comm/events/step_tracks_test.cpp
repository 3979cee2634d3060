#include "comm/events/step_tracks.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "support/trace_events.h"

namespace fsdp::comm {
namespace {

using nlohmann::json;
using testing::buffer_event;
using testing::compute_event;
using testing::gather_event;

TEST(ChromeTrace, HasTracksForComputeCommunicationAndWaits) {
  const json events = json::parse(
      chrome_trace(tracks_of({gather_event("root", 110, 130, 120), compute_event("root", "forward", 130, 200),
                              compute_event("a", "forward", 140, 150), gather_event("late", 120, 160)}),
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
      tracks_of({compute_event("root", "forward", 0, 10), compute_event("root", "backward", 10, std::nullopt),
                 compute_event("a", "backward", 12, 20), compute_event("root", "forward", 30, 40),
                 compute_event("root", "backward", 40, std::nullopt),
                 compute_event("a", "backward", 42, 55)}),
      0, 0));
  std::vector<double> durations;
  for (const json& event : events) {
    if (event["name"] == "backward root") durations.push_back(event["dur"]);
  }
  EXPECT_EQ(durations, (std::vector<double>{10, 15}));
}

TEST(ChromeTrace, CountsWhatWasThereBeforeTheStepAsLive) {
  const json events = json::parse(chrome_trace(
      tracks_of({buffer_event(true, 10, 1), buffer_event(false, 10, 2), buffer_event(false, 100, 3)}), 0, 0));
  std::vector<int64_t> live;
  for (const json& event : events) {
    if (event["ph"] == "C") live.push_back(event["args"]["parameters"]);
  }
  EXPECT_EQ(live, (std::vector<int64_t>{110, 100, 0}));
}

TEST(ChromeTrace, OfNothingIsAnArrayToo) {
  EXPECT_TRUE(json::parse(chrome_trace(tracks_of({}), 0, 0)).is_array());
}

}  // namespace
}  // namespace fsdp::comm
