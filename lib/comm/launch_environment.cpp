#include "comm/launch_environment.h"

#include <charconv>
#include <cstdlib>
#include <optional>

#include "util/error.h"

namespace fsdp::comm {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<int> integer_variable(const char* name, int least, int most) {
  auto text = variable(name);
  if (!text) return std::nullopt;
  int value = 0;
  auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < least || value > most) {
    util::fail(util::ErrorKind::kUsage, "environment variable ", name, ": expected an integer from ", least,
               " to ", most, "; found \"", *text, "\" (start the processes with fsdp-launch or torchrun)");
  }
  return value;
}

}  // namespace

LaunchEnvironment read_launch_environment() {
  constexpr int kMostRanks = 1 << 20;
  LaunchEnvironment environment;
  auto rank = integer_variable("RANK", 0, kMostRanks - 1);
  auto world_size = integer_variable("WORLD_SIZE", 1, kMostRanks);
  if (!rank && !world_size) return environment;
  if (!rank || !world_size) {
    util::fail(util::ErrorKind::kUsage,
               "environment variables RANK and WORLD_SIZE belong together; found only ",
               rank ? "RANK" : "WORLD_SIZE", " (start the processes with fsdp-launch or torchrun)");
  }
  if (*rank >= *world_size) {
    util::fail(util::ErrorKind::kUsage, "environment variable RANK: expected less than WORLD_SIZE ",
               *world_size, "; found ", *rank);
  }
  environment.rank = *rank;
  environment.world_size = *world_size;
  environment.local_rank = integer_variable("LOCAL_RANK", 0, kMostRanks - 1).value_or(*rank);
  environment.local_world_size = integer_variable("LOCAL_WORLD_SIZE", 1, kMostRanks).value_or(*world_size);
  environment.master_addr = variable("MASTER_ADDR").value_or(environment.master_addr);
  environment.master_port = integer_variable("MASTER_PORT", 1, 65535).value_or(environment.master_port);
  if (environment.local_rank >= environment.local_world_size ||
      environment.local_world_size > environment.world_size) {
    util::fail(util::ErrorKind::kUsage,
               "environment: expected LOCAL_RANK < LOCAL_WORLD_SIZE <= WORLD_SIZE; found ",
               environment.local_rank, ", ", environment.local_world_size, ", ", environment.world_size);
  }
  return environment;
}

}  // namespace fsdp::comm
