// The program fsdp-ckpt as a user runs it: what it prints where, and its exit codes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "model/families/families.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/weights/weights.h"
#include "support/checkpoint_fixtures.h"
#include "support/run_program.h"
#include "support/safetensors_files.h"
#include "support/source_folder.h"
#include "support/tiny_models.h"

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
        concat(quoted(program_), " ", arguments, " >", quoted(out), " 2>", quoted(err), " </dev/null");
    int status = std::system(command.c_str());
    out_ = util::read_file(out);
    err_ = util::read_file(err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string quoted(const fs::path& path) { return concat("'", path.string(), "'"); }

  TemporaryFolder root_;
  fs::path program_;
  std::string out_, err_;
};

TEST_F(FsdpCkpt, PrintsTheModelOfAFolderAsASectionOfAConfig) {
  nn::ModelOptions options = tiny_options();
  options.qkv_bias = true;
  NamedTensors weights;
  auto model = make_initialized(options);
  for (const auto& parameter : model->named_parameters()) {
    weights.emplace_back(parameter.key(), parameter.value().detach());
  }
  fs::create_directory(root_.path() / "hf");
  write_safetensors(root_.path() / "hf/model.safetensors", weights);
  root_.write("hf/config.json", hugging_face_config(options).dump());
  ASSERT_EQ(run("config " + quoted(root_.path() / "hf")), 0) << err_;
  for (const char* line :
       {"[model]\n", "hidden_size = 12\n", "num_key_value_heads = 1\n", "qkv_bias = true\n"}) {
    EXPECT_THAT(out_, HasSubstr(line));
  }
  EXPECT_THAT(out_, HasSubstr("init_from = \"" + (root_.path() / "hf").string() + "\"\n"));
  EXPECT_EQ(run("config " + quoted(root_.path())), 4);
}

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
                          HasSubstr("\nmodel/ "), HasSubstr("\n  embed_tokens.weight "),
                          HasSubstr("bfloat16 [5, 3, 2]"),
                          HasSubstr("\noptimizer state exp_avg: 1 tensor, 364 B\n")));
  ASSERT_EQ(run("inspect --json " + quoted(root_.path())), 0) << err_;
  auto description = nlohmann::json::parse(out_);
  EXPECT_EQ(description["step"], 100);
  EXPECT_EQ(description["world_size"], 2);
  EXPECT_EQ(description["contents"], "state");
  EXPECT_EQ(description["optimizer"]["exp_avg"]["bytes"], 364);
  EXPECT_EQ(description["tensors"].size(), 10u);
  EXPECT_EQ(description["tensors"][0]["name"], "model/embed_tokens.weight");
  EXPECT_EQ(description["tensors"][0]["bytes"], 13 * 7 * 4);
  EXPECT_EQ(out_, description.dump(2) + "\n");

  fs::path file = root_.path() / "w.safetensors";
  ASSERT_EQ(run("consolidate " + quoted(step) + " " + quoted(file)), 0) << err_;
  ASSERT_EQ(run("inspect --json " + quoted(file)), 0) << err_;
  EXPECT_EQ(nlohmann::json::parse(out_)["tensors"].size(), 6u);
}

TEST_F(FsdpCkpt, VerifiesAndNamesEveryDamagedFile) {
  fs::path step = save_checkpoint(root_.path(), assorted_tensors(), 3);
  EXPECT_EQ(run("verify " + quoted(step)), 0);
  EXPECT_THAT(out_, HasSubstr("is intact"));
  flip_byte(step / "rank-00000.h5", 3000);
  fs::remove(step / "rank-00002.h5");
  EXPECT_EQ(run("verify " + quoted(step)), 4);
  EXPECT_EQ(out_, "");
  EXPECT_THAT(err_, AllOf(HasSubstr("rank-00000.h5 is damaged"), HasSubstr("rank-00002.h5: No such file"),
                          HasSubstr("2 problem(s)")));
}

TEST_F(FsdpCkpt, InspectsNumberedLayersInTheirOrder) {
  NamedTensors tensors;
  for (int i : {10, 9, 0}) tensors.emplace_back(concat("model/h.", i, ".w"), at::ones({1}));
  fs::path step = save_checkpoint(root_.path(), tensors, 1);
  ASSERT_EQ(run("inspect " + quoted(step)), 0) << err_;
  EXPECT_LT(out_.find("0.w "), out_.find("9.w "));
  EXPECT_LT(out_.find("9.w "), out_.find("10.w "));
}

TEST_F(FsdpCkpt, VerifyTellsDamageAsJsonToo) {
  fs::path step = save_checkpoint(root_.path(), assorted_tensors(), 2);
  ASSERT_EQ(run("verify --json " + quoted(step)), 0);
  EXPECT_TRUE(nlohmann::json::parse(out_)["whole"]);
  fs::remove(step / "rank-00001.h5");
  EXPECT_EQ(run("verify --json " + quoted(step)), 4);
  auto result = nlohmann::json::parse(out_);
  EXPECT_FALSE(result["whole"]);
  EXPECT_EQ(result["problems"].size(), 1u);
}

TEST_F(FsdpCkpt, DiffAnswersByItsExitCode) {
  fs::path a = save_checkpoint(root_.path() / "a", {{"model/w", at::ones({5})}}, 2);
  fs::path b = save_checkpoint(root_.path() / "b", {{"model/w", at::full({5}, 1.25)}}, 1);
  EXPECT_EQ(run("diff " + quoted(a) + " " + quoted(a)), 0) << err_;
  EXPECT_EQ(run("diff " + quoted(a) + " " + quoted(b)), 1) << err_;
  EXPECT_THAT(out_, HasSubstr("model/w: 5 elements differ, by at most 0.25 (relative 0.2)"));
  EXPECT_EQ(run("diff --tolerance 0.25 " + quoted(a) + " " + quoted(b)), 0);
  EXPECT_EQ(run("diff --json " + quoted(a) + " " + quoted(b)), 1);
  EXPECT_EQ(nlohmann::json::parse(out_)["different"][0]["differing"], 5);
  EXPECT_EQ(run("diff " + quoted(a) + " " + quoted(root_.path() / "absent")), 4);
  EXPECT_EQ(run("diff --tolerance -1 " + quoted(a) + " " + quoted(b)), 2);
}

TEST_F(FsdpCkpt, ReshardsAndPrintsWhatItMade) {
  fs::path a = save_checkpoint(root_.path() / "a", assorted_tensors(), 2);
  fs::path b = root_.path() / "b";
  EXPECT_EQ(run("reshard " + quoted(a) + " " + quoted(b)), 2);
  EXPECT_EQ(run("reshard --world-size x " + quoted(a) + " " + quoted(b)), 2);
  ASSERT_EQ(run("reshard --json --world-size 3 " + quoted(a) + " " + quoted(b)), 0) << err_;
  auto result = nlohmann::json::parse(out_);
  EXPECT_EQ(result["output"], b.string());
  EXPECT_EQ(result["files"], 3);
  EXPECT_EQ(run("verify " + quoted(b)), 0);
  EXPECT_EQ(run("diff " + quoted(a) + " " + quoted(b)), 0) << out_;
  EXPECT_EQ(run("reshard --world-size 4 " + quoted(a) + " " + quoted(b)), 4);
}

TEST_F(FsdpCkpt, ImportsAndExports) {
  const nn::ModelOptions options = tiny_options("gpt2");
  NamedTensors tensors;
  for (const auto& [name, shape] : nn::weight_shapes(options)) {
    tensors.emplace_back("model/" + name, at::rand(shape));
  }
  fs::path step = save_checkpoint(root_.path(), tensors, 3);
  edit_manifest(step, [&](nlohmann::json& manifest) { manifest["model"] = hugging_face_config(options); });
  fs::path hf = root_.path() / "hf", imported = root_.path() / "imported";
  ASSERT_EQ(run("export --json --max-shard-size 4KB " + quoted(step) + " " + quoted(hf)), 0) << err_;
  auto result = nlohmann::json::parse(out_);
  EXPECT_EQ(result["config"], (hf / "config.json").string());
  EXPECT_GT(result["files"], 2);
  ASSERT_EQ(run("import --world-size 2 " + quoted(hf) + " " + quoted(imported)), 0) << err_;
  EXPECT_EQ(run("diff " + quoted(step) + " " + quoted(imported)), 0) << out_;
  ASSERT_EQ(run("inspect " + quoted(imported)), 0);
  EXPECT_THAT(out_, HasSubstr("weights only"));
  EXPECT_EQ(run("export --max-shard-size much " + quoted(step) + " " + quoted(hf)), 2);
}

TEST_F(FsdpCkpt, AveragesTheLastCheckpointsOfARun) {
  for (int64_t step : {1, 2, 3})
    save_checkpoint(root_.path(), {{"model/w", at::full({2}, static_cast<double>(step))}}, 2, step);
  const fs::path mean = root_.path() / "mean.safetensors";
  ASSERT_EQ(run("average --last 2 " + quoted(root_.path()) + " --json --output " + quoted(mean)), 0) << err_;
  const auto result = nlohmann::json::parse(out_);
  EXPECT_EQ(result["tensors"], 1);
  EXPECT_EQ(result["inputs"].size(), 2u);
  const fs::path two = root_.path() / "step-00000002", three = root_.path() / "step-00000003";
  ASSERT_EQ(
      run("average " + quoted(two) + " " + quoted(three) + " --output " + quoted(root_.path() / "folder")),
      0);
  EXPECT_THAT(out_, HasSubstr("the mean of 2 checkpoints, 1 tensors"));
  EXPECT_EQ(run("diff " + quoted(mean) + " " + quoted(root_.path() / "folder")), 0) << out_;
  EXPECT_EQ(run("average --last 4 " + quoted(root_.path()) + " --output x"), 4);
  EXPECT_THAT(err_, HasSubstr("expected at least 4 complete checkpoints; found 3"));
  EXPECT_EQ(run("average --last 2 " + quoted(two) + " " + quoted(three) + " --output x"), 2);
  EXPECT_EQ(run("average " + quoted(two) + " --output x"), 2);
  EXPECT_THAT(err_, HasSubstr("with --last"));
}

TEST_F(FsdpCkpt, AveragesInMuchLessMemoryThanATensorTakes) {
  constexpr int64_t kBytes = int64_t{192} << 20;
  const std::string header =
      concat(R"({"w":{"dtype":"F32","shape":[)", kBytes / 4, R"(],"data_offsets":[0,)", kBytes, "]}}");
  for (const char* name : {"a.safetensors", "b.safetensors"}) {  // zeros that take no room on the disk
    root_.write(name, safetensors_bytes(header, ""));
    fs::resize_file(root_.path() / name, 8 + header.size() + kBytes);
  }
  const std::string a = root_.path() / "a.safetensors", b = root_.path() / "b.safetensors";
  const ProgramResult idle = testing::run({program_.string(), "inspect", a});
  const ProgramResult averaged =
      testing::run({program_.string(), "average", a, b, "--output", root_.path() / "mean.safetensors"});
  ASSERT_EQ(averaged.exit_code, 0) << averaged.err;
  EXPECT_LT(averaged.peak_resident_bytes - idle.peak_resident_bytes, kBytes / 2);
}

TEST_F(FsdpCkpt, DrawsProgressOnATerminalOnly) {
  if (!terminal_can_be_made()) GTEST_SKIP() << "no pseudo-terminals here";
  fs::path step = save_checkpoint(root_.path(), assorted_tensors(), 2);
  ProgramResult shown =
      testing::run({program_.string(), "verify", step.string()}, {.env = {}, .terminal_columns = 80});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_THAT(shown.out, AllOf(HasSubstr("verifying [##"), HasSubstr("is intact")));
  EXPECT_EQ(run("verify " + quoted(step)), 0);
  EXPECT_EQ(err_, "");
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
  std::string command = concat(quoted(program_), " inspect ", quoted(step), " >/dev/full 2>/dev/null");
  int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST_F(FsdpCkpt, ReadsAFolderOfPyTorchsDistributedCheckpoints) {
  const fs::path dcp = root_.path() / "dcp";
  fs::copy(source_folder() + "/tests/state/checkpoint/pytorch_dcp", dcp);
  ASSERT_EQ(run("inspect " + quoted(dcp)), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("torch.distributed.checkpoint, 4 tensors"));
  EXPECT_THAT(out_, HasSubstr("bfloat16 [2, 3, 4]"));
  EXPECT_EQ(run("verify " + quoted(dcp)), 0) << err_;
  EXPECT_EQ(run("consolidate " + quoted(dcp) + " " + quoted(root_.path() / "out.safetensors")), 4);
  EXPECT_EQ(run("config " + quoted(dcp)), 4);
  EXPECT_THAT(err_, HasSubstr("fsdp-ckpt import makes one of this toolkit of it"));
  EXPECT_EQ(run("import " + quoted(dcp) + " " + quoted(root_.path() / "ours")), 4);
  EXPECT_THAT(err_, HasSubstr("do not describe their model; give it with --config"));
}

TEST_F(FsdpCkpt, RefusesPicklesAndFoldersThatAreNotWholeWithCode4AndRunsNothing) {
  const fs::path dcp = root_.path() / "dcp", trace = root_.path() / "trace";
  const std::string source = source_folder() + "/tests/state/checkpoint/pytorch_dcp",
                    command = "touch " + trace.string();
  root_.write("config.json", hugging_face_config(tiny_options()).dump());
  const auto expect = [&](const std::string& arguments, const std::string& text) {
    EXPECT_EQ(run(arguments), 4) << arguments;
    EXPECT_THAT(err_, HasSubstr(text));
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_FALSE(fs::exists(trace));
  };
  const std::string import = concat("import ", quoted(dcp), " ", quoted(root_.path() / "ours"), " --config ",
                                    quoted(root_.path() / "config.json"));
  fs::copy(source, dcp);
  const std::string call =
      "X" + std::string(1, static_cast<char>(command.size())) + std::string(3, '\0') + command;
  std::ofstream(dcp / ".metadata", std::ios::binary) << "\x80\x02"
                                                        "cposix\nsystem\n"
                                                     << call << "\x85R.";
  expect(import, R"(names "posix.system")");
  expect("inspect " + quoted(dcp), R"(names "posix.system")");
  fs::copy(source + "/.metadata", dcp / ".metadata", fs::copy_options::overwrite_existing);
  fs::resize_file(dcp / "__0_0.distcp", 3000);
  EXPECT_EQ(run("verify " + quoted(dcp)), 4);
  EXPECT_THAT(err_, HasSubstr("the file is cut off"));
  fs::remove(dcp / "__0_0.distcp");
  EXPECT_EQ(run("verify " + quoted(dcp)), 4);
  EXPECT_THAT(err_, HasSubstr("__0_0.distcp: No such file"));
}

}  // namespace
}  // namespace fsdp::checkpoint
