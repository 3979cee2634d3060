#include "state/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_fixtures.h"
#include "support/safetensors_files.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::HasSubstr;

TEST(Safetensors, ReadBackTheBitsThatWereWritten) {
  TemporaryFolder folder;
  NamedTensors tensors = assorted_tensors();
  write_safetensors(folder.path() / "w.safetensors", tensors);
  SafetensorsReader reader(folder.path() / "w.safetensors");
  EXPECT_EQ(reader.tensors().size(), tensors.size());
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(reader.entry(name).begin_bytes % static_cast<int64_t>(tensor.element_size()), 0) << name;
    at::Tensor read = at::zeros_like(tensor);
    reader.read(name, 0, tensor.numel(), read.data_ptr());
    EXPECT_TRUE(same_bits(tensor, read)) << name;
  }
  at::Tensor part = at::empty({3});
  reader.read("model/embed_tokens.weight", 10, 13, part.data_ptr());
  EXPECT_TRUE(same_bits(part, tensors[0].second.view({-1}).narrow(0, 10, 3).clone()));
}

TEST(Safetensors, HaveTheBytesOfTheFormat) {
  TemporaryFolder folder;
  fs::path path = folder.path() / "w.safetensors";
  write_safetensors(path, {{"b", at::arange(2, at::kByte)}, {"a", at::ones({1, 2})}});
  std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string expected{static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  expected += header + std::string("\0\0\x80\x3f\0\0\x80\x3f\0\1", 10);
  ASSERT_LT(header.size(), 256u) << "the length fits one byte of this test";
  EXPECT_EQ(util::read_file(path), expected);
}

TEST(Safetensors, AppearOnlyWhenComplete) {
  TemporaryFolder folder;
  fs::path path = folder.path() / "w.safetensors";
  {
    SafetensorsWriter writer(path, {{"a", {2}, at::kFloat}});
    EXPECT_FALSE(fs::exists(path));
    auto [kind, text] = error_of([&] { SafetensorsWriter second(path, {{"a", {2}, at::kFloat}}); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(text, HasSubstr("being written by another process"));
  }
  EXPECT_TRUE(fs::is_empty(folder.path())) << "a writer that gave up left something behind";
}

TEST(Safetensors, TakeOverWhatAKilledWriterLeft) {
  TemporaryFolder folder;
  std::ofstream(folder.path() / ".w.safetensors.tmp") << std::string(10'000, 'x');
  write_safetensors(folder.path() / "w.safetensors", {{"a", at::ones({2})}});
  EXPECT_EQ(SafetensorsReader(folder.path() / "w.safetensors").tensors().size(), 1u);
  EXPECT_FALSE(fs::exists(folder.path() / ".w.safetensors.tmp"));
}

// Quadratic in the tensors this is a matter of minutes.
TEST(Safetensors, OfManyTensorsAreReadInLinearTime) {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "many.safetensors";
  const int64_t tensors = 150'000;
  std::string header = "{";
  for (int64_t i = 0; i < tensors; ++i) {
    header += concat(i == 0 ? "" : ",", "\"w", i, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[", i,
                     ",", i + 1, "]}");
  }
  std::ofstream(path, std::ios::binary) << safetensors_bytes(header + "}", std::string(tensors, 'x'));
  EXPECT_EQ(SafetensorsReader(path).tensors().size(), static_cast<size_t>(tensors));
}

struct Malformed {
  const char* name;
  std::string bytes;
  const char* answer;
};

class MalformedSafetensors : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedSafetensors, AreRefusedWithTheReason) {
  TemporaryFolder folder;
  fs::path path = folder.path() / "bad.safetensors";
  std::ofstream(path, std::ios::binary) << GetParam().bytes;
  auto [kind, text] = error_of([&] { SafetensorsReader reader(path); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint) << text;
  EXPECT_THAT(text, HasSubstr(GetParam().answer));
  EXPECT_THAT(text, HasSubstr("bad.safetensors"));
}

std::string one(const std::string& entry, size_t data_bytes = 8) {
  return safetensors_bytes("{\"w\":" + entry + "}", std::string(data_bytes, 'x'));
}

const Malformed kMalformed[] = {
    {"empty", "", "too few"},
    {"seven_bytes", std::string(7, '\0'), "too few"},
    {"no_header", std::string(8, '\0'), "not valid JSON"},
    {"huge_length", std::string(8, '\xff'), "more than safetensors allows"},
    {"length_past_file", std::string("\x40\0\0\0\0\0\0\0{}", 10), "more than the file has"},
    {"length_over_limit", std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "more than safetensors allows"},
    {"not_json", safetensors_bytes("nonsense", ""), "not valid JSON"},
    {"cut_json", safetensors_bytes("{\"w\":", ""), "not valid JSON"},
    {"invalid_utf8", safetensors_bytes("{\"\xff\":1}", ""), "not valid JSON"},
    {"list", safetensors_bytes("[]", ""), "not a JSON object"},
    {"deep", safetensors_bytes("{\"w\":" + std::string(100'000, '['), ""), "nests deeper"},
    {"name_twice",
     safetensors_bytes(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                       R"("w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                       "1234"),
     "\"w\" twice"},
    {"control_name",
     safetensors_bytes(R"({"a\nb":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"),
     "control characters"},
    {"long_name",
     safetensors_bytes(
         "{\"" + std::string(1001, 'n') + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"),
     "whose name has 1001 bytes, more than the 1000"},
    {"key_twice_in_entry", one(R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})"),
     "\"shape\" twice"},
    {"metadata_number", safetensors_bytes(R"({"__metadata__":{"a":1}})", ""), "not a string"},
    {"metadata_list", safetensors_bytes(R"({"__metadata__":[]})", ""), "not an object"},
    {"entry_number", one("5"), "tensor w is not described"},
    {"no_dtype", one(R"({"shape":[2],"data_offsets":[0,8]})"), "tensor w is not described"},
    {"dtype_number", one(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"), "tensor w is not described"},
    {"unknown_dtype", one(R"({"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]})"), "F8_E4M3"},
    {"negative_size", one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
     "tensor w is not described"},
    {"fractional_size", one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
     "tensor w is not described"},
    {"overflowing_shape", one(R"({"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]})"),
     "does not fit its data_offsets"},
    {"enormous_size", one(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"),
     "tensor w is not described"},
    {"one_offset", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), "tensor w is not described"},
    {"three_offsets", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})"),
     "tensor w is not described"},
    {"negative_offset", one(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"),
     "tensor w is not described"},
    {"backward_offsets", one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "does not fit"},
    {"size_mismatch", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "does not fit"},
    {"cut_data", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 7), "cut off"},
    {"more_data", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 9), "followed by something"},
    {"hole_in_front", one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), "leave a hole"},
    {"hole",
     safetensors_bytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
                       "12345"),
     "leave a hole"},
    {"overlap",
     safetensors_bytes(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                       R"("b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})",
                       "12345"),
     "overlap"},
};

INSTANTIATE_TEST_SUITE_P(Safetensors, MalformedSafetensors, ::testing::ValuesIn(kMalformed),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Safetensors, FollowNoLinkOfTheirTemporaryFile) {
  TemporaryFolder root;
  const auto victim = root.write("victim", "precious");
  std::filesystem::create_symlink(victim, root / ".a.safetensors.tmp");
  const auto [kind, text] = error_of([&] {
    SafetensorsWriter writer(root / "a.safetensors", {{"a", {2}, at::kFloat}});
  });
  EXPECT_EQ(kind, ErrorKind::kIo);
  EXPECT_THAT(text, HasSubstr("is a symbolic link; remove it"));
  EXPECT_EQ(root.read("victim"), "precious");
}

}  // namespace
}  // namespace fsdp::checkpoint
