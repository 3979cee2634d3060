#include "tools/launch/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/util/log.h"
#include "base/util/text.h"
#include "support/temporary_folder.h"
#include "tools/launch/coordinator.h"
#include "tools/launch/run_folder.h"

namespace fsdp::launch {
namespace {

WorkerEnd example() {
  return {.rank = 1,
          .pid = 7,
          .status = {.exit_code = 6},
          .host = "host1",
          .last_lines = {"one", "two"},
          .message = "all_gather failed",
          .standing = {.doing = "in all_gather of a, step 3, for 5.0 s",
                       .collective = "all_gather of a",
                       .last_collective = "barrier of start",
                       .step = 3,
                       .collectives = 12,
                       .seconds = 5},
          .log_path = "/logs/1"};
}

/// What a terminal can show on `lines` lines.
void expect_shown(const std::string& text, size_t most_bytes, bool on_one_line = true) {
  EXPECT_LE(text.size(), most_bytes);
  EXPECT_EQ(text, util::printable(text));
  EXPECT_TRUE(!on_one_line || text.find('\n') == std::string::npos) << text;
}

void expect_harmless(const WorkerEnd& end) {
  expect_shown(end.host, 1200);
  expect_shown(end.standing.doing, 1700);
  expect_shown(end.standing.collective, 900);
  expect_shown(end.standing.last_collective, 900);
  expect_shown(end.message, 4 * 4096, false);
  expect_shown(end.log_path, 4 * 4096, false);
  EXPECT_LE(end.last_lines.size(), 8u);
  for (const std::string& line : end.last_lines) expect_shown(line, 2100);
  EXPECT_GE(end.standing.step, 0);
  EXPECT_GE(end.standing.collectives, -1);
  EXPECT_GE(end.standing.seconds, 0);
}

TEST(Message, CarriesWhereAWorkerStood) {
  const WorkerEnd sent = example();
  const WorkerEnd end =
      end_from(*parse_message(line_of({{"type", "ended"}, {"end", to_message(sent)}}))->find("end"));
  EXPECT_EQ(end.standing.doing, sent.standing.doing);
  EXPECT_EQ(end.standing.collective, sent.standing.collective);
  EXPECT_EQ(end.standing.last_collective, sent.standing.last_collective);
  EXPECT_EQ(end.standing.step, 3);
  EXPECT_EQ(end.standing.collectives, 12);
  EXPECT_EQ(end.standing.seconds, 5);
}

TEST(Message, CarriesEpochsReportsAndOrders) {
  const Epoch sent{.number = 3,
                   .replicas = {0, 2},
                   .replica_size = 2,
                   .step = 17,
                   .sources = {0, 3},
                   .behind = {1, 2},
                   .master_addr = "host0",
                   .master_port = 4711};
  const Epoch epoch = epoch_from(*parse_message(line_of(to_message(sent))));
  EXPECT_EQ(epoch.number, 3);
  EXPECT_EQ(epoch.replicas, sent.replicas);
  EXPECT_EQ(epoch.step, 17);
  EXPECT_EQ(epoch.sources, sent.sources);
  EXPECT_EQ(epoch.behind, sent.behind);
  EXPECT_EQ(epoch.master_addr, "host0");
  EXPECT_EQ(epoch.master_port, 4711);
  EXPECT_EQ(epoch.world_size(), 4);
  EXPECT_EQ(epoch.rank_of(5), 3);
  EXPECT_EQ(epoch.rank_of(2), -1);
  const WorkerReport report = report_from(to_message(WorkerReport{.kind = WorkerReport::ReportKind::kStopped,
                                                                  .epoch = 3,
                                                                  .step = 16,
                                                                  .can_finish_step = true,
                                                                  .suspects = {2}}));
  EXPECT_EQ(report.kind, WorkerReport::ReportKind::kStopped);
  EXPECT_EQ(report.epoch, 3);
  EXPECT_EQ(report.step, 16);
  EXPECT_TRUE(report.can_finish_step);
  EXPECT_EQ(report.suspects, std::vector{2});
  EXPECT_EQ(report_from({{"type", "ready"}}).kind, WorkerReport::ReportKind::kReady);
  EXPECT_THROW(report_from({{"type", "stopped"}, {"epoch", 1}}), Message::exception);
  EXPECT_THROW(report_from({{"type", "other"}, {"step", 1}}), Message::exception);
  const WorkerOrder order = order_from(to_message(
      WorkerOrder{.kind = WorkerOrder::OrderKind::kTell, .ranks = {4}, .incarnation = 2, .line = "{}"}));
  EXPECT_EQ(order.kind, WorkerOrder::OrderKind::kTell);
  EXPECT_EQ(order.ranks, std::vector{4});
  EXPECT_EQ(order.incarnation, 2);
  EXPECT_EQ(order.line, "{}");
}

TEST(Message, StandingOfAnotherFormIsAsIfItWereAbsent) {
  for (const char* text : {"7", "[]", "null", R"({"doing": 7, "step": "x", "seconds": []})",
                           R"({"step": -4, "collectives": -9, "seconds": -1.5})", R"({"seconds": 1e999})"}) {
    const Message message = Message::parse(text, nullptr, false);
    const Standing standing = standing_from(message);
    EXPECT_FALSE(standing.is_reported()) << text;
    EXPECT_EQ(standing.step, 0) << text;
    EXPECT_EQ(standing.collectives, -1) << text;
    EXPECT_EQ(standing.seconds, 0) << text;
  }
}

TEST(Message, TextsAreCutBetweenCharactersAndPutOnOneLine) {
  EXPECT_EQ(one_line("a\nb\tc\x1b[31m", 100), "a b c\\x1b[31m");
  EXPECT_EQ(one_line("ab\xc3\xa9", 3), "ab...") << "the character needs two bytes";
  EXPECT_EQ(one_line("ab\xc3\xa9", 4), "ab\xc3\xa9");
  expect_shown(one_line(std::string(100000, '\x80'), 400), 1700);
}

TEST(Message, ActivityFileSaysNothingWhenItIsNotThereOrTorn) {
  testing::TemporaryFolder folder;
  EXPECT_FALSE(read_activity_file(folder / "missing").is_reported());
  for (const char* text : {"", "{", "[]", "{}", R"({"doing": 7})"}) {
    EXPECT_FALSE(read_activity_file(folder.write("torn", text)).is_reported()) << text;
  }
  EXPECT_EQ(read_activity_file(folder.write("good", R"({"doing": "in a", "collective": "a"})")).collective,
            "a");
}

/// A message of the right form in which some value, anywhere, is another one.
class Mutation {
 public:
  explicit Mutation(unsigned seed) : random_(seed) {}

  std::string bytes_of(std::string line) {
    for (int i = pick(4); i >= 0; --i) {
      const auto at = static_cast<size_t>(pick(static_cast<int>(line.size())));
      switch (pick(3)) {
        case 0:
          line[at] = static_cast<char>(pick(256));
          break;
        case 1:
          line.erase(at, static_cast<size_t>(pick(20)));
          break;
        default:
          line.insert(at, line.substr(static_cast<size_t>(pick(static_cast<int>(line.size()))), 30));
      }
      if (line.empty()) line.push_back('x');
    }
    return line;
  }
  void value_in(Message& message) {
    if (message.is_structured() && !message.empty() && pick(4) != 0) {
      auto at = message.begin();
      std::advance(at, pick(static_cast<int>(message.size())));
      return value_in(*at);
    }
    const std::vector<Message> strange{-1,
                                       1e300,
                                       0.5,
                                       std::numeric_limits<int64_t>::min(),
                                       std::numeric_limits<uint64_t>::max(),
                                       nullptr,
                                       true,
                                       std::string(20000, '\x1b'),
                                       "a\nerror: forged\r\x07",
                                       "\xff\xfe",
                                       Message::array(),
                                       Message::object(),
                                       std::vector<int>(3000, 7),
                                       std::vector<std::string>(3000, "line")};
    message = strange[static_cast<size_t>(pick(static_cast<int>(strange.size())))];
  }

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  std::mt19937 random_;
};

TEST(Message, WhateverComesForEndsIsRefusedOrHarmless) {
  const Message whole = {{"type", "round_ended"}, {"ends", to_message(std::vector{example(), example()})}};
  Mutation mutation(1);
  int taken = 0, refused = 0;
  for (int i = 0; i < 2000; ++i) {
    Message changed = whole;
    for (int values = i % 4; values > 0; --values) mutation.value_in(changed);
    std::string line = line_of(changed);
    if (i % 2 == 0) line = mutation.bytes_of(std::move(line));
    try {
      const std::optional<Message> message = parse_message(line);
      if (!message) continue;
      for (const WorkerEnd& end : ends_from(message->at("ends"))) expect_harmless(end);
      ++taken;
    } catch (const Message::exception&) {
      ++refused;
    }
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(refused, 100);
}

TEST(Message, EndsOfAnyKindLeaveTheCoordinatorWithATableThatCanBeShown) {
  util::set_log_sink([](util::LogLevel, std::string_view) {});
  Mutation mutation(2);
  int tables = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto now = Coordinator::Clock::now();
    Coordinator::Settings settings;
    settings.terms.nodes = {2, 2};
    settings.free_port = [] { return 1000; };
    settings.send = [&](const std::vector<int>& ids, const Message& order) {
      if (order.at("type") != "table") return;
      tables += static_cast<int>(ids.size());
      expect_shown(order.at("text"), 64 << 10, false);
      EXPECT_EQ(order.at("text").get<std::string>().find("\nerror"), std::string::npos);
    };
    Coordinator coordinator(std::move(settings), now);
    coordinator.join(0, {.host = "h0", .is_host = true}, now);
    coordinator.join(1, {.host = "h1", .node_rank = 1}, now);
    coordinator.round_ended(0, {{.status = {.exit_code = 6}, .standing = example().standing}}, now);
    Message changed = to_message(std::vector{example()});
    mutation.value_in(changed);
    try {
      coordinator.round_ended(1, ends_from(changed), now);
    } catch (const Message::exception&) {
      coordinator.lost(1, "it sent a line that is not a message of fsdp-launch", true, now);
    }
    EXPECT_TRUE(coordinator.is_over());
  }
  EXPECT_GE(tables, 2000);
  util::set_log_sink({});
}

}  // namespace
}  // namespace fsdp::launch
