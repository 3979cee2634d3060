#include "tools/report/step_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/trace_events.h"

namespace fsdp::report {
namespace {

using testing::buffer_event;
using testing::compute_event;
using testing::gather_event;
using ::testing::HasSubstr;
using ::testing::Not;

int times_in(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// A root that gathers and computes around the unit "a", which it waits for.
comm::StepTracks small_step() {
  return comm::tracks_of(
      {gather_event("root", 0, 100'000), compute_event("root", "forward", 100'000, 400'000),
       buffer_event(true, 4096, 105'000), gather_event("a", 110'000, 200'000, 150'000),
       compute_event("a", "forward", 200'000, 300'000), buffer_event(false, 4096, 310'000)});
}

TEST(StepPicture, HasTracksACurveUnitsATimeAxisAndALegend) {
  const std::string svg = step_picture(small_step(), {.title = "Step 2", .stands_alone = true});
  for (const char* text :
       {">compute<", ">communication<", ">waits<", ">live parameters<", ">4.0 KiB<", ">a<", ">root<",
        ">forward<", ">all-gather<", ">waiting<", ">0 ms<", ">400 ms<", ">Step 2<"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_THAT(svg, HasSubstr("forward of a in 100 ms"));
  EXPECT_THAT(svg, HasSubstr("all_gather of a, forward: 64 B in 50 ms</title>"));  // the wait for it
  EXPECT_EQ(times_in(svg, "class=\"forward outer\""), 1) << "the root lies around the unit";
  EXPECT_EQ(times_in(svg, "<rect class=\"gather\""), 1 + 2 + 2)
      << "in the legend, on the track and of the units";
  EXPECT_THAT(svg, Not(HasSubstr(">backward<")));
}

TEST(StepPicture, LeavesOutWhatTheStepDoesNotHave) {
  const std::string svg = step_picture(comm::tracks_of({gather_event("root", 0, 100)}), {.title = "Step 2"});
  for (const char* text : {">compute<", ">waits<", ">live parameters<", "<style>", "xmlns"}) {
    EXPECT_THAT(svg, Not(HasSubstr(text)));
  }
  EXPECT_EQ(step_picture({}, {.title = "none"}), "");
}

TEST(StepPicture, ShowsMoreThanItsBarsWhereTheStepIsLonger) {
  const std::string svg = step_picture(comm::tracks_of({gather_event("root", 1000, 2000)}),
                                       {.title = "Step 2", .begin_us = 0, .end_us = 10'000});
  EXPECT_THAT(svg, HasSubstr(">10 ms<"));
}

TEST(StepPicture, ShowsNoNameAsMarkup) {
  const std::string svg =
      step_picture(comm::tracks_of({gather_event("<script>", 0, 100'000)}), {.title = "<script>"});
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
}

TEST(StepPicture, SeparatesCollectivesThatOverlap) {
  const std::string apart =
      step_picture(comm::tracks_of({gather_event("a", 0, 50), gather_event("b", 50, 100)}), {.title = "t"});
  const std::string together =
      step_picture(comm::tracks_of({gather_event("a", 0, 80), gather_event("b", 50, 100)}), {.title = "t"});
  EXPECT_LT(std::stod(apart.substr(apart.find("0 0 1160") + 8)),
            std::stod(together.substr(together.find("0 0 1160") + 8)));
}

}  // namespace
}  // namespace fsdp::report
