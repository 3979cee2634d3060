#include "base/util/registry.h"

#include <gtest/gtest.h>

namespace fsdp::util {
namespace {

Registry<int> shapes() { return Registry<int>("shape", {{"circle", 0}, {"square", 4}}); }

TEST(Registry, FindsWhatIsBuiltInAndWhatIsAdded) {
  Registry<int> registry = shapes();
  registry.add("triangle", 3);
  EXPECT_EQ(registry.names(), (std::vector<std::string>{"circle", "square", "triangle"}));
  EXPECT_EQ(registry.get("triangle", "shape.name"), 3);
  EXPECT_EQ(*registry.find("square"), 4);
  EXPECT_EQ(registry.find("hexagon"), nullptr);
}

TEST(Registry, RefusesANameThatIsTakenOrEmpty) {
  Registry<int> registry = shapes();
  for (const char* name : {"circle", ""}) {
    EXPECT_THROW(registry.add(name, 1), Error) << name;
  }
  EXPECT_EQ(registry.names().size(), 2u);
}

TEST(Registry, NamesTheChoicesAndTheNearestForAnUnknownName) {
  try {
    shapes().get("sqare", "shape.name");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(),
                 "unknown shape.name \"sqare\"; expected one of: circle, square; did you mean \"square\"?");
  }
}

}  // namespace
}  // namespace fsdp::util
