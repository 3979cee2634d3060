#include "comm/events/trace_event.h"

#include <gtest/gtest.h>

#include "support/trace_events.h"

namespace fsdp::comm {
namespace {

using testing::buffer_event;
using testing::compute_event;
using testing::gather_event;

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

}  // namespace
}  // namespace fsdp::comm
