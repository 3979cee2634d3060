#pragma once

// Steps whose plans are compared with what the engine measures.

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "support/plan_configs.h"

namespace fsdp::train {

struct PlannedCase {
  std::string name;
  int world_size;
  std::string architecture;
  std::function<void(config::Config&)> change;
};

inline void PrintTo(const PlannedCase& setting, std::ostream* out) { *out << setting.name; }

class PlanOf : public ::testing::TestWithParam<PlannedCase> {};

}  // namespace fsdp::train
