#include "util/host_name.h"

#include <gtest/gtest.h>
#include <sys/utsname.h>

namespace fsdp::util {
namespace {

TEST(HostName, IsTheKernels) {
  utsname names{};
  ASSERT_EQ(::uname(&names), 0);
  EXPECT_EQ(host_name(), *names.nodename ? std::string(names.nodename) : "this machine");
}

}  // namespace
}  // namespace fsdp::util
