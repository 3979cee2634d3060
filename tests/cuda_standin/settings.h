#pragma once

#include <cstddef>
#include <cstdlib>
#include <string>

namespace standin {

/// The environment variables of the stand-in (README.md), read once.
struct Settings {
  static std::string text(const char* name, const char* fallback) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : fallback;
  }
  static long number(const char* name, long fallback) {
    const char* value = std::getenv(name);
    return value != nullptr ? std::atol(value) : fallback;
  }
  static int visible_devices() {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return visible != nullptr && *visible == '\0' ? 0 : static_cast<int>(number("STANDIN_GPUS", 2));
  }

  int devices = visible_devices();
  int capability = static_cast<int>(std::atof(text("STANDIN_CAPABILITY", "9.0").c_str()) * 10 + 0.5);
  size_t memory_bytes = static_cast<size_t>(number("STANDIN_MEMORY_MIB", 80 * 1024)) << 20;
  bool late = number("STANDIN_LATE", 0) != 0;
  long kernel_us = number("STANDIN_KERNEL_US", 0);
  long seed = number("STANDIN_SEED", 0);
  long fastest_algorithm = number("STANDIN_FASTEST_ALGORITHM", -1);
  bool races = number("STANDIN_RACES", 0) != 0;
  bool stacks = number("STANDIN_STACKS", 1) != 0;
  bool kernel_names = number("STANDIN_KERNEL_NAMES", 0) != 0;
  std::string launches = text("STANDIN_LAUNCHES", "");
  std::string numbers = text("STANDIN_NUMBERS", "");
  std::string report = text("STANDIN_REPORT", "");
  std::string fault = text("STANDIN_FAULT", "");
  std::string rank = text("RANK", "0");
};

inline const Settings& settings() {
  static const Settings* const settings =
      new Settings;  // never destroyed: threads of libtorch outlive main()
  return *settings;
}

}  // namespace standin
