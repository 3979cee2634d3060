// fsdp-generate on what a run, fsdp-ckpt and Hugging Face leave.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/util/file.h"
#include "e2e/programs.h"

namespace fsdp::e2e {
namespace {

using nlohmann::json;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// One run for all tests: a model that has seen one line of text again and again.
class GenerateProgram : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::TemporaryFolder();
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the cat sat on the mat. ";
    std::ofstream(*folder_ / "text.txt") << text;
    ASSERT_EQ(
        testing::run({program("fsdp-data"), "tokenize", path("text.txt"), "--output", path("train.bin")})
            .exit_code,
        0);
    std::ofstream(*folder_ / "config.toml") << R"(
[model]
vocab_size = 256
hidden_size = 48
intermediate_size = 96
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 96
[data]
sequence_length = 32
[training]
steps = 120
[optimizer]
lr = 1e-2
ema_decay = 0.9
[fsdp]
min_num_params = 10_000
[logging]
sample_every = 60
sample_prompt = "the cat"
sample_tokens = 20
)";
    trained_ =
        launch_training(2, *folder_ / "config.toml",
                        {"run.output_dir=" + path("run"), "data.train=[\"" + path("train.bin") + "\"]"});
    ASSERT_EQ(trained_.exit_code, 0) << trained_.err;
    ASSERT_EQ(testing::run({program("fsdp-ckpt"), "export", path("run"), path("exported")}).exit_code, 0);
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static std::string path(const std::string& name) { return *folder_ / name; }
  static testing::ProgramResult generate(std::vector<std::string> words, testing::RunOptions options = {}) {
    words.insert(words.begin(), program("fsdp-generate"));
    return testing::run(words, std::move(options));
  }

  inline static testing::TemporaryFolder* folder_ = nullptr;
  inline static testing::ProgramResult trained_;
};

TEST_F(GenerateProgram, SpeaksAsTheTextOfItsTrainingFromEveryFormat) {
  const std::string expected = "the cat sat on the mat. the cat sat\n";
  for (const std::string& model :
       {path("run"), path("run/step-00000120"), path("exported"), path("exported/model.safetensors")}) {
    const auto result = generate({model, "--prompt", "the cat", "--temperature", "0", "--max-new-tokens",
                                  "28", "--tokenizer", "bytes"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, expected) << model;
    EXPECT_THAT(result.err, HasSubstr("28 tokens in 1 sample(s)"));
  }
  // The run's config names the tokenizer; the prompt comes from anywhere; averages and types work.
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--ema"}, {"--dtype", "bfloat16"}, {"--dtype", "float16"}}) {
    std::vector<std::string> words = {path("run"), "-", "--temperature", "0", "--max-new-tokens", "28"};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = generate(words, {.stdin_text = "the cat"});
    EXPECT_EQ(result.out, expected) << more[0] << result.err;
  }
  util::write_file_atomically(path("prompt.txt"), "the cat");
  EXPECT_EQ(generate({path("run"), "--prompt-file", path("prompt.txt"), "--temperature", "0",
                      "--max-new-tokens", "28"})
                .out,
            expected);
}

TEST_F(GenerateProgram, PrintsAnObjectASample) {
  const std::vector<std::string> words = {path("run"), "--prompt", "the",    "--num-samples",    "3",
                                          "--seed",    "7",        "--json", "--max-new-tokens", "12"};
  const auto result = generate(words);
  std::istringstream lines(result.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json sample = json::parse(line);
    EXPECT_EQ(sample["prompt"], "the");
    EXPECT_EQ(sample["tokens"], 12);
    EXPECT_EQ(sample["ids"].size(), 12u);
    EXPECT_EQ(sample["ending"], "length");
    EXPECT_GT(sample["tokens_per_second"].get<double>(), 0);
    EXPECT_EQ(sample["text"].get<std::string>().substr(0, 1),
              std::string(1, static_cast<char>(sample["ids"][0].get<int>())));
  }
  EXPECT_EQ(count, 3);
}

TEST_F(GenerateProgram, RepeatsItselfForASeed) {
  const std::vector<std::string> words = {path("run"), "--prompt",      "the", "--num-samples",
                                          "2",         "--temperature", "2"};
  const auto first = generate(words, {.env = {{"OMP_NUM_THREADS", "1"}}});
  EXPECT_EQ(generate(words, {.env = {{"OMP_NUM_THREADS", "3"}}}).out, first.out);
  EXPECT_THAT(first.out, HasSubstr("\n---\nthe"));
  auto other = words;
  other.insert(other.end(), {"--seed", "2"});
  EXPECT_NE(generate(other).out, first.out);
}

TEST_F(GenerateProgram, SamplesAsTheModelsGenerationConfigSays) {
  const std::vector<std::string> words = {path("exported"),   "--tokenizer", "bytes", "--prompt", "the",
                                          "--max-new-tokens", "40",          "--json"};
  const auto with_options = [&](std::vector<std::string> options) {
    options.insert(options.begin(), words.begin(), words.end());
    const auto result = generate(options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    json line = json::parse(result.out);
    line.erase("tokens_per_second");
    line["err"] = result.err;
    return line;
  };
  const json greedy = with_options({"--temperature", "0"}), hot = with_options({"--temperature", "2.5"});
  const auto ids_of = [](const json& line) { return line.at("ids").get<std::vector<int64_t>>(); };
  const int64_t end = ids_of(greedy)[10];
  const auto until_end = [end](std::vector<int64_t> ids) {
    ids.erase(std::ranges::find(ids, end), ids.end());
    return ids;
  };
  std::ofstream(path("exported/generation_config.json"))
      << json{{"do_sample", true}, {"temperature", 2.5}, {"eos_token_id", {end, 300}}};
  const json by_config = with_options({}), by_user = with_options({"--temperature", "0"});
  std::filesystem::remove(path("exported/generation_config.json"));
  EXPECT_THAT(by_config["err"].get<std::string>(), HasSubstr("generation_config.json: temperature 2.5"));
  EXPECT_EQ(by_user["err"], "");
  EXPECT_EQ(by_user["ending"], "end_of_text");
  EXPECT_EQ(ids_of(by_user), until_end(ids_of(greedy)));
  EXPECT_EQ(ids_of(by_config), until_end(ids_of(hot)));
}

TEST_F(GenerateProgram, EndsCleanlyWhenInterrupted) {
  // So many samples that it is under way whenever the signal comes.
  testing::RunningProgram running(
      {program("fsdp-generate"), path("run"), "--prompt", "the cat", "--num-samples", "100000"});
  ASSERT_TRUE(running.wait_for("the cat")) << running.err();
  running.send(SIGINT);
  const auto result = running.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  EXPECT_THAT(result.out, StartsWith("the cat"));
  EXPECT_THAT(result.out, EndsWith("\n"));
}

TEST_F(GenerateProgram, SaysWhatIsWrongInOneLine) {
  const struct {
    std::vector<std::string> words;
    int exit_code;
    std::string message;
  } cases[] = {
      {{path("run"), "--prompt", "x", "--max-new-tokens", "96"}, 2, "shorten the prompt or ask for fewer"},
      {{path("run"), "--prompt", "x", "--max-new-tokens", "999999999"},
       2,
       "but 999999999 are requested; ask for fewer"},
      {{path("run"), "--prompt", std::string(96, 'x')}, 2, "the prompt must have fewer than 96 tokens"},
      {{path("run"), "--top-p", "0"}, 2, "top-p must be a probability above 0 and at most 1, but is 0"},
      {{path("run"), "--dtype", "int8"}, 2, "dtype must be auto"},
      {{path("run"), "--begin-token", "<s>"}, 2, "--begin-token must be the text of a token"},
      {{path("nowhere")}, 4, "nowhere"},
      {{path("exported"), "--ema"}, 2, "--ema"},
      {{path("run"), "--prompt-file", path("nowhere")}, 7, "nowhere"},
  };
  for (const auto& wrong : cases) {
    const auto result = generate(wrong.words);
    EXPECT_EQ(result.exit_code, wrong.exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(wrong.message));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
  EXPECT_EQ(generate({path("run"), "--prompt", "x", "-"}).exit_code, 2);
  EXPECT_THAT(generate({"--help"}).out,
              StartsWith("Continues or scores a text with a trained model.\n\nExamples:"));
}

TEST_F(GenerateProgram, AnswersEachLineOfItsInputUntilItEnds) {
  const std::vector<std::string> greedy = {path("run"), "--interactive",    "--temperature",
                                           "0",         "--max-new-tokens", "8"};
  const auto result = generate(greedy, {.stdin_text = "the cat\nthe cat sat on\nthe cat"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, " sat on \n the mat\n sat on \n")
      << "the continuations alone, a last line without an end";
  auto as_json = greedy;
  as_json.emplace_back("--json");
  std::istringstream lines(generate(as_json, {.stdin_text = "the cat\nthe mat\n"}).out);
  std::vector<std::string> prompts;
  for (std::string line; std::getline(lines, line);) prompts.push_back(json::parse(line)["prompt"]);
  EXPECT_EQ(prompts, (std::vector<std::string>{"the cat", "the mat"}));
  EXPECT_EQ(generate(greedy).out, "") << "no input, no text";
  EXPECT_EQ(generate(greedy, {.stdin_text = std::string(96, 'x') + "\n"}).exit_code, 2);
}

TEST_F(GenerateProgram, AnswersALineBeforeTheNextIsWritten) {
  // A shell that writes a second line only when it has read the answer to the first.
  const std::string command =
      "coproc " + program("fsdp-generate") + " " + path("run") +
      " --interactive --temperature 0 --max-new-tokens 8 2>/dev/null; "
      "for i in 1 2; do echo 'the cat' >&${COPROC[1]}; read -t 50 -u ${COPROC[0]} text; "
      "echo \"got $text\"; done";
  const auto result = testing::run({"/bin/bash", "-c", command}, {.timeout_seconds = 110});
  EXPECT_EQ(result.out, "got sat on\ngot sat on\n") << result.err;
}

TEST_F(GenerateProgram, EndsTextsBeforeTheStops) {
  const std::vector<std::string> greedy = {path("run"), "--prompt",         "the cat", "--temperature",
                                           "0",         "--max-new-tokens", "40",      "--stop",
                                           " mat",      "--stop",           ". the c"};
  EXPECT_EQ(generate(greedy).out, "the cat sat on the\n");
  auto as_json = greedy;
  as_json.insert(as_json.end(), {"--json", "--num-samples", "2"});
  std::istringstream lines(generate(as_json).out);
  for (std::string line; std::getline(lines, line);) {
    const json sample = json::parse(line);
    EXPECT_EQ(sample["text"], " sat on the");
    EXPECT_EQ(sample["ending"], "stop_text");
    EXPECT_EQ(sample["tokens"], 15) << "those of the stop too";
  }
  EXPECT_EQ(generate({path("run"), "--prompt", "the cat", "--temperature", "0", "--max-new-tokens", "12",
                      "--stop", "the dog"})
                .out,
            "the cat sat on the \n")
      << "the beginning of a stop that does not come";
}

TEST_F(GenerateProgram, ChatsByTheTemplateWithWhatWasSaidBefore) {
  util::write_file_atomically(path("chat.jinja"), "{% for m in messages %}{{ m.content }}{% endfor %}");
  const std::vector<std::string> words = {path("run"),     "--chat", "--chat-template",  path("chat.jinja"),
                                          "--temperature", "0",      "--max-new-tokens", "8"};
  const auto result = generate(words, {.stdin_text = "the cat\nthe\n"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, " sat on \n mat. th\n");

  auto as_json = words;
  as_json.insert(as_json.end(), {"--json", "--system", "on the mat. ", "--stop", " on"});
  const json answer = json::parse(generate(as_json, {.stdin_text = "the cat\n"}).out);
  EXPECT_EQ(answer["prompt"], "the cat");
  EXPECT_EQ(answer["text"], " sat");

  // The third message does not fit beside the first two into the model's 96 positions.
  const auto forgetful = generate(words, {.stdin_text = "the cat\nthe\n" + std::string(80, 'x') + "\n"});
  EXPECT_EQ(forgetful.exit_code, 0) << forgetful.err;
  EXPECT_THAT(forgetful.err, HasSubstr("its oldest 4 messages are forgotten"));
  const auto too_long = generate(words, {.stdin_text = std::string(96, 'x') + "\n"});
  EXPECT_EQ(too_long.exit_code, 2);
  EXPECT_THAT(too_long.err, HasSubstr("must have at most 88 tokens"));
  EXPECT_THAT(generate({path("run"), "--chat"}, {.stdin_text = "a\n"}).err, HasSubstr("--chat-template"));
}

TEST_F(GenerateProgram, ScoresATextLongerThanItsPositions) {
  std::string known, strange;
  for (int i = 0; i < 20; ++i) known += "the cat sat on the mat. ";
  for (int i = 0; i < 20; ++i) strange += "mat the on sat cat the. ";
  known.resize(14 * 32 + 1);
  util::write_file_atomically(path("known.txt"), known);
  const auto score = [](const std::vector<std::string>& more, const std::string& text) {
    std::vector<std::string> words = {path("run"), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = generate(words, {.stdin_text = text});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  };
  const json likely = score({"--score", path("known.txt")}, ""), unlikely = score({"--score", "-"}, strange);
  EXPECT_EQ(likely["tokens"], known.size() - 1);
  EXPECT_LT(likely["nats_per_token"].get<double>() * 2, unlikely["nats_per_token"].get<double>());
  EXPECT_NEAR(likely["perplexity"], std::exp(likely["nats_per_token"].get<double>()), 1e-9);
  EXPECT_NEAR(likely["bits_per_byte"], likely["nats_per_token"].get<double>() / std::log(2), 1e-9)
      << "a token is a byte";
  // As training's own validation has it, where windows do not overlap.
  const json apart = score({"--score", path("known.txt"), "--window", "32", "--stride", "32"}, "");
  const auto tokenized =
      testing::run({program("fsdp-data"), "tokenize", path("known.txt"), "--output", path("known.bin")});
  ASSERT_EQ(tokenized.exit_code, 0) << tokenized.err;
  const auto evaluated = testing::run(
      {program("fsdp-train"), *folder_ / "config.toml", "data.train=[\"" + path("train.bin") + "\"]",
       "data.validation=[\"" + path("known.bin") + "\"]", "--evaluate", path("run")});
  const double loss = std::stod(evaluated.out.substr(std::string("loss ").size()));
  EXPECT_NEAR(apart["nats"].get<double>() / apart["tokens"].get<double>(), loss, 1e-4) << evaluated.out;
  EXPECT_THAT(generate({path("run"), "--score", path("known.txt")}).out,
              HasSubstr(" bits per byte over 448 tokens\n"));
  EXPECT_EQ(generate({path("run"), "--score", path("known.txt"), "--seed", "3"}).exit_code, 2);
  EXPECT_EQ(generate({path("run"), "--stride", "3"}).exit_code, 2);
  EXPECT_EQ(generate({path("run"), "--score", "-"}).exit_code, 2) << "an empty text";
}

TEST_F(GenerateProgram, AnswersRequests) {
  const auto answers = [](const std::vector<std::string>& more, const std::string& text) {
    std::vector<std::string> words = {path("run")};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = generate(words, {.stdin_text = text});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<json> lines;
    std::istringstream out(result.out);
    for (std::string line; std::getline(out, line);) lines.push_back(json::parse(line));
    return lines;
  };
  const auto scores =
      answers({"--score-requests", "-"},
              R"({"context": "the cat sat on the mat. the cat", "continuation": " sat on", "id": "a"}
{"context": "the cat sat on the mat. the cat", "continuation": " mat on"}
{"text": "the cat sat"}
)");
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_EQ(scores[0]["id"], "a");
  EXPECT_FALSE(scores[1].contains("id"));
  EXPECT_EQ(scores[0]["is_greedy"], true);
  EXPECT_EQ(scores[1]["is_greedy"], false);
  EXPECT_EQ(scores[0]["tokens"], 7);
  EXPECT_EQ(scores[2]["tokens"], 11);
  EXPECT_GT(scores[0]["log_likelihood"].get<double>(), scores[1]["log_likelihood"].get<double>() + 2);
  EXPECT_LT(scores[0]["log_likelihood"].get<double>(), 0);

  util::write_file_atomically(path("until.jsonl"), R"({"context": "the cat", "until": [" mat", "."], "id": 4}
{"context": "the cat", "until": [], "max_new_tokens": 5}
{"context": "the cat", "until": ["."], "max_new_tokens": 5000})");
  const auto texts = answers({"--generate-until", path("until.jsonl"), "--temperature", "0"}, "");
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[0]["text"], " sat on the");
  EXPECT_EQ(texts[0]["ending"], "stop_text");
  EXPECT_EQ(texts[0]["id"], 4);
  EXPECT_EQ(texts[1]["text"], " sat ");
  EXPECT_EQ(texts[1]["tokens"], 5);
  EXPECT_EQ(texts[2]["text"], " sat on the mat") << "more tokens than the model has positions";
  const auto refused = generate({path("run"), "--score-requests", "-"}, {.stdin_text = "{\"context\": 1}\n"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("standard input, line 1: expected {"));
  EXPECT_EQ(generate({path("run"), "--score-requests", "-"}, {.stdin_text = "\n"}).exit_code, 2);
}

TEST_F(GenerateProgram, TrainingShowsSamples) {
  EXPECT_THAT(trained_.err, HasSubstr("sample at step 60:\n"));
  EXPECT_THAT(trained_.err, HasSubstr("sample at step 120:\n"));
}

}  // namespace
}  // namespace fsdp::e2e
