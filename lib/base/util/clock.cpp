#include "base/util/clock.h"

#include <ctime>

#include "base/util/text.h"

namespace fsdp::util {

std::string utc_text(std::chrono::system_clock::time_point time) {
  const auto since_epoch = std::chrono::floor<std::chrono::milliseconds>(time.time_since_epoch());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  const auto whole = static_cast<std::time_t>(seconds.count());
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  return printed("%s.%03dZ", date, static_cast<int>((since_epoch - seconds).count()));
}

}  // namespace fsdp::util
