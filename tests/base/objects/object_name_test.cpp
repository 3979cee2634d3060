#include "base/objects/object_name.h"

#include <gmock/gmock.h>

#include "base/util/error.h"

namespace fsdp::objects {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string refusal_of(const std::string& name) {
  try {
    check_name(name);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(ObjectName, IsRemoteByItsScheme) {
  for (const char* name : {"s3://b/k", "gs://b/k", "hf://o/m/f", "https://h/p", "http://h/p"}) {
    EXPECT_TRUE(is_remote(name)) << name;
  }
  for (const char* name : {"data/a.bin", "/s3/b", "s3:/b/k", "ftp://h/p", "file://a", "", "://", "C:s3"}) {
    EXPECT_FALSE(is_remote(name)) << name;
  }
}

TEST(ObjectName, HasPartsAndFolders) {
  EXPECT_EQ(joined("s3://b/k/", "/a/b"), "s3://b/k/a/b");
  EXPECT_EQ(last_part("s3://b/k/a.bin"), "a.bin");
  EXPECT_EQ(last_part("https://h/a.bin?download=true"), "a.bin");
  EXPECT_EQ(folder_of("s3://b/k/a.bin"), "s3://b/k");
  EXPECT_EQ(folder_of("s3://b"), "s3://b");
  EXPECT_EQ(without_scheme("gs://b/k"), "b/k");
}

TEST(ObjectName, RefusesSecretsWithoutRepeatingThem) {
  for (const char* name : {"s3://AKIA:hunter2@bucket/key", "https://me:hunter2@host/a.bin",
                           "https://host/a.bin?X-Amz-Signature=hunter2&X-Amz-Date=1",
                           "https://host/a.bin?sv=1&sig=hunter2", "https://host/a?token=hunter2"}) {
    const std::string message = refusal_of(name);
    EXPECT_THAT(message, HasSubstr("logs and saved configs")) << name;
    EXPECT_THAT(message, Not(HasSubstr("hunter2"))) << name;
  }
  EXPECT_EQ(refusal_of("https://host/a.bin?version=3"), "");
  EXPECT_EQ(refusal_of("hf://datasets/owner/name@main/file"), "");
}

TEST(ObjectName, RefusesWaysOutOfItsFolderAndMissingBuckets) {
  EXPECT_THAT(refusal_of("s3://bucket/../other"), HasSubstr("\"..\""));
  EXPECT_THAT(refusal_of("s3:///key"), HasSubstr("names no bucket"));
  EXPECT_THAT(refusal_of("https:///key"), HasSubstr("names no host"));
}

}  // namespace
}  // namespace fsdp::objects
