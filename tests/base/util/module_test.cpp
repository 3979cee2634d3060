#include "base/util/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/util/error.h"

namespace fsdp::util {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const ModuleRequest kTelescope{.name = "telescope", .feature = "sky.zoom", .remedy = "install the lenses"};

std::string refusal() {
  try {
    load_module(kTelescope);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "loaded";
}

TEST(Module, NamesWhatIsMissingWhoNeedsItAndTheRemedy) {
  EXPECT_THAT(refusal(), AllOf(HasSubstr("sky.zoom requires the module fsdp_telescope.so"),
                               HasSubstr("install the lenses"), HasSubstr("FSDP_TELESCOPE_MODULE")));
}

TEST(Module, RefusesALibraryThatIsNoModule) {
  ASSERT_EQ(::setenv("FSDP_TELESCOPE_MODULE", "libm.so.6", 1), 0);
  EXPECT_THAT(refusal(), HasSubstr("libm.so.6 is no module of this library"));
  ASSERT_EQ(::unsetenv("FSDP_TELESCOPE_MODULE"), 0);
}

}  // namespace
}  // namespace fsdp::util
