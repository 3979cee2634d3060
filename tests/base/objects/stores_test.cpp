// The stores of s3:// and hf:// names, and local copies, against tests/support/object_server.py.

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/objects/local_copy.h"
#include "base/objects/object_cache.h"
#include "base/objects/object_name.h"
#include "base/objects/object_store.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "support/object_server.h"
#include "support/temporary_folder.h"

namespace fsdp::objects {
namespace {

namespace fs = std::filesystem;
using fsdp::testing::ObjectServer;
using fsdp::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

/// One server for all tests: a process connects to each kind of store once.
struct Stores {
  Stores() {
    for (const char* folder :
         {"bucket/data", "hub/models/owner/model/onnx", "hub/models/gated/model",
          "hub/datasets/owner/set/parts", "bucket/run/step-00000010", "bucket/run/step-00000020"}) {
      fs::create_directories(files / folder);
    }
    files.write("bucket/data/a b.txt", "hello");
    files.write("bucket/data/large.bin", large);
    for (int i = 0; i < 12; ++i) files.write("bucket/data/part" + std::to_string(i), "x");
    for (const char* name :
         {"config.json", "tokenizer.json", "README.md", ".gitattributes", "onnx/model.json"}) {
      files.write(std::string("hub/models/owner/model/") + name, "{}");
    }
    files.write("hub/models/owner/model/model.safetensors", large);
    files.write("hub/models/owner/model/pytorch_model.bin", large);
    files.write("hub/models/gated/model/config.json", "{}");
    files.write("hub/datasets/owner/set/parts/train.jsonl", "{\"text\": \"a\"}\n");
    server = std::make_unique<ObjectServer>(files.path().string());
    for (const auto& [name, value] : server->environment(cache.path().string())) {
      ::setenv(name.c_str(), value->c_str(), 1);
    }
    ::setenv("FSDP_CACHE_GIB", "1", 1);
  }
  static Stores& get() {
    static Stores stores;
    return stores;
  }

  const std::string large = std::string(20 << 20, 'l') + "end";
  TemporaryFolder files, cache;
  std::unique_ptr<ObjectServer> server;
};

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const ListedObject& object : object_store(folder).list(folder)) names.push_back(object.name);
  std::ranges::sort(names);
  return names;
}

std::string content_of(const std::string& name) {
  const auto object = object_store(name).find(name);
  if (!object) return "missing";
  std::string text(static_cast<size_t>(object->size_bytes), '\0');
  object_store(name).read(name, *object, 0, object->size_bytes, text.data());
  return text;
}

class RemoteStores : public ::testing::Test {
 protected:
  ~RemoteStores() override { stores_.server->set({{"faults", nlohmann::json::array()}}); }
  Stores& stores_ = Stores::get();
};

TEST_F(RemoteStores, S3ReadsListsWritesAndRemoves) {
  EXPECT_EQ(content_of("s3://bucket/data/a b.txt"), "hello");
  EXPECT_EQ(names_in("s3://bucket/data").size(), 14u);
  EXPECT_EQ(content_of("s3://bucket/no"), "missing");
  const fs::path file = stores_.files.write("upload", stores_.large);
  object_store("s3://bucket").upload("s3://bucket/new/large", file);
  EXPECT_EQ(content_of("s3://bucket/new/large"), stores_.large);
  object_store("s3://bucket").upload("s3://bucket/new/empty", stores_.files.write("empty", ""));
  EXPECT_EQ(content_of("s3://bucket/new/empty"), "");
  EXPECT_THAT(names_in("s3://bucket/new"), ElementsAre("empty", "large"));
  object_store("s3://bucket").remove("s3://bucket/new/large");
  object_store("s3://bucket").remove("s3://bucket/new/large");
  object_store("s3://bucket").remove("s3://bucket/new/empty");
  EXPECT_TRUE(names_in("s3://bucket/new").empty());
}

TEST_F(RemoteStores, S3NeverWritesAPartOfAnObject) {
  const fs::path file = stores_.files.write("upload", stores_.large);
  stores_.server->set({{"faults", {"503", "reset"}}, {"fault_share", 0.3}, {"seed", 3}});
  for (int i = 0; i < 5; ++i) {
    const std::string name = "s3://bucket/faulty/" + std::to_string(i);
    object_store(name).upload(name, file);
    EXPECT_EQ(content_of(name), stores_.large);
  }
  EXPECT_GT(stores_.server->counts()["faults"].get<int>(), 5);
}

TEST_F(RemoteStores, S3RefusesAnObjectThatHasChanged) {
  const std::string name = "s3://bucket/changing";
  stores_.server->set({{"write", {{"bucket/changing", {"first", 1}}}}});
  const auto object = object_store(name).find(name);
  ASSERT_TRUE(object);
  stores_.server->set({{"write", {{"bucket/changing", {"other", 1}}}}});
  std::string text(5, '\0');
  try {
    object_store(name).read(name, *object, 0, 5, text.data());
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_THAT(error.what(), HasSubstr(name));
  }
}

TEST_F(RemoteStores, S3ProvesTheVersionOfPartsThatAreReadAtOnceBySharedRequests) {
  const std::string name = "s3://bucket/data/large.bin";
  const auto object = object_store(name).find(name);
  ASSERT_TRUE(object);
  stores_.server->set({{"latency_ms", 20}});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      std::string part(1000, '\0');
      for (int i = 0; i < 5; ++i)
        object_store(name).read(name, *object, 1000 * (5 * thread + i), 1000, part.data());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const nlohmann::json counts = stores_.server->counts()["by_method"];
  stores_.server->set({{"latency_ms", 0}});
  EXPECT_EQ(counts["GET"], 40);
  EXPECT_GE(counts["HEAD"], 5);
  EXPECT_LE(counts["HEAD"], 24);
}

TEST_F(RemoteStores, TheHubListsAllPagesAndSendsItsTokenToNoOtherHost) {
  EXPECT_THAT(names_in("hf://owner/model"),
              ElementsAre(".gitattributes", "README.md", "config.json", "model.safetensors",
                          "onnx/model.json", "pytorch_model.bin", "tokenizer.json"));
  EXPECT_THAT(names_in("hf://datasets/owner/set/parts"), ElementsAre("train.jsonl"));
  // The server refuses the token at the address to which it redirects large files.
  EXPECT_EQ(content_of("hf://owner/model/model.safetensors"), stores_.large);
  EXPECT_EQ(content_of("hf://gated/model/config.json"), "{}");
  EXPECT_EQ(content_of("hf://owner/model/none"), "missing");
}

TEST_F(RemoteStores, TheHubIsReadFromTheCommitThatWasFound) {
  const auto object = object_store("hf://a/b").find("hf://owner/model@main/config.json");
  ASSERT_TRUE(object);
  EXPECT_THAT(object->address, HasSubstr("/resolve/0123456789abcdef"));
}

TEST_F(RemoteStores, RefuseNamesThatTheHubDoesNotHave) {
  for (const char* name : {"hf://model", "hf://datasets/set", "hf://spaces/owner/x/f"}) {
    EXPECT_THROW(object_store(name).find(name), Error) << name;
  }
}

TEST_F(RemoteStores, CopyWhatAModelNeeds) {
  const fs::path copy = local_copy("hf://owner/model");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(copy)) {
    if (entry.path().filename().string()[0] != '.') names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, UnorderedElementsAre("config.json", "model.safetensors", "tokenizer.json"));
  EXPECT_EQ(util::read_file(copy / "model.safetensors"), stores_.large);
}

TEST_F(RemoteStores, CopyAFileWithThoseBesideIt) {
  const fs::path copy = local_copy("hf://owner/model@main/tokenizer.json");
  EXPECT_EQ(util::read_file(copy), "{}");
  EXPECT_TRUE(fs::exists(copy.parent_path() / "config.json"));
  EXPECT_FALSE(fs::exists(copy.parent_path() / "model.safetensors"));
  EXPECT_EQ(local_copy("some/path"), "some/path");
  EXPECT_THROW(local_copy("s3://bucket/data/none"), Error);
  EXPECT_FALSE(copy_if_there("s3://bucket/data/none"));
}

TEST_F(RemoteStores, CopyAChangedObjectAgain) {
  stores_.server->set({{"write", {{"bucket/changed/a.txt", {"one", 1}}}}});
  EXPECT_EQ(util::read_file(*copy_if_there("s3://bucket/changed/a.txt")), "one");
  stores_.server->set({{"write", {{"bucket/changed/a.txt", {"two", 1}}}}});
  EXPECT_EQ(util::read_file(*copy_if_there("s3://bucket/changed/a.txt")), "two");
  const int64_t before = stores_.server->counts()["bytes"].get<int64_t>();
  EXPECT_EQ(util::read_file(*copy_if_there("s3://bucket/changed/a.txt")), "two");
  EXPECT_EQ(stores_.server->counts()["bytes"].get<int64_t>(), before);
}

TEST_F(RemoteStores, RefuseObjectsWhoseNamesLeadOutOfTheCache) {
  stores_.server->set(
      {{"write", {{"bucket/evil/manifest.json", {"{}", 1}}, {"bucket/evil/../../../x.json", {"{}", 1}}}}});
  try {
    local_copy("s3://bucket/evil");
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("within its folder"));
  }
}

TEST(NeededObjects, AreAllOfACheckpointAndTheDescribedWeightsOfAModel) {
  const auto needed = [](const std::vector<std::string>& names) {
    std::vector<ListedObject> listed;
    for (const std::string& name : names) listed.push_back({.name = name, .size_bytes = 10});
    std::vector<std::string> chosen;
    for (const ListedObject& object : needed_objects(listed)) chosen.push_back(object.name);
    return chosen;
  };
  EXPECT_THAT(needed({"manifest.json", "rank0.h5", "model_files/a"}),
              ElementsAre("manifest.json", "rank0.h5", "model_files/a"));
  EXPECT_THAT(needed({"config.json", "model.gguf", "model.bin"}), ElementsAre("config.json", "model.gguf"));
  EXPECT_THAT(needed({"config.json", "model.gguf", "model.safetensors"}),
              ElementsAre("config.json", "model.safetensors"));
}

}  // namespace
}  // namespace fsdp::objects
