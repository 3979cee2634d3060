// The order of a step (shard/units/schedule.h), without tensors: as text, for each strategy and prefetch.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <new>
#include <sstream>

#include "base/util/error.h"
#include "shard/units/nominal_pass.h"
#include "shard/units/schedule_text.h"
#include "support/source_folder.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FSDP_COUNTS_ALLOCATIONS
namespace {
thread_local int64_t allocations = 0;
}
void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace fsdp::shard {
namespace {

/// The root and three units over 4 ranks.
std::vector<UnitSizes> units_of(const ShardOptions& options) {
  std::vector<UnitSizes> units;
  for (const char* name : {"root", "layers.0", "layers.1", "layers.2"}) {
    UnitSizes& unit = units.emplace_back();
    unit.name = name;
    unit.numel = unit.gathered_numel = unit.unsharded_numel = 400;
    unit.shard_numel = 100;
    unit.groups = group_sizes({.dcn = 2, .data = 4, .model = 1}, options.strategy, options.hybrid_optimizer);
    unit.shard_is_unsharded = unit.groups.shards == 1;
    unit.is_root = units.size() == 1;
    unit.options = unit_options(options, unit.name, unit.is_root, {});
  }
  return units;
}

struct Setting {
  std::string name;
  ShardOptions options;
};

std::vector<Setting> settings() {
  const auto with = [](auto change) {
    ShardOptions options;
    change(options);
    return options;
  };
  return {
      {"full_shard", {}},
      {"backward_prefetch = \"post\"", with([](auto& o) { o.backward_prefetch = "post"; })},
      {"forward_prefetch = \"none\", backward_prefetch = \"none\"", with([](auto& o) {
         o.forward_prefetch = "none";
         o.backward_prefetch = "none";
       })},
      {"limit_all_gathers = false", with([](auto& o) { o.limit_all_gathers = false; })},
      {"reshard_root_after_forward = true, reshard_last_after_forward = true",
       with([](auto& o) { o.reshard_root_after_forward = o.reshard_last_after_forward = true; })},
      {"keep_after_forward = [\"layers.1\"]", with([](auto& o) { o.keep_after_forward = {"layers.1"}; })},
      {"shard_grad_op", with([](auto& o) { o.strategy = "shard_grad_op"; })},
      {"hybrid_shard", with([](auto& o) { o.strategy = "hybrid_shard"; })},
      {"hybrid_shard, hybrid_optimizer = \"global\"", with([](auto& o) {
         o.strategy = "hybrid_shard";
         o.hybrid_optimizer = "global";
       })},
      {"no_shard", with([](auto& o) { o.strategy = "no_shard"; })},
  };
}

std::string read_file(const std::string& path) {
  std::ifstream file(testing::source_folder() + "/" + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// To be changed by hand, or by what the test prints, when the order is changed on purpose.
TEST(ScheduleOrder, OfEachStrategyAndPrefetchIsAsWrittenDown) {
  std::string text;
  for (const Setting& setting : settings()) {
    text += (text.empty() ? "# " : "\n# ") + setting.name + "\n";
    text += schedule_text(units_of(setting.options), setting.options);
  }
  EXPECT_EQ(text, read_file("tests/shard/schedules.txt"));
}

TEST(ScheduleOrder, OfTheDefaultsIsQuotedInTheReadme) {
  const std::string readme = read_file("lib/shard/README.md"), text = schedule_text(units_of({}), {});
  EXPECT_NE(readme.find("```text\n" + text + "```\n"), std::string::npos) << text;
}

TEST(ScheduleText, LeavesOutUnitsInTheMiddle) {
  const std::string text = schedule_text(units_of({}), {}, /*most_units=*/2);
  EXPECT_EQ(text.find("of layers.1 begins"), std::string::npos) << text;
  EXPECT_NE(text.find("... 1 more units\n"), std::string::npos) << text;
}

class Ignore final : public CommandReader {
 public:
  void read(const Command&) override { ++commands; }
  int64_t commands = 0;
};

/// The gathers (+), waits (=) and frees (-) of forwards, with the computes between them, as text: "+1 =1
/// [1]".
class ForwardText final : public CommandReader {
 public:
  explicit ForwardText(const ShardOptions& options, bool host_runs_ahead = false)
      : schedule_(options, scheduled_units(units_of(options)), *this, host_runs_ahead) {}

  /// A forward of these units, and backward if `trains`.
  std::string forward(const std::vector<size_t>& units, bool trains = true) {
    text_.clear();
    schedule_.forward_begins(0, trains);
    for (size_t unit : units) {
      schedule_.forward_begins(unit);
      text_ += concat("[", unit, "] ");
      schedule_.forward_ends(unit, trains);
    }
    schedule_.forward_ends(0, trains);
    std::string text = text_;
    if (!trains) return text;
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      schedule_.backward_begins(*unit);
      schedule_.backward_ends(*unit);
    }
    schedule_.whole_backward_ends();
    EXPECT_FALSE(schedule_.any_is_gathered());
    return text;
  }
  int64_t reports = 0;
  int64_t most_gathered = 0;  ///< beside the root, in forward

 private:
  using Kind = Command::Action;
  void read(const Command& command) override {
    const char* sign = command.kind == Kind::kGather          ? "+"
                       : command.kind == Kind::kWaitForGather ? "="
                       : command.kind == Kind::kReshard       ? "-"
                                                              : "";
    if (*sign == '\0') return;
    text_ += concat(sign, command.unit, " ");
    if (command.unit == 0 || *sign == '=') return;
    gathered_ += *sign == '+' ? 1 : -1;
    if (command.pass == Pass::kForward) most_gathered = std::max(most_gathered, gathered_);
  }
  void report_changed_order(size_t) override { ++reports; }

  Schedule schedule_;
  std::string text_;
  int64_t gathered_ = 0;
};

ShardOptions prefetching(const char* how, bool limit = true) {
  ShardOptions options;
  options.forward_prefetch = how;
  options.limit_all_gathers = limit;
  return options;
}

TEST(ForwardSchedule, OfTheFirstPassIsThatOfTheSecondWithImplicitPrefetchOnTheCpu) {
  ForwardText text(prefetching("implicit"));
  const std::string expected = "+0 =0 +1 =1 +2 [1] -1 =2 +3 [2] -2 =3 [3] ";
  EXPECT_EQ(text.forward({1, 2, 3}), expected);
  EXPECT_EQ(text.forward({1, 2, 3}), expected);
  EXPECT_EQ(ForwardText(prefetching("implicit", /*limit=*/false)).forward({1, 2, 3}),
            "+0 =0 +1 +2 +3 =1 [1] -1 =2 [2] -2 =3 [3] ");
}

// The gather of a unit precedes the release of the one before, so that it need not wait for that one's
// compute.
TEST(ForwardSchedule, OfTheFirstPassGathersOnUseWhereTheHostRunsAhead) {
  ForwardText text(prefetching("implicit"), /*host_runs_ahead=*/true);
  EXPECT_EQ(text.forward({1, 2, 3}), "+0 =0 +1 =1 [1] +2 -1 =2 [2] +3 -2 =3 [3] ");
  EXPECT_EQ(text.forward({1, 2, 3}), "+0 =0 +1 =1 +2 [1] -1 =2 +3 [2] -2 =3 [3] ");
  EXPECT_EQ(text.most_gathered, 2);
}

TEST(ForwardSchedule, OfTheFirstPassGathersOnUseWithExplicitPrefetch) {
  for (bool host_runs_ahead : {false, true}) {
    ForwardText text(prefetching("explicit"), host_runs_ahead);
    EXPECT_EQ(text.forward({1, 2, 3}), "+0 =0 +1 =1 [1] -1 +2 =2 [2] -2 +3 =3 [3] ");
    EXPECT_EQ(text.forward({1, 2, 3}), "+0 =0 +1 =1 +2 [1] -1 =2 +3 [2] -2 =3 [3] ");
  }
}

// Unit 1 is gathered ahead and comes second.
TEST(ForwardSchedule, OfAPassInAnotherOrder) {
  ForwardText guessing(prefetching("implicit")), ahead(prefetching("implicit"), /*host_runs_ahead=*/true),
      explicit_(prefetching("explicit"));
  for (ForwardText* text : {&guessing, &ahead, &explicit_}) {
    text->forward({1, 2, 3});
    text->forward({1, 2, 3}, /*trains=*/false);
  }
  EXPECT_EQ(guessing.forward({2, 1, 3}), "+0 =0 +1 +2 =2 [2] -2 =1 [1] -1 +3 =3 [3] ");
  EXPECT_EQ(ahead.forward({2, 1, 3}), "+0 =0 +1 =1 -1 +2 =2 [2] +1 -2 =1 [1] +3 -1 =3 [3] ");
  EXPECT_EQ(explicit_.forward({2, 1, 3}), "+0 =0 +1 +2 =2 [2] -2 =1 [1] -1 +3 =3 [3] ");
  EXPECT_EQ(guessing.reports + ahead.reports, 0);
  EXPECT_EQ(explicit_.reports, 1);
}

TEST(ForwardSchedule, HoldsTwoUnitsInAnyOrder) {
  const std::vector<std::vector<size_t>> orders = {{1, 2, 3}, {3, 1}, {2, 2, 1}, {1},
                                                   {3, 2, 1}, {1, 3}, {},        {2, 3, 2, 3, 1}};
  for (const char* how : {"none", "implicit", "explicit"}) {
    for (bool host_runs_ahead : {false, true}) {
      for (bool reshards_last : {false, true}) {
        ShardOptions options = prefetching(how);
        options.reshard_last_after_forward = reshards_last;
        ForwardText text(options, host_runs_ahead);
        for (const auto& order : orders) {
          text.forward(order);
          text.forward(order, /*trains=*/false);
        }
        EXPECT_EQ(text.most_gathered, *how == 'n' ? 1 : 2) << how << host_runs_ahead << reshards_last;
      }
    }
  }
}

#ifdef FSDP_COUNTS_ALLOCATIONS
TEST(Schedule, AllocatesNothingOnceAPassIsKnown) {
  for (const Setting& setting : settings()) {
    const std::vector<UnitSizes> units = units_of(setting.options);
    Ignore reader;
    Schedule schedule(setting.options, scheduled_units(units), reader);
    const NominalPass pass(units);
    pass.run(schedule);
    const int64_t commands = reader.commands, before = allocations;
    pass.run(schedule);
    EXPECT_EQ(allocations, before) << setting.name;
    EXPECT_GE(reader.commands, commands) << setting.name;
  }
}
#endif

}  // namespace
}  // namespace fsdp::shard
