// The order of a step (shard/schedule.h), without tensors: as text, for each strategy and prefetch.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <new>
#include <sstream>

#include "shard/nominal_pass.h"
#include "shard/schedule_text.h"
#include "util/error.h"

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
    unit.groups = group_sizes({.dcn = 2, .data = 4, .model = 1}, options.strategy);
    unit.shard_is_unsharded = unit.groups.shards == 1;
  }
  units.front().is_root = true;
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
      {"no_shard", with([](auto& o) { o.strategy = "no_shard"; })},
  };
}

std::string read_file(const std::string& path) {
  std::ifstream file(std::string(FSDP_SOURCE_DIR) + "/" + path);
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
  const std::string readme = read_file("lib/README.md"), text = schedule_text(units_of({}), {});
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
