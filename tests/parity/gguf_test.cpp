// A GGUF file is imported, trained on two processes, and exported again, by the programs. llama.cpp then
// gives the logits of the trained model, where the Python in FSDP_TEST_PYTHON (default: python3) has it.

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "e2e/programs.h"
#include "state/gguf/gguf_fixtures.h"
#include "support/build_model.h"
#include "support/token_file.h"

namespace fsdp::parity {
namespace {

using namespace fsdp::testing;

void must_run(const std::vector<std::string>& command) {
  const ProgramResult result = run(command);
  ASSERT_EQ(result.exit_code, 0) << result.err;
}

TEST(GgufRoundTrip, ComesBackAsItWasTrained) {
  TemporaryFolder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const std::string ckpt = e2e::program("fsdp-ckpt");
  nn::ModelOptions options = gguf_options("llama3");
  options.vocab_size = 256;
  write_model(folder / "first", options, weights_of(*gguf_model(options)));
  must_run({ckpt, "export", path("first"), path("first.gguf"), "--format", "gguf", "--type", "f32",
            "--tokenizer", "bytes"});
  must_run({ckpt, "import", path("first.gguf"), path("imported"), "--world-size", "3"});
  must_run({ckpt, "diff", path("first"), path("imported")});

  write_token_file(folder / "train.bin", 2000, options.vocab_size);
  const ProgramResult section = run({ckpt, "config", path("imported")});
  ASSERT_EQ(section.exit_code, 0) << section.err;
  std::ofstream(folder / "config.toml") << section.out << R"(
[data]
sequence_length = 16
micro_batch_size = 2
tokenizer = "bytes"
[training]
steps = 3
[optimizer]
lr = 1e-2
[checkpoint]
save_at_end = true
[fsdp]
min_num_params = 1000
)";
  const ProgramResult trained =
      e2e::launch_training(2, path("config.toml"),
                           {"data.train=[\"" + path("train.bin") + "\"]", "run.output_dir=" + path("out")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  must_run({ckpt, "export", path("out"), path("last.gguf"), "--format", "gguf"});
  const gguf::Reader first(path("first.gguf")), last(path("last.gguf"));
  EXPECT_EQ(first.tensors().size(), last.tensors().size());
  EXPECT_EQ(first.metadata().at("tokenizer.ggml.tokens"), last.metadata().at("tokenizer.ggml.tokens"));
  EXPECT_TRUE(same_bits(dequantised(first, "rope_freqs.weight"), dequantised(last, "rope_freqs.weight")));
  EXPECT_FALSE(
      same_bits(dequantised(first, "blk.0.attn_q.weight"), dequantised(last, "blk.0.attn_q.weight")));
  must_run({ckpt, "import", path("last.gguf"), path("again")});
  const checkpoint::StoredModel out = checkpoint::open_model(path("out")),
                                again = checkpoint::open_model(path("again"));
  for (const auto& [name, stored] : out.names) {
    at::Tensor expected = at::empty(out.weights.shape(stored), at::kFloat), found = at::empty_like(expected);
    out.weights.read_into(stored, expected);
    again.weights.read_into(again.names.at(name), found);
    EXPECT_TRUE(same_bits(found, expected)) << name;
  }

  const std::string python = python_with_llama_cpp();
  if (python.empty()) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has gguf and llama_cpp";
  options.init_from = path("again");
  at::NoGradGuard no_grad;
  const at::Tensor ours =
      build_model(options, 1)->forward(token_rows(0, 2, 47, options.vocab_size)).flatten();
  const at::Tensor theirs = numbers_of(llama_cpp(python, {"logits", path("last.gguf")}));
  ASSERT_EQ(ours.numel(), theirs.numel());
  const double difference = (ours - theirs).abs().max().item<double>();
  std::cout << "logits differ by " << difference << std::endl;
  EXPECT_LE(difference, 1e-4);
}

TEST(GgufCommands, RefuseOptionsOfAnotherFormat) {
  TemporaryFolder folder;
  write_model(folder / "model", gguf_options("qwen2"), weights_of(*gguf_model(gguf_options("qwen2"))));
  const auto refused = [&](const std::vector<std::string>& options) {
    std::vector<std::string> command = {e2e::program("fsdp-ckpt"), "export", (folder / "model").string(),
                                        (folder / "out.gguf").string()};
    command.insert(command.end(), options.begin(), options.end());
    const ProgramResult result = run(command);
    EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
    EXPECT_FALSE(std::filesystem::exists(folder / "out.gguf"));
    return result.err;
  };
  EXPECT_NE(refused({"--type", "q8_0"}).find("--type: expected only with --format gguf"), std::string::npos);
  EXPECT_NE(refused({"--format", "gguf", "--dtype", "bfloat16"}).find("--dtype: expected only with --format"),
            std::string::npos);
  EXPECT_NE(refused({"--format", "gguf", "--type", "q5_1"}).find("q5_1"), std::string::npos);
}

TEST(GgufCommands, TakeAGgufFileWhereWeightsAreRead) {
  TemporaryFolder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const auto must_run = [](const std::vector<std::string>& command) {
    const ProgramResult result = run(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out + result.err;
  };
  const std::string ckpt = e2e::program("fsdp-ckpt"), train = e2e::program("fsdp-train");
  nn::ModelOptions options = gguf_options("llama");
  options.vocab_size = 256;
  write_model(folder / "model", options, weights_of(*gguf_model(options)));
  must_run({ckpt, "export", path("model"), path("model.gguf"), "--format", "gguf", "--type", "q8_0",
            "--tokenizer", "bytes"});
  EXPECT_NE(must_run({ckpt, "config", path("model.gguf")}).find("llama"), std::string::npos);
  must_run({ckpt, "import", path("model.gguf"), path("imported")});
  folder.write("empty.toml", "");
  // A step that changes nothing, with the model and its tokenizer from the file.
  write_token_file(folder / "train.bin", 400, 200);
  must_run({train, path("empty.toml"), "model.init_from=" + path("model.gguf"),
            "data.tokenizer=" + path("model.gguf"), "data.train=[\"" + path("train.bin") + "\"]",
            "data.sequence_length=8", "training.steps=1", "optimizer.lr=0", "run.output_dir=" + path("run")});
  must_run({ckpt, "export", path("run"), path("trained")});
  EXPECT_TRUE(std::filesystem::exists(folder / "trained/tokenizer.json"));
  const checkpoint::StoredModel imported = checkpoint::open_model(path("imported")),
                                trained = checkpoint::open_model(path("trained")),
                                direct = checkpoint::open_model(path("model.gguf"));
  EXPECT_EQ(trained.options.hidden_size, options.hidden_size);
  for (const auto& [name, stored] : imported.names) {
    at::Tensor expected = at::empty(imported.weights.shape(stored), at::kFloat);
    imported.weights.read_into(stored, expected);
    for (const auto* model : {&trained, &direct}) {
      at::Tensor found = at::empty_like(expected);
      model->weights.read_into(model->names.at(name), found);
      EXPECT_TRUE(same_bits(found, expected)) << name;
    }
  }
}

TEST(GgufCommands, RefuseAFileThatIsNotWhatItsNameSays) {
  TemporaryFolder folder;
  folder.write("model.gguf", "GGUX");
  const ProgramResult result = run({e2e::program("fsdp-ckpt"), "config", (folder / "model.gguf").string()});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_NE(result.err.find("does not begin with \"GGUF\""), std::string::npos) << result.err;
}

}  // namespace
}  // namespace fsdp::parity
