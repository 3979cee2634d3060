#include "base/util/error.h"

#include <gtest/gtest.h>

#include <string>

#include "base/util/log.h"
#include "support/temporary_folder.h"

namespace fsdp::util {
namespace {

class ErrorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel, std::string_view line) { logged_.append(line).append("\n"); });
  }
  void TearDown() override { set_log_sink(nullptr); }
  std::string logged_;
};

TEST_F(ErrorTest, ProgramsEndWithTheCodeOfTheError) {
  EXPECT_EQ(run_guarded([] { return 0; }), 0);
  EXPECT_EQ(run_guarded([]() -> int { fail(ErrorKind::kData, "token file ", "x.bin", " is empty"); }), 3);
  EXPECT_EQ(logged_, "token file x.bin is empty\n");
}

TEST_F(ErrorTest, ForeignExceptionsAreOneLineAndCodeOne) {
  EXPECT_EQ(run_guarded([]() -> int { throw std::runtime_error("first line\nbacktrace\nmore"); }), 1);
  EXPECT_EQ(logged_, "unexpected failure: first line\n");
  EXPECT_EQ(run_guarded([]() -> int { throw std::bad_alloc(); }), 1);
  EXPECT_EQ(run_guarded([]() -> int { throw 7; }), 1);
}

TEST_F(ErrorTest, TellsTheLauncherWhyInTorchrunsForm) {
  testing::TemporaryFolder folder;
  const std::string path = folder / "error.json";
  ::setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
  run_guarded([]() -> int { fail(ErrorKind::kData, "token file \"x\\y\" is\nempty"); });
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  const std::string text = folder.read("error.json");
  EXPECT_EQ(text.substr(0, text.find(", \"extraInfo\"")),
            R"({"message": {"message": "token file \"x\\y\" is empty", "errorCode": 3)");
  EXPECT_NE(text.find(R"("timestamp": ")"), std::string::npos);
}

TEST_F(ErrorTest, AssertionsNamePlaceAndCondition) {
  try {
    FSDP_CHECK(1 + 1 == 3, "arithmetic of ", 2);
    FAIL();
  } catch (const Error& error) {
    std::string text = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kUnexpected);
    EXPECT_NE(text.find("error_test.cpp:"), std::string::npos);
    EXPECT_NE(text.find("1 + 1 == 3"), std::string::npos);
    EXPECT_NE(text.find("arithmetic of 2"), std::string::npos);
  }
}

}  // namespace
}  // namespace fsdp::util
