// Checkpoints that are damaged or that lie: always kCheckpoint with a name to look for, never a crash.

#include "state/convert/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include "state/checkpoint/load.h"
#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Reads everything, as a run that resumes would.
std::pair<ErrorKind, std::string> load_all(const fs::path& folder, const NamedTensors& like) {
  return error_of([&] {
    NamedTensors loaded = zeros_like(like);
    load_slices(folder, read_manifest(folder), slices_of(loaded, 0, 1));
  });
}

class Damage : public ::testing::Test {
 protected:
  void expect_refused(const std::string& what) {
    auto [kind, text] = load_all(step_, tensors_);
    EXPECT_EQ(kind, ErrorKind::kCheckpoint) << text;
    EXPECT_THAT(text, HasSubstr(what));
    EXPECT_FALSE(find_damage(step_).empty());
  }
  TemporaryFolder root_;
  NamedTensors tensors_ = assorted_tensors();
  fs::path step_ = save_checkpoint(root_.path(), tensors_, 3);
};

TEST_F(Damage, AWholeCheckpointHasNone) { EXPECT_THAT(find_damage(step_), IsEmpty()); }

TEST_F(Damage, AnyFlippedByteOfAShardIsFound) {
  auto bytes = static_cast<int64_t>(fs::file_size(step_ / "rank-00001.h5"));
  for (int64_t offset = 0; offset < bytes; offset += 97) {
    flip_byte(step_ / "rank-00001.h5", offset);
    expect_refused("rank-00001.h5 is damaged");
    flip_byte(step_ / "rank-00001.h5", offset);
  }
  EXPECT_THAT(find_damage(step_), IsEmpty());
}

TEST_F(Damage, AnyFlippedByteOfTheManifestThatMattersIsFound) {
  const std::string good = util::read_file(step_ / kManifestName);
  for (size_t offset = 0; offset < good.size(); offset += 13) {
    std::string bad = good;
    bad[offset] = static_cast<char>(bad[offset] ^ 1);
    auto [kind, text] = error_of([&] { parse_manifest(bad, "it"); });
    // White space alone may change (a space has no such neighbour, a line end has the vertical tab).
    EXPECT_EQ(kind, ErrorKind::kCheckpoint) << "byte " << offset << ": " << text;
  }
}

TEST_F(Damage, ATruncatedShardIsNamed) {
  fs::resize_file(step_ / "rank-00002.h5", fs::file_size(step_ / "rank-00002.h5") - 1);
  expect_refused("rank-00002.h5 has");
  EXPECT_THAT(incompleteness(step_), HasSubstr("rank-00002.h5 has"));
}

TEST_F(Damage, AMissingShardIsNamed) {
  fs::remove(step_ / "rank-00002.h5");
  expect_refused("rank-00002.h5");
}

TEST_F(Damage, AFolderInAShardsPlaceIsRefused) {
  fs::remove(step_ / "rank-00002.h5");
  fs::create_directory(step_ / "rank-00002.h5");
  expect_refused("rank-00002.h5 must be a file");
}

TEST_F(Damage, AllDamagedFilesAreListed) {
  fs::remove(step_ / "rank-00002.h5");
  flip_byte(step_ / "rank-00000.h5", static_cast<int64_t>(fs::file_size(step_ / "rank-00000.h5")) / 2);
  EXPECT_THAT(find_damage(step_), SizeIs(2));
}

TEST_F(Damage, AShardThatIsNotHdf5IsRefusedEvenWithAMatchingHash) {
  std::ofstream(step_ / "rank-00001.h5") << "not HDF5 at all";
  bless_file(step_, "rank-00001.h5");
  expect_refused("cannot open the checkpoint shard");
}

struct Lie {
  const char* name;
  void (*tell)(nlohmann::json& manifest);
  const char* answer;
};

class LyingManifest : public ::testing::TestWithParam<Lie> {};

TEST_P(LyingManifest, IsRefusedByName) {
  TemporaryFolder root;
  NamedTensors tensors = assorted_tensors();
  fs::path folder = save_checkpoint(root.path(), tensors, 2);
  edit_manifest(folder, GetParam().tell);
  auto [kind, text] = load_all(folder, tensors);
  EXPECT_EQ(kind, ErrorKind::kCheckpoint) << text;
  EXPECT_THAT(text, HasSubstr(GetParam().answer));
}

using Json = nlohmann::json;
Json& embedding(Json& m) { return m["tensors"]["model/embed_tokens.weight"]; }

const Lie kLies[] = {
    {"another_format", [](Json& m) { m["format"] = "zip"; }, "is not a manifest"},
    {"newer_version", [](Json& m) { m["version"] = 5; }, "format version 5"},
    {"version_text", [](Json& m) { m["version"] = "1"; }, "\"version\" is not a whole number"},
    {"no_step", [](Json& m) { m.erase("step"); }, "no entry \"step\""},
    {"negative_step", [](Json& m) { m["step"] = -1; }, "impossible step"},
    {"huge_step", [](Json& m) { m["step"] = 18446744073709551615ULL; }, "\"step\" is not a whole number"},
    {"tensors_list", [](Json& m) { m["tensors"] = Json::array(); }, "\"tensors\" is not an object"},
    {"other_contents", [](Json& m) { m["contents"] = "gradients"; }, "but is \"gradients\""},
    {"no_files", [](Json& m) { m["files"] = Json::array(); }, "does not list"},
    {"file_outside", [](Json& m) { m["files"][0]["name"] = "../rank-00000.h5"; }, "../rank-00000.h5"},
    {"file_absolute", [](Json& m) { m["files"][0]["name"] = "/etc/passwd"; }, "/etc/passwd"},
    {"file_hidden", [](Json& m) { m["files"][0]["name"] = ".."; }, "\"..\""},
    {"file_nul", [](Json& m) { m["files"][0]["name"] = std::string("a\0b", 3); }, "cannot be a file"},
    {"file_twice", [](Json& m) { m["files"][1] = m["files"][0]; }, "twice"},
    {"file_bytes", [](Json& m) { m["files"][0]["bytes"] = -5; }, "-5 bytes"},
    {"unlisted_file", [](Json& m) { embedding(m)["ranges"][0]["file"] = "other.h5"; }, "embed_tokens"},
    {"swapped_files",
     [](Json& m) {
       embedding(m)["ranges"][0]["file"] = "rank-00001.h5";
       embedding(m)["ranges"][1]["file"] = "rank-00000.h5";
     },
     "embed_tokens.weight has 46 elements in 1 dimensions, but the manifest gives 45"},
    {"overlap", [](Json& m) { embedding(m)["ranges"][1]["begin"] = 45; },
     "embed_tokens.weight is stored twice"},
    {"gap", [](Json& m) { embedding(m)["ranges"][1]["begin"] = 47; },
     "embed_tokens.weight lacks elements 46 to 47, before those in rank-00001.h5"},
    {"no_end", [](Json& m) { embedding(m)["ranges"].erase(1); },
     "embed_tokens.weight lacks elements 46 to 91"},
    {"past_the_end", [](Json& m) { embedding(m)["ranges"][1]["end"] = 92; }, "impossible range"},
    {"backwards", [](Json& m) { embedding(m)["ranges"][1]["end"] = 3; }, "impossible range"},
    {"empty_range", [](Json& m) { embedding(m)["ranges"][0]["end"] = 0; }, "impossible range"},
    {"range_text", [](Json& m) { embedding(m)["ranges"][0]["begin"] = "0"; }, "embed_tokens"},
    {"range_number", [](Json& m) { embedding(m)["ranges"][0] = 7; }, "embed_tokens"},
    {"fraction", [](Json& m) { embedding(m)["ranges"][0]["end"] = 46.5; }, "embed_tokens"},
    {"unknown_dtype", [](Json& m) { embedding(m)["dtype"] = "float8"; }, "float8"},
    {"wrong_dtype", [](Json& m) { embedding(m)["dtype"] = "int32"; }, "int32 [13, 7] in the checkpoint"},
    {"half_for_bfloat16", [](Json& m) { m["tensors"]["model/layers.0.q.weight"]["dtype"] = "float16"; },
     "model/layers.0.q.weight (float16"},
    {"wrong_shape",
     [](Json& m) {
       embedding(m)["shape"] = {7, 13};
     },
     "[7, 13] in the checkpoint"},
    {"negative_shape",
     [](Json& m) {
       embedding(m)["shape"] = {-13, -7};
     },
     "impossible shape"},
    {"huge_shape",
     [](Json& m) {
       embedding(m)["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
     },
     "impossible shape"},
    {"shape_number", [](Json& m) { embedding(m)["shape"] = 91; }, "\"shape\" is not a list"},
    {"name_outside", [](Json& m) { m["tensors"]["../model/x"] = embedding(m); }, "../model/x"},
    {"name_absolute", [](Json& m) { m["tensors"]["/model/x"] = embedding(m); }, "/model/x"},
    {"name_empty", [](Json& m) { m["tensors"][""] = embedding(m); }, "cannot be the name of a tensor"},
    {"name_dot", [](Json& m) { m["tensors"]["model/./x"] = embedding(m); }, "model/./x"},
};

INSTANTIATE_TEST_SUITE_P(Damage, LyingManifest, ::testing::ValuesIn(kLies),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(LyingManifests, CannotPromiseATensorThatNoShardHolds) {
  TemporaryFolder root;
  NamedTensors tensors = assorted_tensors();
  fs::path folder = save_checkpoint(root.path(), tensors, 2);
  edit_manifest(folder, [](Json& m) { m["tensors"]["model/ghost"] = embedding(m); });
  NamedTensors wanted{{"model/ghost", at::zeros({13, 7})}};
  auto [kind, text] = load_all(folder, wanted);
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, AllOf(HasSubstr("no data set for the tensor model/ghost"), HasSubstr("rank-00000.h5")));
}

TEST(LyingManifests, CannotChangeTheTypeOfADataSet) {
  TemporaryFolder root;
  fs::path folder = save_checkpoint(root.path(), assorted_tensors(), 2);
  edit_manifest(folder, [](Json& m) { m["tensors"]["model/layers.0.q.weight"]["dtype"] = "float16"; });
  NamedTensors wanted{{"model/layers.0.q.weight", at::zeros({5, 3, 2}, at::kHalf)}};
  auto [kind, text] = load_all(folder, wanted);
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("model/layers.0.q.weight is not of type float16"));
}

TEST(LyingManifests, NestedToTheSkyAreRefusedEarly) {
  std::string tower(1'000'000, '[');
  tower.insert(0, "{\"training\": ");
  auto [kind, text] = error_of([&] { parse_manifest(tower, "the manifest"); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("nests deeper"));
}

/// A shard of one tensor whose data set is replaced by what `make` creates in the group "model".
template <typename Make>
std::pair<ErrorKind, std::string> load_altered_shard(const Make& make) {
  TemporaryFolder root;
  NamedTensors tensors{{"model/w", at::ones({8})}};
  fs::path folder = save_checkpoint(root.path(), tensors, 1);
  fs::path victim = root.path() / "victim.h5";
  fs::copy_file(folder / "rank-00000.h5", victim);
  hid_t file = H5Fopen((folder / "rank-00000.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  EXPECT_GE(H5Ldelete(file, "model/w", H5P_DEFAULT), 0);
  make(file, victim.string());
  EXPECT_GE(H5Fclose(file), 0);
  bless_file(folder, "rank-00000.h5");
  return load_all(folder, tensors);
}

TEST(AlteredShards, WithAnExternalLinkAreRefused) {
  auto [kind, text] = load_altered_shard([](hid_t file, const std::string& victim) {
    EXPECT_GE(H5Lcreate_external(victim.c_str(), "model/w", file, "model/w", H5P_DEFAULT, H5P_DEFAULT), 0);
  });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("model/w\" on the way to the tensor model/w is a link"));
}

TEST(AlteredShards, WithASoftLinkInAFoldersPlaceAreRefused) {
  auto [kind, text] = load_altered_shard([](hid_t file, const std::string&) {
    EXPECT_GE(H5Lmove(file, "model", file, "moved", H5P_DEFAULT, H5P_DEFAULT), 0);
    EXPECT_GE(H5Lcreate_soft("moved", file, "model", H5P_DEFAULT, H5P_DEFAULT), 0);
  });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("\"model\" on the way"));
}

TEST(AlteredShards, WithAGroupInATensorsPlaceAreRefused) {
  auto [kind, text] = load_altered_shard([](hid_t file, const std::string&) {
    H5Gclose(H5Gcreate2(file, "model/w", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("model/w"));
}

TEST(AlteredShards, WithExternalStorageOrFiltersAreRefused) {
  for (bool external : {true, false}) {
    auto [kind, text] = load_altered_shard([&](hid_t file, const std::string& victim) {
      hsize_t numel = 8;
      hid_t space = H5Screate_simple(1, &numel, nullptr);
      hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
      if (external) {
        EXPECT_GE(H5Pset_external(creation, victim.c_str(), 0, 32), 0);
      } else {
        EXPECT_GE(H5Pset_chunk(creation, 1, &numel), 0);
        EXPECT_GE(H5Pset_deflate(creation, 9), 0);
      }
      hid_t set = H5Dcreate2(file, "model/w", H5T_IEEE_F32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
      EXPECT_GE(set, 0);
      H5Dclose(set);
      H5Pclose(creation);
      H5Sclose(space);
    });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(text, HasSubstr("tensor model/w is not stored plainly"));
  }
}

}  // namespace
}  // namespace fsdp::checkpoint
