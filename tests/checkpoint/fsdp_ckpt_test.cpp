// The program fsdp-ckpt as a user runs it: what it prints where, and its exit codes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "checkpoint/weights.h"
#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FsdpCkpt : public ::testing::Test {
 protected:
  void SetUp() override {
    program_ = fs::read_symlink("/proc/self/exe").parent_path() / "fsdp-ckpt";
    ASSERT_TRUE(fs::exists(program_)) << "build the target fsdp-ckpt first";
  }

  /// Runs the program with arguments as a shell reads them; keeps its outputs in out_ and err_.
  int run(const std::string& arguments) {
    fs::path out = root_.path() / ".stdout", err = root_.path() / ".stderr";
    std::string command =
        util::concat(quoted(program_), " ", arguments, " >", quoted(out), " 2>", quoted(err), " </dev/null");
    int status = std::system(command.c_str());
    out_ = util::read_file(out);
    err_ = util::read_file(err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string quoted(const fs::path& path) { return util::concat("'", path.string(), "'"); }

  TemporaryFolder root_;
  fs::path program_;
  std::string out_, err_;
};

TEST_F(FsdpCkpt, ConsolidatesTheNewestCheckpointOfARun) {
  fs::path run_folder = root_.path() / "run";
  save_checkpoint(run_folder, {{"model/w", at::zeros({5})}}, 2, 10);
  fs::path newest = save_checkpoint(run_folder, {{"model/w", at::ones({5})}}, 2, 20);
  ASSERT_EQ(run("consolidate " + quoted(run_folder) + " " + quoted(root_.path() / "hf")), 0) << err_;
  EXPECT_THAT(err_, HasSubstr(newest.string()));
  EXPECT_THAT(out_, AllOf(HasSubstr("model.safetensors: 1 tensors, 20 B"), HasSubstr("config.json")));
  at::Tensor read = at::zeros({5});
  open_weights(root_.path() / "hf").read_into("w", read);
  EXPECT_TRUE(same_bits(read, at::ones({5})));

  EXPECT_EQ(run("consolidate " + quoted(run_folder) + " " + quoted(root_.path() / "hf")), 4);
  EXPECT_EQ(
      run("consolidate --force --dtype float16 " + quoted(run_folder) + " " + quoted(root_.path() / "hf")), 0)
      << err_;
  EXPECT_EQ(open_weights(root_.path() / "hf").dtype("w"), at::kHalf);
}

TEST_F(FsdpCkpt, InspectsCheckpointsAndSafetensors) {
  fs::path step = save_checkpoint(root_.path(), assorted_tensors(), 2);
  ASSERT_EQ(run("inspect " + quoted(step)), 0) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("step 100, world size 2, layout flat, 2 files, 10 tensors"),
                          HasSubstr("model/embed_tokens.weight"), HasSubstr("bfloat16 [5, 3, 2]")));
  ASSERT_EQ(run("inspect --json " + quoted(root_.path())), 0) << err_;
  auto description = nlohmann::json::parse(out_);
  EXPECT_EQ(description["step"], 100);
  EXPECT_EQ(description["world_size"], 2);
  EXPECT_EQ(description["tensors"].size(), 10u);
  EXPECT_EQ(description["tensors"][0]["name"], "model/embed_tokens.weight");
  EXPECT_EQ(description["tensors"][0]["bytes"], 13 * 7 * 4);

  fs::path file = root_.path() / "w.safetensors";
  ASSERT_EQ(run("consolidate " + quoted(step) + " " + quoted(file)), 0) << err_;
  ASSERT_EQ(run("inspect --json " + quoted(file)), 0) << err_;
  EXPECT_EQ(nlohmann::json::parse(out_)["tensors"].size(), 6u);
}

TEST_F(FsdpCkpt, VerifiesAndNamesEveryDamagedFile) {
  fs::path step = save_checkpoint(root_.path(), assorted_tensors(), 3);
  EXPECT_EQ(run("verify " + quoted(step)), 0);
  EXPECT_THAT(out_, HasSubstr("is whole"));
  flip_byte(step / "rank-00000.h5", 3000);
  fs::remove(step / "rank-00002.h5");
  EXPECT_EQ(run("verify " + quoted(step)), 4);
  EXPECT_EQ(out_, "");
  EXPECT_THAT(err_, AllOf(HasSubstr("rank-00000.h5 is damaged"), HasSubstr("rank-00002.h5: No such file"),
                          HasSubstr("2 problem(s)")));
}

TEST_F(FsdpCkpt, AnswersWithTheExitCodesOfTheDesign) {
  fs::path step = save_checkpoint(root_.path(), {{"model/w", at::ones({5})}}, 1);
  const std::string absent = quoted(root_.path() / "absent");
  EXPECT_EQ(run("--help"), 0);
  EXPECT_EQ(run(""), 2);
  EXPECT_EQ(run("frobnicate"), 2);
  EXPECT_EQ(run("inspect --jsno " + quoted(step)), 2);
  EXPECT_EQ(run("consolidate --dtype int8 " + quoted(step) + " " + absent), 2);
  EXPECT_EQ(run("verify " + absent), 4);
  EXPECT_EQ(run("inspect " + absent), 4);
  EXPECT_EQ(run("consolidate " + absent + " " + absent), 4);
  EXPECT_EQ(run("consolidate " + quoted(step) + " /dev/null/out.safetensors"), 7);
  EXPECT_THAT(err_, HasSubstr("/dev/null"));
}

TEST_F(FsdpCkpt, FailsWhenItsResultCannotBePrinted) {
  fs::path step = save_checkpoint(root_.path(), {{"model/w", at::ones({5})}}, 1);
  std::string command = util::concat(quoted(program_), " inspect ", quoted(step), " >/dev/full 2>/dev/null");
  int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace
}  // namespace fsdp::checkpoint
