// GGUF files as they are written and read: everything comes back, and whatever does not fit is refused.

#include "base/gguf/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "state/gguf_export/writer.h"
#include "support/checkpoint_fixtures.h"

namespace fsdp::gguf {
namespace {

using namespace fsdp::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Strings = std::vector<std::string>;

const Metadata kMetadata = {{"general.architecture", std::string("llama")},
                            {"a.number", 7U},
                            {"a.fraction", 0.5F},
                            {"a.flag", true},
                            {"a.texts", Strings{"x", "", "yz"}},
                            {"a.fractions", std::vector<float>{1, -2}},
                            {"a.numbers", std::vector<int32_t>{-1, 6}}};

class GgufFile : public ::testing::Test {
 protected:
  /// Two tensors, of 24 bytes and 68, in a file of 7 keys.
  void write(const Metadata& metadata = kMetadata) {
    Writer writer(path_, metadata,
                  {{.name = "a.weight", .shape = {2, 3}, .type = TensorType::kF32},
                   {.name = "b.weight", .shape = {2, 32}, .type = TensorType::kQ8_0}});
    writer.append(std::string(10, 'a').data(), 10);
    writer.append(std::string(14, 'b').data(), 14);
    writer.append(std::string(68, 'c').data(), 68);
    writer.finish();
  }
  std::string bytes() const { return util::read_file(path_); }
  /// With another number at the place of a text's first occurrence plus `offset`.
  template <typename Number>
  void change(const std::string& before, int64_t offset, Number value) {
    std::string changed = bytes();
    const size_t place = changed.find(before);
    ASSERT_NE(place, std::string::npos);
    std::memcpy(changed.data() + place + static_cast<size_t>(offset), &value, sizeof(value));
    std::ofstream(path_, std::ios::binary) << changed;
  }
  void expect_refused(const std::string& text) const {
    auto [kind, found] = error_of([&] { Reader reader(path_); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(found, HasSubstr(text));
  }

  TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "model.gguf";
};

TEST_F(GgufFile, IsReadAsItWasWritten) {
  write();
  EXPECT_TRUE(is_gguf(path_));
  const Reader reader(path_);
  for (const auto& [key, value] : kMetadata) EXPECT_EQ(reader.metadata().at(key), value) << key;
  EXPECT_EQ(reader.metadata().size(), kMetadata.size());
  ASSERT_EQ(reader.tensors().size(), 2U);
  const Tensor& a = reader.tensors().at("a.weight");
  const Tensor& b = reader.tensors().at("b.weight");
  EXPECT_THAT(a.shape, ElementsAre(2, 3));
  EXPECT_EQ(b.type, TensorType::kQ8_0);
  EXPECT_EQ(a.begin_bytes % kDefaultAlignment, 0);
  EXPECT_EQ(b.begin_bytes - a.begin_bytes, 32);
  std::string read(12, ' ');
  reader.read(a, 6, 12, read.data());
  EXPECT_EQ(read, "aaaabbbbbbbb");
  reader.read(b, 56, 12, read.data());
  EXPECT_EQ(read, "cccccccccccc");
}

TEST_F(GgufFile, AppearsOnlyWhenItIsComplete) {
  {
    Writer writer(path_, {}, {{.name = "a", .shape = {8}}});
    writer.append(std::string(31, 'a').data(), 31);
    EXPECT_FALSE(std::filesystem::exists(path_));
    EXPECT_THROW(writer.finish(), std::exception);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(GgufFile, CutOffAnywhereIsRefused) {
  write();
  const std::string whole = bytes();
  const size_t needed = whole.size() - 28;  // without the padding at its end
  for (size_t length = 0; length < needed; length += 1 + length / 64) {
    folder_.write("model.gguf", whole.substr(0, length));
    EXPECT_EQ(error_of([&] { Reader reader(path_); }).first, ErrorKind::kCheckpoint) << length;
  }
  folder_.write("model.gguf", whole.substr(0, needed));
  EXPECT_NO_THROW(Reader reader(path_));
}

TEST_F(GgufFile, OfOtherKindsIsRefused) {
  folder_.write("model.gguf", "GGUX and more than enough bytes for a header");
  EXPECT_FALSE(is_gguf(path_));
  expect_refused("does not begin with \"GGUF\"");
  write();
  change("GGUF", 4, uint32_t{1});
  expect_refused("has the version 1 of GGUF, but 2 and 3 in little-endian order are read");
  change("GGUF", 4, uint32_t{3} << 24);
  expect_refused("or numbers in big-endian order");
  EXPECT_FALSE(is_gguf(folder_.path()));
}

TEST_F(GgufFile, WithImpossibleCountsIsRefusedBeforeMemoryIsTaken) {
  for (const uint64_t count : {uint64_t{1} << 62, ~uint64_t{0}}) {
    write();
    change("GGUF", 8, count);
    expect_refused("as a number of things, more than the rest of its header has room for");
    write();
    change("GGUF", 16, count);
    expect_refused("more than the rest of its header has room for");
    write();
    change("a.texts", 7 + 8, count);
    expect_refused("more than the rest of its header has room for");
    write();
    change("a.texts", 7 + 16, count);
    expect_refused("gives a text of");
    write();
    change("a.numbers", 9 + 8, count);
    expect_refused("more than the rest of its header has room for");
  }
}

TEST_F(GgufFile, WithImpossibleTensorsIsRefused) {
  const auto expect = [&](int64_t offset, auto value, const std::string& text) {
    write();
    change("b.weight", 8 + offset, value);
    expect_refused(text);
  };
  // Dimensions, the innermost and the outermost, type, place.
  expect(0, uint32_t{5}, "has 5 dimensions, more than the 4 that the format allows");
  expect(4, uint64_t{0}, "has a dimension of 0");
  expect(4, ~uint64_t{0}, "has a dimension of 18446744073709551615");
  expect(4, uint64_t{1} << 62, "has the impossible shape");
  expect(4, uint64_t{31}, "has the impossible shape [2, 31]");
  expect(12, uint64_t{1} << 60, "has the impossible shape");
  expect(12, uint64_t{3}, "too few for its tensor b.weight; it is cut off");
  expect(20, uint32_t{14}, "has the impossible shape [2, 32]");  // a block of q6_K has 256 elements
  expect(
      20, uint32_t{15},
      "tensor b.weight must have one of the types f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_K, q3_K, "
      "q4_K, q5_K, q6_K, iq4_nl, iq4_xs, but has q8_K; take another GGUF file");
  expect(20, uint32_t{77}, "but has number 77");
  expect(24, uint64_t{64},
         "starts at byte 64 of the data instead of byte 32, so tensors overlap or leave a hole");
  expect(24, ~uint64_t{0}, "starts at byte 18446744073709551615");
}

TEST_F(GgufFile, WithTwoThingsOfOneNameIsRefused) {
  write();
  change("b.weight", 0, 'a');
  expect_refused("has two tensors of the same name");
  write({{"a.one", 1U}, {"a.two", 2U}});
  change("a.two", 2, std::array{'o', 'n', 'e'});
  expect_refused("has the key \"a.one\" twice");
}

TEST_F(GgufFile, HasTheAlignmentThatItNames) {
  for (const uint32_t wrong : {0U, 3U, 48U, 1U << 31}) {
    write({{"general.alignment", wrong}});
    expect_refused("has a \"general.alignment\" that is no power of two up to 1 MiB");
  }
  write({{"general.alignment", 64U}});
  expect_refused("tensor b.weight starts at byte 32 of the data instead of byte 64");
  write({{"general.alignment", 8U}});
  expect_refused("tensor b.weight starts at byte 32 of the data instead of byte 24");
}

TEST_F(GgufFile, NamesAreWithoutControlCharacters) {
  write();
  change("b.weight", 0, '\n');
  expect_refused("has a tensor whose name is no plain text");
  write();
  change("a.flag", 1, '\x1b');
  expect_refused("has a key that is no plain text");
}

}  // namespace
}  // namespace fsdp::gguf
