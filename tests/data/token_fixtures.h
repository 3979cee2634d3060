#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "support/temporary_folder.h"

namespace fsdp::data {

/// A token file with these ids.
inline std::string write_tokens(const testing::TemporaryFolder& folder, const std::string& name,
                                const std::vector<uint16_t>& ids) {
  std::string bytes;
  for (uint16_t id : ids) {
    bytes.push_back(static_cast<char>(id & 255));
    bytes.push_back(static_cast<char>(id >> 8));
  }
  return folder.write(name, bytes);
}

/// Ids 0, 1, 2, ... so that a token is its position.
inline std::vector<uint16_t> counting(int64_t count) {
  std::vector<uint16_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<uint16_t>(i));
  return ids;
}

/// Runs `body`, which must throw an Error of this kind whose text holds all of `parts`.
inline void expect_error(ErrorKind kind, const std::vector<std::string>& parts,
                         const std::function<void()>& body) {
  try {
    body();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << part << " is not in: " << error.what();
    }
    return;
  }
  ADD_FAILURE() << "nothing was thrown";
}

}  // namespace fsdp::data
