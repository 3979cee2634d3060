#include "state/dcp/dcp_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "support/checkpoint_fixtures.h"
#include "support/memory_source.h"
#include "support/source_folder.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using namespace std::string_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor tensor_of(const DcpFolder& folder, const std::string& key) {
  for (const TensorInfo& info : folder.infos()) {
    if (info.name != key) continue;
    at::Tensor tensor = at::empty(info.shape, at::TensorOptions().dtype(info.dtype));
    folder.read(key, 0, tensor.numel(), tensor.data_ptr());
    return tensor;
  }
  return {};
}

at::Tensor counted(std::vector<int64_t> shape, at::ScalarType dtype) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return at::arange(numel).reshape(shape).to(dtype);
}

class TestOfDcpFolder : public ::testing::Test {
 protected:
  /// Of PyTorch 2.11 on two ranks (pytorch_dcp/make), a copy that may be changed.
  void SetUp() override { fs::copy(source_folder() + "/tests/state/checkpoint/pytorch_dcp", folder()); }
  fs::path folder() const { return root_.path() / "dcp"; }
  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    std::string bytes = util::read_file(folder() / file);
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    std::ofstream(folder() / file, std::ios::binary) << bytes.replace(at, from.size(), to);
  }
  void write_metadata(const std::string& bytes) const {
    std::ofstream(folder() / kDcpMetadataName, std::ios::binary) << bytes;
  }
  /// Opening the folder and reading all of it.
  void expect_refused(const std::string& text) const {
    const auto [kind, found] = error_of([&] {
      const DcpFolder dcp(folder());
      dcp.verify_all({});
      for (const std::string& key : dcp.value_keys()) dcp.value(key);
    });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint) << found;
    EXPECT_THAT(found, HasSubstr(text));
    EXPECT_EQ(found.find('\n'), std::string::npos) << found;
  }
  TemporaryFolder root_;
};

TEST_F(TestOfDcpFolder, ReadsWhatPyTorchWroteOnTwoRanks) {
  ASSERT_TRUE(is_dcp_folder(folder()));
  const DcpFolder dcp(folder());
  EXPECT_TRUE(same_bits(tensor_of(dcp, "rows"), counted({5, 7}, at::kFloat)));
  EXPECT_TRUE(same_bits(tensor_of(dcp, "columns"), counted({2, 3, 4}, at::kBFloat16)));
  EXPECT_TRUE(same_bits(tensor_of(dcp, "few"), counted({1}, at::kLong)));
  EXPECT_EQ(dcp.infos().size(), 4u);
  EXPECT_EQ(dcp.value("whole"), 2.5);
  EXPECT_THAT(dcp.value_keys(), ElementsAre("betas", "lr", "names", "none"));
  EXPECT_EQ(dcp.value("lr"), 0.003);
  EXPECT_EQ(dcp.value("betas").dump(), "[0.9,0.95]");
  EXPECT_EQ(dcp.value("names").dump(), R"(["a","b"])");
  EXPECT_TRUE(dcp.value("none").is_null());
  EXPECT_TRUE(dcp.value("missing").is_null());
  dcp.verify_all({});
}

TEST_F(TestOfDcpFolder, ReadsAnyRangeOfATensor) {
  const DcpFolder dcp(folder());
  for (const char* key : {"rows", "columns"}) {
    const at::Tensor whole = tensor_of(dcp, key).flatten();
    for (int64_t begin = 0; begin <= whole.numel(); ++begin) {
      for (int64_t end = begin; end <= whole.numel(); ++end) {
        at::Tensor part = at::empty({end - begin}, whole.options());
        dcp.read(key, begin, end, part.data_ptr());
        ASSERT_TRUE(same_bits(part, whole.narrow(0, begin, end - begin).clone()))
            << key << ' ' << begin << ' ' << end;
      }
    }
  }
}

TEST_F(TestOfDcpFolder, ReadsWhatItsWriterWritesInAnyNumberOfFiles) {
  const NamedTensors tensors = assorted_tensors();
  const std::vector<DcpValue> values{{"value", 7}, {"list", {0.5, "x", nullptr, true, -1}, true}};
  for (const int64_t files : {1, 2, 3, 40}) {
    const fs::path written = root_.path() / std::to_string(files);
    write_dcp(written, tensors, values, files);
    const DcpFolder dcp(written);
    for (const auto& [name, tensor] : tensors) {
      EXPECT_TRUE(same_bits(tensor_of(dcp, name), tensor)) << name << " in " << files;
    }
    EXPECT_EQ(dcp.value("value"), 7);
    EXPECT_EQ(dcp.value("list").dump(), R"([0.5,"x",null,true,-1])");
  }
}

TEST_F(TestOfDcpFolder, RunsNothingOfAMaliciousPickle) {
  const fs::path trace = root_.path() / "trace";
  const std::string command = "touch " + trace.string();
  const std::string call =
      "X" + std::string(1, static_cast<char>(command.size())) + "\0\0\0"s + command + "\x85R.";
  write_metadata(
      "\x80\x02"
      "cposix\nsystem\n"s +
      call);
  expect_refused(R"(.metadata: the pickle names "posix.system", which no checkpoint of PyTorch needs)");
  write_metadata("\x80\x04\x8c\x05posix\x8c\x06system\x93"s + call);
  expect_refused(R"(names "posix.system")");
  EXPECT_FALSE(fs::exists(trace));
}

TEST_F(TestOfDcpFolder, RunsNothingOfAMaliciousTensor) {
  // As long as the original, so that only the names differ.
  replace("__0_0.distcp", "ctorch._utils\n_rebuild_tensor_v2\n", "cposix_______\nsystem____________\n");
  expect_refused("the checksum of its bytes");
  std::string bytes = util::read_file(folder() / "__0_0.distcp");
  const size_t header = bytes.find("PK\x01\x02");
  ASSERT_NE(header, std::string::npos);
  bytes.replace(header + 16, 4, "\0\0\0\0"s);  // a checksum that was not computed
  std::ofstream(folder() / "__0_0.distcp", std::ios::binary) << bytes;
  expect_refused(R"(names "posix_______.system____________")");
}

TEST_F(TestOfDcpFolder, NamesAMissingFile) {
  fs::remove(folder() / "__1_0.distcp");
  expect_refused("__1_0.distcp: No such file");
}

TEST_F(TestOfDcpFolder, NamesAFileThatIsCutOff) {
  const int64_t whole = static_cast<int64_t>(fs::file_size(folder() / "__0_0.distcp"));
  for (int64_t bytes = whole - 1; bytes > 0; bytes -= 97) {
    fs::resize_file(folder() / "__0_0.distcp", static_cast<uintmax_t>(bytes));
    expect_refused("the file is cut off");
  }
}

TEST_F(TestOfDcpFolder, RefusesMetadataThatAreCutOffAnywhere) {
  const std::string whole = util::read_file(folder() / kDcpMetadataName);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    write_metadata(whole.substr(0, bytes));
    expect_refused("is cut off");
  }
}

TEST_F(TestOfDcpFolder, NamesADamagedTensor) {
  std::string bytes = util::read_file(folder() / "__1_0.distcp");
  const float last = 34;
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&last), 4));
  ASSERT_NE(at, std::string::npos);
  bytes[at] ^= 1;
  std::ofstream(folder() / "__1_0.distcp", std::ios::binary) << bytes;
  expect_refused("__1_0.distcp: rows is damaged");
}

/// Metadata of one tensor "t".
struct Stored {
  std::vector<int64_t> offsets, sizes;
  int64_t begin = 0, bytes = 0;
  std::string file = "__0_0.distcp";
};

std::string metadata_of(const std::vector<int64_t>& shape, const std::vector<Stored>& parts,
                        const std::string& extra = "") {
  const auto object = [](PickleWriter& pickle, const char* module, const char* name) -> PickleWriter& {
    return pickle.global(concat("torch.distributed.checkpoint.", module), name).op(")\x81}(");
  };
  PickleWriter pickle;
  object(pickle, "metadata", "Metadata").text("state_dict_metadata").op("}(").text("t");
  object(pickle, "metadata", "TensorStorageMetadata").text("properties");
  pickle.global("torch.distributed.checkpoint.metadata", "TensorProperties").op(")\x81(");
  pickle.global("torch", "float32").op("NNNNtb").text("size").size(shape).text("chunks").op("](");
  for (const Stored& part : parts) {
    object(pickle, "metadata", "ChunkStorageMetadata").text("offsets").size(part.offsets);
    pickle.text("sizes").size(part.sizes).op("ub");
  }
  pickle.op("eubu").text("storage_data").op("}(");
  for (const Stored& part : parts) {
    object(pickle, "metadata", "MetadataIndex")
        .text("fqn")
        .text("t")
        .text("offset")
        .size(part.offsets)
        .op("ub");
    object(pickle, "filesystem", "_StorageInfo").text("relative_path").text(part.file).text("offset");
    pickle.number(part.begin).text("length").number(part.bytes).op(extra).op("ub");
  }
  return pickle.op("uub").finish();
}

TEST_F(TestOfDcpFolder, RefusesPartsThatDoNotCoverATensor) {
  const auto expect = [&](const std::vector<Stored>& parts, const std::string& text) {
    write_metadata(metadata_of({4, 4}, parts));
    expect_refused(text);
  };
  expect({}, "tensor t lacks");
  expect({{{0, 0}, {3, 4}}}, "tensor t lacks");
  expect({{{0, 0}, {2, 4}}, {{3, 0}, {1, 4}}}, "tensor t lacks");
  expect({{{0, 0}, {2, 4}}, {{1, 0}, {3, 4}}}, "tensor t is stored twice");
  expect({{{0, 0}, {2, 2}}, {{0, 2}, {2, 2}}, {{2, 0}, {2, 2}}}, "tensor t lacks 4");
  expect({{{0, 0}, {2, 3}}, {{0, 2}, {2, 2}}, {{2, 0}, {2, 4}}}, "tensor t is stored twice");
  expect({{{0, 0}, {4, 4}}, {{0, 0}, {4, 4}}}, "a part of t twice");
  expect({{{0, 0}, {5, 4}}}, "which is not in its shape [4, 4]");
  expect({{{-1, 0}, {4, 4}}}, "which is not in its shape");
  expect({{{0, 0}, {-4, -4}}}, "which is not in its shape");
  expect({{{0}, {16}}}, "which is not in its shape");
  expect({{{INT64_MAX, 0}, {INT64_MAX, 4}}}, "which is not in its shape");
}

TEST_F(TestOfDcpFolder, RefusesShapesAndPlacesThatCannotBe) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  write_metadata(metadata_of({kHuge, kHuge}, {{{0, 0}, {kHuge, kHuge}}}));
  expect_refused("an impossible shape for t");
  write_metadata(metadata_of({-1, 4}, {}));
  expect_refused("an impossible shape for t");
  for (const auto& [begin, bytes] : std::vector<std::pair<int64_t, int64_t>>{
           {0, kHuge}, {kHuge, 100}, {-1, 100}, {0, -1}, {INT64_MAX, INT64_MAX}}) {
    write_metadata(metadata_of({4, 4}, {{{0, 0}, {4, 4}, begin, bytes}}));
    expect_refused("the file is cut off");
  }
  write_metadata(metadata_of({4, 4}, {{{0, 0}, {4, 4}, 0, 100}}));
  expect_refused("must be what torch.save() writes");
  // Another item of the same file: rows [3, 7].
  const int64_t other =
      static_cast<int64_t>(util::read_file(folder() / "__0_0.distcp").find("PK\x05\x06") + 22);
  write_metadata(metadata_of({4, 4}, {{{0, 0}, {4, 4}, 0, other}}));
  expect_refused("t must have 16 elements of type float32, as in .metadata, but has the shape");
}

TEST_F(TestOfDcpFolder, OpensNothingOutsideOfTheFolder) {
  for (const char* file : {"../dcp/__0_0.distcp", "/etc/passwd", "..", ".", "", ".metadata", "a\nb"}) {
    write_metadata(metadata_of({4}, {{{0}, {4}, 0, 100, file}}));
    expect_refused("in a file whose name is not one of this folder");
  }
}

TEST_F(TestOfDcpFolder, RefusesWhatItCannotRead) {
  write_metadata(
      metadata_of({4}, {{{0}, {4}, 0, 100}}, "X\x15\0\0\0transform_descriptors]X\x04\0\0\0zstda"s));
  expect_refused("through an extension of PyTorch");
  write_metadata(metadata_of(
      {2, 2, 2},
      {{{0, 0, 0}, {2, 1, 1}}, {{0, 1, 0}, {2, 1, 1}}, {{0, 0, 1}, {2, 1, 1}}, {{0, 1, 1}, {2, 1, 1}}}));
  expect_refused("along several dimensions");
  write_metadata("\x80\x02N."s);
  expect_refused("must be the metadata of torch.distributed.checkpoint, but is something else");
}

/// Pickles whose values are shared: a list, a dict or a text that is there once is named many times.
class SharedValues {
 public:
  SharedValues() { raw("\x80\x02"); }
  SharedValues& raw(const std::string& bytes) {
    bytes_ += bytes;
    return *this;
  }
  SharedValues& text(const std::string& value) { return raw("X" + number(value.size()) + value); }
  SharedValues& integer(int64_t value) { return raw("J" + number(static_cast<size_t>(value))); }
  SharedValues& object(const std::string& name) {
    return raw("ctorch.distributed.checkpoint." + name + "\n)\x81}(");
  }
  std::string keep() {
    raw("r" + number(kept_));
    return "j" + number(kept_++);
  }
  std::string bytes() const { return bytes_ + "."; }

 private:
  static std::string number(size_t value) {
    std::string bytes;
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> 8 * i & 0xff);
    return bytes;
  }
  std::string bytes_;
  size_t kept_ = 0;
};

std::string repeated(const std::string& text, int times) {
  std::string many;
  for (int i = 0; i < times; ++i) many += text;
  return many;
}

TEST_F(TestOfDcpFolder, TakesNoLongerForSharedValuesThanForItsBytes) {
  constexpr int kMany = 30'000;
  // Many entries whose state has many fields.
  SharedValues fields;
  fields.object("metadata\nMetadata").text("state_dict_metadata").raw("}").text("storage_data").raw("}(");
  std::string shared;
  for (int i = 0; i < kMany; ++i) {
    fields.object("metadata\nMetadataIndex")
        .text("fqn")
        .text("a")
        .text("offset")
        .raw("(")
        .integer(i)
        .raw("t")
        .raw("ub");
    if (i > 0) {
      fields.raw(shared);
      continue;
    }
    fields.object("filesystem\n_StorageInfo")
        .text("relative_path")
        .text("x")
        .text("offset")
        .integer(0)
        .text("length");
    fields.integer(1).raw(repeated("N", 2 * kMany)).raw("ub");
    shared = fields.keep();
  }
  write_metadata(fields.raw("u").raw("ub").bytes());
  const auto begin = std::chrono::steady_clock::now();
  expect_refused("has an entry of storage_data that is something else");

  // Many tensors with one list of many empty chunks.
  SharedValues chunks;
  chunks.object("metadata\nMetadata")
      .text("storage_data")
      .raw("}")
      .text("state_dict_metadata")
      .raw("}(")
      .text("k0");
  chunks.object("metadata\nTensorStorageMetadata").text("properties");
  chunks.raw("ctorch.distributed.checkpoint.metadata\nTensorProperties\n)\x81(ctorch\nfloat32\ntb");
  chunks.text("size").raw("(").integer(0).raw("t").text("chunks").raw("](");
  chunks.object("metadata\nChunkStorageMetadata").text("offsets").raw("(").integer(0).raw("t");
  chunks.text("sizes").raw("(").integer(0).raw("t").raw("ub");
  const std::string chunk = chunks.keep();
  chunks.raw(repeated(chunk, kMany)).raw("e").raw("ub");
  const std::string tensor = chunks.keep();
  for (int i = 1; i < kMany; ++i) chunks.text("k" + std::to_string(i)).raw(tensor);
  write_metadata(chunks.raw("u").raw("ub").bytes());
  expect_refused("has more chunks of tensors than it has bytes");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(TestOfDcpFolder, RefusesPartsInTheSameBytes) {
  // The place of one value becomes that of another: each would be read, and a file of a few would take long.
  const DcpMetadata metadata = parse_dcp_metadata(util::read_file(folder() / kDcpMetadataName), "metadata");
  EXPECT_GT(metadata.values.size(), 1u);
  SharedValues same;
  same.object("metadata\nMetadata").text("state_dict_metadata").raw("}(");
  for (const char* key : {"a", "b"})
    same.text(key).raw("ctorch.distributed.checkpoint.metadata\nBytesStorageMetadata\n)\x81");
  same.raw("u").text("storage_data").raw("}(");
  for (const char* key : {"a", "b"}) {
    same.object("metadata\nMetadataIndex").text("fqn").text(key).raw("ub");
    same.object("filesystem\n_StorageInfo").text("relative_path").text("x").text("offset").integer(0);
    same.text("length").integer(100).raw("ub");
  }
  write_metadata(same.raw("u").raw("ub").bytes());
  expect_refused("stores two parts in the same bytes of x");
}

}  // namespace
}  // namespace fsdp::checkpoint
