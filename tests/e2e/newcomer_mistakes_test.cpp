// What newcomers get wrong is answered in at most three lines that name the remedy.

#include <gtest/gtest.h>

#include <algorithm>

#include "e2e/programs.h"
#include "support/safetensors_files.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

/// One command that cannot work. `{}` in it stands for the folder that holds what NewcomerMistakes makes.
struct Mistake {
  const char* name;
  std::vector<std::string> command;  ///< the program's name first
  int exit_code;
  std::vector<std::string> answer;  ///< what the answer must hold, the remedy among it
};

std::string config_json(const std::string& more) {
  return R"({"vocab_size": 17, "hidden_size": 40, "intermediate_size": 54, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": false, )" +
         more + "}";
}

class NewcomerMistakes : public ::testing::TestWithParam<Mistake> {
 protected:
  /// Everything that the commands name, made once.
  static void SetUpTestSuite() {
    folder_ = std::make_unique<testing::TemporaryFolder>();
    testing::write_token_file(*folder_ / "train.bin", 2000, 17);
    testing::write_token_file(*folder_ / "big.bin", 2000, 100);
    testing::write_token_file(*folder_ / "short.bin", 20, 17);
    const std::string train = "train = [\"" + (*folder_ / "train.bin").string() + "\"]\n";
    std::string config = kOddModel;
    config.insert(config.find("[data]\n") + 7, train);
    config += "[run]\noutput_dir = \"" + (*folder_ / "run").string() + "\"\n";
    write("config.toml", config);
    std::string without_model = config;
    without_model.erase(without_model.find("[model]"), config.find("[data]") - config.find("[model]"));
    write("without_model.toml", without_model);
    write("syntax.toml", "[training]\nsteps = \n");
    write("book.txt", text_of(4000));
    write("book.bin", text_of(4000));
    write("array.json", R"([{"text": "one"}, {"text": "two"}])");
    write("lines.jsonl", "{\"content\": \"one\", \"id\": 1}\n{\"content\": \"two\", \"id\": 2}\n");
    write("book.txt.gz", std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10) + "compressed");
    write("rows.parquet", "PAR1" + std::string(64, '\0') + "PAR1");
    std::string wide;
    for (int i = 0; i < 2000; ++i) wide += std::string({static_cast<char>(i % 17), 0, 0, 0});
    write("wide.bin", wide);
    fs::create_directories(*folder_ / "empty");
    make_model("qwen3",
               R"("architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "head_dim": 10)");
    make_model("llama", R"("architectures": ["LlamaForCausalLM"], "model_type": "llama")");
    fs::create_directories(*folder_ / "pickled");
    write("pickled/config.json", config_json(R"("model_type": "llama")"));
    write("pickled/pytorch_model.bin", "PK\x03\x04");
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static void write(const std::string& name, const std::string& text) {
    std::ofstream(*folder_ / name, std::ios::binary) << text;
  }
  static std::string text_of(int bytes) {
    std::string text;
    while (static_cast<int>(text.size()) < bytes) text += "To be, or not to be, that is the question.\n";
    return text;
  }
  static void make_model(const std::string& name, const std::string& more) {
    fs::create_directories(*folder_ / name);
    write(name + "/config.json", config_json(more));
    testing::write_safetensors(*folder_ / name / "model.safetensors",
                               {{"model.embed_tokens.weight", at::zeros({17, 40})}});
  }

  static std::unique_ptr<testing::TemporaryFolder> folder_;
};

std::unique_ptr<testing::TemporaryFolder> NewcomerMistakes::folder_;

TEST_P(NewcomerMistakes, AreAnsweredInThreeLinesWithTheRemedy) {
  const Mistake& mistake = GetParam();
  std::vector<std::string> command;
  for (std::string word : mistake.command) {
    if (size_t at = word.find("{}"); at != std::string::npos) word.replace(at, 2, folder_->path().string());
    command.push_back(word);
  }
  command[0] = program(command[0]);
  const auto result = testing::run(command, {.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 60});
  EXPECT_EQ(result.exit_code, mistake.exit_code) << result.err;
  for (const std::string& part : mistake.answer) {
    EXPECT_NE(result.err.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << result.err;
  }
  EXPECT_LE(std::count(result.err.begin(), result.err.end(), '\n'), 3) << result.err;
  EXPECT_EQ(result.out, "");
}

const std::vector<Mistake> kMistakes = {
    {"NoConfig", {"fsdp-train"}, 2, {"config", "fsdp-train init"}},
    {"NoSuchConfig", {"fsdp-train", "{}/confg.toml"}, 2, {"confg.toml", "fsdp-train init"}},
    {"KeyWithDashes", {"fsdp-train", "{}/config.toml", "--training.steps=5"}, 2, {"training.steps=5"}},
    {"MistypedKey", {"fsdp-train", "{}/config.toml", "training.stps=5"}, 2, {"training.steps"}},
    {"MistypedOption", {"fsdp-train", "{}/config.toml", "--explain-stp"}, 2, {"--explain-step"}},
    {"MistypedPreset", {"fsdp-train", "init", "finetun"}, 2, {"finetune"}},
    {"UppercaseOptimizer", {"fsdp-train", "{}/config.toml", "optimizer.name=adamW"}, 2, {"adamw"}},
    {"UppercaseModel", {"fsdp-train", "{}/config.toml", "model.preset=llama3-8B"}, 2, {"llama3-8b"}},
    {"BrokenToml", {"fsdp-train", "{}/syntax.toml"}, 2, {"syntax.toml:2", "value"}},
    {"NumberInQuotes",
     {"fsdp-train", "{}/config.toml", "training.steps=\"5\""},
     2,
     {"training.steps", "integer"}},
    {"HeadsThatDoNotDivide",
     {"fsdp-train", "{}/config.toml", "model.hidden_size=42"},
     2,
     {"hidden_size", "num_attention_heads"}},
    {"SequenceBeyondThePositions",
     {"fsdp-train", "{}/config.toml", "data.sequence_length=64"},
     2,
     {"max_position_embeddings", "32"}},
    {"MeshOfAnotherWorld", {"fsdp-train", "{}/config.toml", "mesh.data=4"}, 2, {"mesh", "start 4 processes"}},
    {"BatchThatDoesNotDivide",
     {"fsdp-train", "{}/config.toml", "training.global_batch_size=7"},
     2,
     {"training.global_batch_size", "micro_batch_size"}},
    {"NoGpu", {"fsdp-train", "{}/config.toml", "training.device=cuda"}, 2, {"training.device"}},
    {"NcclWithoutGpu", {"fsdp-train", "{}/config.toml", "comm.backend=nccl"}, 2, {"nccl", "auto"}},
    {"NothingToResume", {"fsdp-train", "{}/config.toml", "checkpoint.resume=latest"}, 4, {"resume", "auto"}},
    {"NoTokenFile",
     {"fsdp-train", "{}/config.toml", "data.train=[\"none.bin\"]"},
     3,
     {"none.bin", "readable file"}},
    {"TextOfAnotherVocabulary",
     {"fsdp-train", "{}/config.toml", "data.train=[\"{}/book.txt\"]"},
     2,
     {"set model.vocab_size = 256", "data.tokenizer"}},
    {"RenamedText",
     {"fsdp-train", "{}/config.toml", "data.train=[\"{}/book.bin\"]"},
     3,
     {"fsdp-data tokenize"}},
    {"RenamedWideTokens", {"fsdp-train", "{}/config.toml", "data.train=[\"{}/wide.bin\"]"}, 3, {".u32"}},
    {"SmallVocabulary",
     {"fsdp-train", "{}/config.toml", "data.train=[\"{}/big.bin\"]"},
     3,
     {"model.vocab_size", "tokenizer"}},
    {"TooLittleData", {"fsdp-train", "{}/config.toml", "data.train=[\"{}/short.bin\"]"}, 3, {"samples"}},
    {"HubId",
     {"fsdp-train", "{}/config.toml", "model.init_from=meta-llama/Llama-3.2-1B"},
     4,
     {"meta-llama/Llama-3.2-1B", "download"}},
    {"PickledWeights", {"fsdp-train", "{}/config.toml", "model.init_from={}/pickled"}, 4, {"safetensors"}},
    {"UnsupportedModel", {"fsdp-train", "{}/without_model.toml", "model.init_from={}/qwen3"}, 4, {"qwen3"}},
    {"ContradictedModel",
     {"fsdp-train", "{}/config.toml", "model.init_from={}/llama", "model.num_hidden_layers=3"},
     2,
     {"num_hidden_layers", "config.json"}},
    {"OutputThatCannotBeWritten",
     {"fsdp-train", "{}/config.toml", "run.output_dir={}/train.bin/run"},
     7,
     {"train.bin/run"}},
    {"CompressedText",
     {"fsdp-data", "tokenize", "{}/book.txt.gz", "--output", "{}/out.bin"},
     3,
     {"cut short", "fetch it again"}},
    {"Parquet",
     {"fsdp-data", "tokenize", "{}/rows.parquet", "--output", "{}/out.bin"},
     3,
     {"not a parquet table", "correct its name"}},
    {"JsonArray", {"fsdp-data", "tokenize", "{}/array.json", "--output", "{}/out.bin"}, 3, {"jsonl"}},
    {"WrongJsonField",
     {"fsdp-data", "tokenize", "{}/lines.jsonl", "--output", "{}/out.bin"},
     3,
     {"content", "--json-field"}},
    {"NoTokenizer",
     {"fsdp-data", "tokenize", "{}/book.txt", "--tokenizer", "gpt2", "--output", "{}/out.bin"},
     2,
     {"gpt2", "tokenizer.json"}},
    {"NoProgram", {"fsdp-launch", "--nproc-per-node", "2"}, 2, {"fsdp-launch", "-- "}},
    {"NoSuchProgram", {"fsdp-launch", "--", "{}/fsdp-tran"}, 2, {"fsdp-tran"}},
    {"WordForANumber",
     {"fsdp-launch", "--nproc-per-node", "many", "--", "true"},
     2,
     {"--nproc-per-node", "many"}},
    {"NothingToGenerateFrom", {"fsdp-generate", "{}/empty", "--prompt", "x"}, 4, {"empty"}},
    {"NothingToConsolidate", {"fsdp-ckpt", "consolidate", "{}/empty", "{}/out"}, 4, {"empty", "checkpoint"}},
    {"MistypedCommand", {"fsdp-ckpt", "consolidat", "{}/empty", "{}/out"}, 2, {"consolidate"}},
    {"UnknownGpu", {"fsdp-plan", "{}/config.toml", "--gpu", "H1000"}, 2, {"h100"}},
};

INSTANTIATE_TEST_SUITE_P(, NewcomerMistakes, ::testing::ValuesIn(kMistakes),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::e2e
