#include "util/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <mutex>

#include "util/text.h"

namespace fsdp::util {
namespace {

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

LogLevel level_of(spdlog::level::level_enum level) {
  if (level <= spdlog::level::debug) return LogLevel::kDebug;
  if (level == spdlog::level::info) return LogLevel::kInfo;
  if (level == spdlog::level::warn) return LogLevel::kWarning;
  return LogLevel::kError;
}

class FunctionSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(std::function<void(LogLevel, std::string_view)> function)
      : function_(std::move(function)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    function_(level_of(message.level), std::string_view(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

 private:
  std::function<void(LogLevel, std::string_view)> function_;
};

std::shared_ptr<spdlog::logger> make_logger(spdlog::sink_ptr sink) {
  auto logger = std::make_shared<spdlog::logger>("fsdp", std::move(sink));
  logger->set_pattern("%l: %v");
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

void set_log_level(LogLevel level) { logger()->set_level(level_of(level)); }

void set_log_sink(std::function<void(LogLevel, std::string_view)> sink) {
  auto level = logger()->level();
  if (sink) {
    logger() = make_logger(std::make_shared<FunctionSink>(std::move(sink)));
  } else {
    logger() = make_logger(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  }
  logger()->set_level(level);
}

}  // namespace fsdp::util
