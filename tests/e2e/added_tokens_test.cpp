// The markers of chatml for a base model of transformers that lacks them: added to its tokenizer, its rows
// extended, trained on two processes, and read by transformers and PEFT in FSDP_TEST_PYTHON.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/util/file.h"
#include "e2e/programs.h"
#include "support/source_folder.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

/// base/, with 365 tokens.
constexpr const char* kMakeBase = R"(
import sys, torch, transformers
torch.manual_seed(1)
config = transformers.LlamaConfig(vocab_size=365, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2,
    tie_word_embeddings=sys.argv[1] == "tied", bos_token_id=360, eos_token_id=364)
transformers.LlamaForCausalLM(config).save_pretrained("base")
)";

/// Compares first/, exported before anything was learnt, with base/ and with what transformers makes of it.
constexpr const char* kCompareFirst = R"(
import json, torch, transformers
load = transformers.AutoModelForCausalLM.from_pretrained
base, ours = load("base"), load("first")
ids = torch.arange(100).view(4, 25) * 3
with torch.no_grad():
    old = (base(ids).logits - ours(ids).logits[..., :365]).abs().max().item()
found = {"logits": old, "tokens": ours.config.vocab_size, "rows": [], "mean": [], "drawn": [], "kept": []}
mine = [m(ours).weight.data for m in (type(ours).get_input_embeddings, type(ours).get_output_embeddings)]
theirs = [m(base).weight.data.clone() for m in (type(base).get_input_embeddings, type(base).get_output_embeddings)]
base.resize_token_embeddings(367)
drawn = [m(base).weight.data for m in (type(base).get_input_embeddings, type(base).get_output_embeddings)]
for a, b, c in zip(mine, theirs, drawn):
    found["rows"].append(a.shape[0])
    found["kept"].append(torch.equal(a[:365], b))
    found["mean"].append((a[365:] - b.mean(0)).abs().max().item())
    found["drawn"].append(((a[365:] - c[365:]).abs().max() / b.std()).item())
print(json.dumps(found))
)";

/// The model in argv[1] with the tokenizer beside it: ids of a chat, and the mean loss of the conversations.
constexpr const char* kReadBack = R"(
import json, sys, torch, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
chat = [{"role": "user", "content": "Number 7?"}, {"role": "assistant", "content": "It is 7, indeed."}]
ids = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)
print(json.dumps({"tokens": len(tokenizer), "model": model.config.vocab_size, "ids": ids,
                  "loss": model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.item(),
                  "text": tokenizer.decode(ids)}))
)";

/// The logits of merged/ are those of adapter/ on the base with as many rows, which transformers draws around
/// the mean: so near to 0 that the norm behind it makes much of the difference.
constexpr const char* kLoadAdapter = R"(
import json, peft, torch, transformers
load = transformers.AutoModelForCausalLM.from_pretrained
base, merged = load("base"), load("merged")
base.resize_token_embeddings(367)
for layer in (base.get_input_embeddings(), base.get_output_embeddings()):
    layer.weight.data[365:] = layer.weight.data[:365].mean(0)
adapted = peft.PeftModel.from_pretrained(base, "adapter")
ids = torch.arange(32).view(2, 16) * 11 + 10  # up to 361
ids[0, 3], ids[1, 5] = 365, 366
with torch.no_grad():
    difference = (adapted(ids).logits - merged(ids).logits).abs().max().item()
print(json.dumps({"difference": difference}))
)";

class AddedTokens : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const char* python = std::getenv("FSDP_TEST_PYTHON");
    if (python == nullptr) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has transformers and peft";
    python_ = python;
    if (testing::run({python_, "-c", "import peft, transformers"}).exit_code != 0) {
      GTEST_SKIP() << python_ << " lacks transformers or peft";
    }
    must({python_, "-c", kMakeBase, GetParam()});
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(fs::path(testing::source_folder()) / "tests/data/chat/llama3" / name,
                    folder_ / "base" / name);
    }
    std::ofstream chats(folder_ / "chats.jsonl");
    for (int i = 0; i < 60; ++i) {
      chats << R"({"messages": [{"role": "user", "content": "Number )" << i
            << R"(?"}, {"role": "assistant", "content": "It is )" << i << R"(, indeed."}]})"
            << "\n";
    }
    chats.close();
    must({program("fsdp-data"), "tokenize", "chats.jsonl", "--chat", "--chat-template", "chatml",
          "--add-special-tokens", "--tokenizer", "base", "--output", "chats.bin"});
    must({program("fsdp-train"), "init", "finetune", "--from", "base", "--output", "c.toml"});
  }

  testing::ProgramResult run(const Words& words) const {
    return testing::run(words, {.env = {{"OMP_NUM_THREADS", "1"}, {"HF_HUB_OFFLINE", "1"}},
                                .working_folder = folder_.path(),
                                .timeout_seconds = 120});
  }
  testing::ProgramResult must(const Words& words) const {
    const auto result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return result;
  }
  json printed(const Words& words) const {
    const auto result = must(words);
    return json::parse(result.out.substr(result.out.find('{')));
  }
  testing::ProgramResult train(int world_size, const Words& more) const {
    Words words = {program("fsdp-launch"),     "--nproc-per-node",
                   std::to_string(world_size), "--",
                   program("fsdp-train"),      "c.toml"};
    const Words common = {R"(data.train=["chats.bin"])",
                          R"(data.validation=["chats.bin"])",
                          R"(data.tokenizer="chats.bin.tokenizer")",
                          "data.sequence_length=40",
                          R"(data.documents="split")",
                          "data.micro_batch_size=8",
                          "training.gradient_accumulation_steps=1",
                          "lr_scheduler.warmup_steps=1",
                          R"(mixed_precision.param_dtype="float32")"};
    words.insert(words.end(), common.begin(), common.end());
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }

  std::string python_;
  testing::TemporaryFolder folder_;
};

TEST_P(AddedTokens, GetTheMeanAndAreTrainedAndReadBackByTransformers) {
  const auto small = train(1, {});
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_THAT(small.err, HasSubstr("set model.vocab_size = 367, whose new rows become the mean"));

  // A rate that changes no weight.
  const auto first = train(3, {"model.vocab_size=367", "training.steps=1", "optimizer.lr=1e-30",
                               "optimizer.weight_decay=0", "run.output_dir=first-run"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err,
              HasSubstr("rows 365 to 366 of model.embed_tokens.weight are the mean of the 365 stored rows"));
  must({program("fsdp-ckpt"), "export", "first-run", "first"});
  const json compared = printed({python_, "-c", kCompareFirst});
  EXPECT_EQ(compared["tokens"], 367);
  EXPECT_LT(compared["logits"], 1e-5);
  for (size_t i : {0U, 1U}) {
    EXPECT_EQ(compared["rows"][i], 367);
    EXPECT_EQ(compared["kept"][i], true);
    EXPECT_LT(compared["mean"][i], 1e-7);
    // transformers draws around the mean, with a variance of 1e-9 of that of the rows.
    EXPECT_LT(compared["drawn"][i], 3e-4);
  }

  const auto trained =
      train(2, {"model.vocab_size=367", "training.steps=60", "optimizer.lr=1e-2", "run.output_dir=run"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  must({program("fsdp-ckpt"), "export", "run", "exported"});
  json config = json::parse(util::read_file(folder_ / "base/config.json"));
  config["vocab_size"] = 367;
  EXPECT_EQ(json::parse(util::read_file(folder_ / "exported/config.json")), config);
  const json before = printed({python_, "-c", kReadBack, "first"}),
             after = printed({python_, "-c", kReadBack, "exported"});
  EXPECT_EQ(after["tokens"], 367);
  EXPECT_EQ(after["model"], 367);
  EXPECT_EQ(after["ids"][0], 365) << "<|im_start|>, of " << after["text"];
  EXPECT_THAT(after["ids"].get<std::vector<int>>(), ::testing::Contains(366));
  EXPECT_LT(after["loss"].get<double>(), 0.5 * before["loss"].get<double>());

  // Its chats end at the marker, from the run and from an export for llama.cpp.
  must({program("fsdp-ckpt"), "export", "run", "model.gguf", "--format", "gguf"});
  // Whatever form the weights have, they can get more.
  std::vector<double> losses;
  for (const char* model : {"run", "exported", "model.gguf"}) {
    const auto evaluated = must({program("fsdp-train"), "evaluate", "c.toml", model, "model.vocab_size=370",
                                 R"(data.train="chats.bin")", R"(data.validation="chats.bin")"});
    EXPECT_THAT(evaluated.err,
                HasSubstr("rows 367 to 369 of model.embed_tokens.weight are the mean of the 367"));
    losses.push_back(std::stod(evaluated.out.substr(std::string("loss ").size())));
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-4);
  EXPECT_NEAR(losses[2], losses[0], 1e-4);
  std::ofstream(folder_ / "question") << "Number 7?\n";
  for (const char* model : {"run", "exported", "model.gguf"}) {
    const auto talk = must(
        {"/bin/sh", "-c", program("fsdp-generate") + " " + model + " --chat --max-new-tokens 30 < question"});
    EXPECT_THAT(talk.out, ::testing::ContainsRegex("It is [0-9]+, indeed\\.\n$")) << model;
  }
}

TEST_P(AddedTokens, AreOfTheBaseOfAdaptersToo) {
  const auto adapted = train(2, {"model.vocab_size=367", "training.steps=5", "lora.rank=4",
                                 "optimizer.lr=1e-2", "run.output_dir=run"});
  ASSERT_EQ(adapted.exit_code, 0) << adapted.err;
  EXPECT_THAT(adapted.err, HasSubstr("lora.rank freezes the embedding"));
  must({program("fsdp-ckpt"), "export", "run", "merged", "--merge"});
  EXPECT_THAT(must({program("fsdp-ckpt"), "export", "run", "adapter", "--adapter"}).err,
              HasSubstr("base.resize_token_embeddings(367)"));
  EXPECT_LT(printed({python_, "-c", kLoadAdapter})["difference"], 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Heads, AddedTokens, ::testing::Values("tied", "untied"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fsdp::e2e
