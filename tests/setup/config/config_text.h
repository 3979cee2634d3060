#pragma once

// Helpers of the configuration tests.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "setup/config/load.h"
#include "support/temporary_folder.h"

namespace fsdp::config {

/// data.train has no default; every complete configuration names some file.
inline const std::string kTrain = "[data]\ntrain = [\"a.bin\"]\n";

/// The message of the util::Error(kUsage) that `body` throws; anything else fails the test.
inline std::string usage_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw something else than a util::Error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "did not throw";
  return "";
}

/// The same for a configuration text called "c.toml".
inline std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return usage_error_of([&] { parse_config(text, "c.toml", overrides); });
}

/// Expects `part` in `text`, and shows the text otherwise.
inline void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected: " << part << "\nin: " << text;
}

}  // namespace fsdp::config
