// Values of quantised tensors: bit by bit those of gguf-py, by committed hashes and, where the Python in
// FSDP_TEST_PYTHON has it, by gguf.quants itself.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "base/dtype/dtype.h"
#include "state/gguf/gguf_fixtures.h"
#include "state/gguf_export/writer.h"
#include "state/manifest/digest.h"
#include "state/weights/gguf_dequantise.h"

namespace fsdp::gguf {
namespace {

using namespace fsdp::testing;

std::vector<TensorType> quantised_types() {
  std::vector<TensorType> types;
  for (const auto& entry : enum_names(TensorType{})) {
    if (is_quantised(entry.value)) types.push_back(entry.value);
  }
  return types;
}

/// The bytes of floats. A NaN has the same bits wherever it comes from.
std::string bytes_of_values(std::vector<float> values) {
  for (float& value : values) {
    if (std::isnan(value)) value = std::nanf("");
  }
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

class Dequantised : public ::testing::TestWithParam<TensorType> {
 protected:
  std::vector<float> values_of(const std::string& bytes) const {
    const int64_t blocks = static_cast<int64_t>(bytes.size()) / traits_.block_bytes;
    std::vector<float> values(static_cast<size_t>(blocks * traits_.block_elements));
    dequantise(GetParam(), reinterpret_cast<const uint8_t*>(bytes.data()),
               static_cast<int64_t>(values.size()), values.data());
    return values;
  }
  const TypeTraits& traits_ = traits_of(GetParam());
};

/// Hashes of what gguf-py 0.19 makes of 64 blocks of random_bytes().
TEST_P(Dequantised, HasTheValuesThatGgufPyGave) {
  static const std::map<TensorType, std::string> kHashes = {
      {TensorType::kQ4_0, "820dbac2476d33bd"},  {TensorType::kQ4_1, "82c12523809a05bf"},
      {TensorType::kQ5_0, "2aa9c0551e692d0e"},  {TensorType::kQ5_1, "91bad641f222284b"},
      {TensorType::kQ8_0, "5fa37f2dd43c9274"},  {TensorType::kQ2_K, "d9c05601ce42c105"},
      {TensorType::kQ3_K, "f0503e9f8e54741c"},  {TensorType::kQ4_K, "77cf8c78b9dc499b"},
      {TensorType::kQ5_K, "032fda89a99cc7eb"},  {TensorType::kQ6_K, "3778d94b7539890c"},
      {TensorType::kIq4Nl, "c276deb0f01d42ad"}, {TensorType::kIq4Xs, "b91087af897a71aa"}};
  const std::string bytes = random_bytes(64 * traits_.block_bytes);
  EXPECT_EQ(checkpoint::xxh3_64_of(bytes_of_values(values_of(bytes))), kHashes.at(GetParam()));
}

TEST_P(Dequantised, HasTheValuesThatGgufPyGives) {
  const std::string python = python_with_gguf();
  if (python.empty()) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has gguf";
  const std::string bytes = random_bytes((1 << 18) / traits_.block_elements * traits_.block_bytes, 7);
  std::vector<float> expected((1 << 18));
  const std::string found = llama_cpp(python, {"dequantise", util::name_of(GetParam())}, bytes);
  ASSERT_EQ(found.size(), expected.size() * sizeof(float));
  std::memcpy(expected.data(), found.data(), found.size());
  EXPECT_TRUE(bytes_of_values(values_of(bytes)) == bytes_of_values(expected));
}

TEST_P(Dequantised, IsReadFromAnyElementToAnyOther) {
  TemporaryFolder folder;
  const std::vector<int64_t> shape = {3, 8192};
  Writer writer(folder / "x.gguf", {}, {{.name = "x", .shape = shape, .type = GetParam()}});
  const std::string bytes = random_bytes(bytes_of(writer.tensors().front()));
  writer.append(bytes.data(), static_cast<int64_t>(bytes.size()));
  writer.finish();
  const Reader reader(folder / "x.gguf");
  const std::string whole = bytes_of_values(values_of(bytes));
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, 24576),
                                   {0, 0},
                                   {24576, 24576},
                                   {0, 1},
                                   {24575, 24576},
                                   {31, 33},
                                   {255, 257},
                                   {256, 512},
                                   {100, 200},
                                   {8191, 8193},
                                   {1, 24575},
                                   {300, 300 + 8192},
                                   {4096, 20480}}) {
    std::vector<float> values(static_cast<size_t>(end - begin) + 1, 7.0F);
    read_dequantised(reader, reader.tensors().at("x"), begin, end, values.data());
    EXPECT_EQ(values.back(), 7.0F) << "written beyond the end";
    values.pop_back();
    EXPECT_TRUE(bytes_of_values(values) ==
                whole.substr(static_cast<size_t>(begin) * 4, static_cast<size_t>(end - begin) * 4))
        << begin << " to " << end;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Dequantised, ::testing::ValuesIn(quantised_types()),
                         [](const auto& info) { return util::name_of(info.param); });

}  // namespace
}  // namespace fsdp::gguf
