#include "base/util/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/util/clock.h"
#include "base/util/text.h"

namespace fsdp::util {
namespace {

/// spdlog's levels, indexed by LogLevel.
constexpr std::array kLevels = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                spdlog::level::err, spdlog::level::off};

class FunctionSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(std::function<void(LogLevel, std::string_view)> function)
      : function_(std::move(function)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const auto level = std::find(kLevels.begin(), kLevels.end(), message.level) - kLevels.begin();
    function_(static_cast<LogLevel>(level), std::string_view(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

 private:
  std::function<void(LogLevel, std::string_view)> function_;
};

/// Whether lines begin with the time.
std::atomic<bool>& times() {
  static std::atomic<bool> on = [] {
    const char* wanted = std::getenv("FSDP_LOG_TIMESTAMPS");
    const std::string_view text = wanted ? wanted : "";
    return !text.empty() && text != "0" && text != "false";
  }();
  return on;
}

void set_pattern(spdlog::logger& logger) {
  logger.set_pattern(times() ? "%Y-%m-%dT%H:%M:%S.%eZ %l: %v" : "%l: %v", spdlog::pattern_time_type::utc);
}

std::shared_ptr<spdlog::logger> make_logger(spdlog::sink_ptr sink) {
  auto logger = std::make_shared<spdlog::logger>("fsdp", std::move(sink));
  set_pattern(*logger);
  logger->flush_on(spdlog::level::debug);
  return logger;
}

std::shared_ptr<spdlog::logger>& logger() {
  static std::shared_ptr<spdlog::logger> instance = [] {
    auto made = make_logger(std::make_shared<spdlog::sinks::stderr_sink_mt>());
    const char* wanted = std::getenv("FSDP_LOG_LEVEL");
    made->set_level(wanted ? spdlog::level::from_str(wanted) : spdlog::level::info);
    return made;
  }();
  return instance;
}

}  // namespace

void log_debug(std::string_view message) { logger()->debug(printable(message)); }
void log_info(std::string_view message) { logger()->info(printable(message)); }
void log_warning(std::string_view message) { logger()->warn(printable(message)); }
void log_error(std::string_view message) { logger()->error(printable(message)); }

void set_log_level(LogLevel level) { logger()->set_level(kLevels.at(static_cast<size_t>(level))); }

void set_log_times(bool on) {
  times() = on;
  set_pattern(*logger());
}

std::string log_line_begin() { return times() ? utc_text() + " " : std::string(); }

void set_log_sink(std::function<void(LogLevel, std::string_view)> sink) {
  const auto level = logger()->level();
  logger() = sink ? make_logger(std::make_shared<FunctionSink>(std::move(sink)))
                  : make_logger(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger()->set_level(level);
}

}  // namespace fsdp::util
