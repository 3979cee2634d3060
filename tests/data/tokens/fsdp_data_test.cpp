// The program fsdp-data: exit codes, stdout and stderr.

#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "data/compressed_fixtures.h"
#include "data/parquet_fixtures.h"
#include "data/token_fixtures.h"
#include "support/program_path.h"
#include "support/source_folder.h"

namespace fsdp::data {
namespace {
using fsdp::testing::TemporaryFolder;

class FsdpData : public ::testing::Test {
 protected:
  /// Runs the program in the folder and returns its exit code; -1 when a signal ended it.
  int run(const std::string& arguments, const std::string& redirections = ">stdout 2>stderr") {
    std::string command = "cd '" + folder.path().string() + "' && timeout 60 '" +
                          fsdp::testing::program_path("fsdp-data") + "' " + arguments + " " + redirections;
    int status = std::system(command.c_str());
    out = std::filesystem::exists(folder / "stdout") ? folder.read("stdout") : "";
    err = folder.read("stderr");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  TemporaryFolder folder;
  std::string out, err;
};

TEST_F(FsdpData, TokenizesAndInspects) {
  folder.write("a.txt", std::string(1000, 'a') + std::string(1000, 'b'));
  ASSERT_EQ(run("tokenize a.txt a.txt --output d/train.bin --validation-output d/valid.bin"), 0) << err;
  EXPECT_EQ(
      out,
      "d/train.bin: 3,600 tokens\nd/valid.bin: 400 tokens\n"
      "half of the documents have at most 200 tokens, 99 % at most 1,800; the longest have 1,800 (a.txt), 1,800 "
      "(a.txt) and 200 (a.txt)\n"
      "data.sequence_length = 512 would cut 2 of 4 documents (50.0 %), with 2,574 tokens (64.3 %) behind the "
      "cuts\n"
      "data.sequence_length = 1024 would cut 2 of 4 documents (50.0 %), with 1,550 tokens (38.8 %) behind the "
      "cuts\n");
  ASSERT_EQ(run("tokenize a.txt --output d/train.bin --validation-output d/valid.bin"), 0) << err;
  EXPECT_EQ(out, "d/train.bin: 1,800 tokens\nd/valid.bin: 200 tokens\n");
  ASSERT_EQ(run("tokenize a.txt a.txt --output d/train.bin --validation-output d/valid.bin"), 0) << err;
  ASSERT_EQ(run("inspect d/train.bin d/valid.bin --vocab-size 256 --sequence-length 100 --json"), 0) << err;
  auto json = nlohmann::json::parse(out);
  EXPECT_EQ(json["tokens"], 4000);
  EXPECT_EQ(json["samples"], 39);
  EXPECT_NEAR(json["unigram_entropy_nats"].get<double>(), std::log(2), 1e-12);
  EXPECT_EQ(json["beginning"], std::string(80, 'a'));
  EXPECT_EQ(err, "");
  ASSERT_EQ(run("inspect d/train.bin"), 0);
  EXPECT_NE(out.find("0.6870 nats"), std::string::npos) << out;  // 2000 a, 1600 b
}

TEST_F(FsdpData, ConvertsAndInspectsEveryFormat) {
  write_tokens(folder, "in.bin", {1, 2, 0, 3, 0});
  ASSERT_EQ(run("convert in.bin --output m.bin --format megatron --document-separator 0"), 0) << err;
  EXPECT_EQ(out, "m.bin: 2 documents, 5 tokens\n");
  ASSERT_EQ(run("convert m.bin --output l.bin --format llm.c-u32"), 0) << err;
  EXPECT_EQ(out, "l.bin: 5 tokens\n");
  ASSERT_EQ(run("inspect m.bin l.bin"), 0) << err;
  EXPECT_NE(out.find("m.bin (5 tokens, megatron, uint16, 2 documents)"), std::string::npos) << out;
  EXPECT_NE(out.find("l.bin (5 tokens, llm.c-u32, uint32)"), std::string::npos) << out;
  ASSERT_EQ(run("inspect m.bin l.bin --json"), 0) << err;
  auto json = nlohmann::json::parse(out);
  EXPECT_EQ(json["files"][0]["format"], "megatron");
  EXPECT_EQ(json["files"][0]["documents"], 2);
  EXPECT_EQ(json["files"][1]["dtype"], "uint32");
  ASSERT_EQ(run("inspect l.bin --input-format u16 --json"), 0) << err;
  EXPECT_EQ(nlohmann::json::parse(out)["tokens"], (1024 + 20) / 2);
}

TEST_F(FsdpData, TokenizesStandardInputAndDecodes) {
  std::string tokenizer = testing::source_folder() + "/tests/data/bpe/gpt2_kind.json";
  folder.write("in", "{\"body\": \"the na\u00efve\"}\n{\"body\": \"\\n\"}\n");
  ASSERT_EQ(run("tokenize - --json-lines --json-field body --output t.bin --tokenizer " + tokenizer,
                "<in >stdout 2>stderr"),
            0)
      << err;
  ASSERT_EQ(run("decode t.bin --tokenizer " + tokenizer), 0) << err;
  EXPECT_EQ(out, "the na\u00efve<|endoftext|>\n<|endoftext|>");
  ASSERT_EQ(run("decode t.bin --begin 1 --count 1 --tokenizer " + tokenizer), 0) << err;
  EXPECT_EQ(run("decode t.bin --begin 100 --tokenizer " + tokenizer), 2) << err;
  EXPECT_EQ(run("decode t.bin"), 3) << err;  // ids that are not bytes
  ASSERT_EQ(run("inspect t.bin --tokenizer " + tokenizer), 0) << err;
  EXPECT_NE(out.find("the na\\xc3\\xafve<|endoftext|>"), std::string::npos) << out;
}

TEST_F(FsdpData, TrainsATokenizer) {
  std::string text;
  for (int i = 0; i < 2000; ++i)
    text += "To be, or not to be: that is the question " + std::to_string(i * 37) + "\n";
  folder.write("a.txt", text);
  ASSERT_EQ(run("train-tokenizer a.txt --vocab-size 320 --output t.model"), 0) << err;
  EXPECT_EQ(out, "t.model: 320 tokens\n");
  ASSERT_EQ(run("tokenize a.txt --tokenizer t.model --document-separator none --output t.bin"), 0) << err;
  ASSERT_EQ(run("decode t.bin --tokenizer t.model"), 0) << err;
  EXPECT_EQ(out, text);
  EXPECT_EQ(run("train-tokenizer a.txt --vocab-size 90000 --output u.model"), 3) << err;
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  EXPECT_EQ(run("train-tokenizer none --vocab-size 320 --output u.model"), 3) << err;
  EXPECT_EQ(run("train-tokenizer a.txt --vocab-size 10 --output u.model"), 2) << err;
  EXPECT_EQ(run("train-tokenizer a.txt --vocab-size 320 --output u.bin"), 2) << err;
  EXPECT_EQ(run("train-tokenizer a.txt --vocab-size 320 --type wordpiece --output u.model"), 2) << err;
  EXPECT_EQ(folder.entries(), 5);  // a.txt, t.model, t.bin, stdout, stderr
}

TEST_F(FsdpData, LearnsFromTheDocumentsOfRows) {
  std::string lines = "not json\n", text;
  for (int i = 0; i < 2000; ++i) {
    const std::string number = std::to_string(i * 37);
    lines += R"({"body": "To be, or not to be:\nthat is the question )" + number + "\"}\n";
    text += "To be, or not to be:\nthat is the question " + number + "\n";
  }
  folder.write("a.jsonl.gz", gzip(lines));
  folder.write("b.txt", text);
  ASSERT_EQ(
      run("train-tokenizer a.jsonl.gz --text-column body --skip-bad 1 --vocab-size 320 --output a.model"), 0)
      << err;
  EXPECT_NE(err.find("line 1 of a.jsonl.gz"), std::string::npos) << err;
  ASSERT_EQ(run("train-tokenizer b.txt --vocab-size 320 --output b.model"), 0) << err;
  EXPECT_EQ(folder.read("a.model"), folder.read("b.model"));
  EXPECT_EQ(run("train-tokenizer a.jsonl.gz --vocab-size 320 --output a.model"), 3) << err;
}

TEST_F(FsdpData, LeavesOutBadRowsAndSaysWhich) {
  std::string lines;
  for (int i = 0; i < 30; ++i) lines += i % 2 == 0 ? "{\"text\": \"a\"}\n" : "bad\n";
  folder.write("a.jsonl", lines);
  ASSERT_EQ(run("tokenize a.jsonl --output t.bin --document-separator none --skip-bad 15"), 0) << err;
  EXPECT_EQ(
      out,
      "t.bin: 15 tokens\n"
      "half of the documents have at most 1 tokens, 99 % at most 1; the longest have 1 (line 1 of a.jsonl), 1 (line "
      "3 of a.jsonl) and 1 (line 5 of a.jsonl)\n");
  EXPECT_NE(err.find("line 2 of a.jsonl"), std::string::npos) << err;
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 11) << "the first ten and their number: " << err;
  EXPECT_NE(err.find("15 rows were left out"), std::string::npos) << err;
  EXPECT_EQ(run("tokenize a.jsonl --output t.bin --skip-bad 14"), 3);
  EXPECT_NE(err.find("more than 14 rows, which --skip-bad allows, cannot be used: line 30 of"),
            std::string::npos)
      << err;
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
}

TEST_F(FsdpData, DecompressesStandardInput) {
  folder.write("a", zstd("{\"text\": \"one\"}\n{\"text\": \"two\"}\n"));
  ASSERT_EQ(run("tokenize - --json-lines --output t.bin --document-separator none", "<a >stdout 2>stderr"), 0)
      << err;
  ASSERT_EQ(run("decode t.bin"), 0) << err;
  EXPECT_EQ(out, "onetwo");
}

TEST_F(FsdpData, ReportsIdsOutsideTheVocabularyAfterTheStatistics) {
  write_tokens(folder, "t.bin", {1, 2, 300});
  EXPECT_EQ(run("inspect t.bin --vocab-size 300"), 3);
  EXPECT_NE(out.find("largest id        300"), std::string::npos) << out;
  EXPECT_NE(err.find("token 2 of t.bin has the id 300"), std::string::npos) << err;
}

TEST_F(FsdpData, HelpSucceeds) {
  EXPECT_EQ(run("--help"), 0);
  EXPECT_NE(out.find("tokenize"), std::string::npos);
  EXPECT_EQ(run("tokenize --help"), 0);
  EXPECT_NE(out.find("--validation-fraction"), std::string::npos);
}

TEST_F(FsdpData, WrongArgumentsExitWith2) {
  folder.write("a.txt", "some text");
  for (std::string arguments :
       {"",
        "grind",
        "tokenize",
        "tokenize a.txt",
        "tokenize a.txt --output",
        "inspect",
        "inspect a --sequence-length 0",
        "inspect a --vocab-size x",
        "tokenize a.txt --output t.bin --tokenizer words",
        "convert a.txt --output t.bin",
        "convert a.txt --output t.bin --format hdf5",
        "convert a.txt --output t.bin --format u32",
        "inspect a.txt --input-format hdf5",
        "tokenize a.txt --output t.bin --format u32",
        "tokenize a.txt --output t.bin --threads 0",
        "tokenize a.txt --output t.bin --skip-bad -1",
        "tokenize a.txt --output t.bin --seed 3",
        "tokenize - --output t.bin --validation-output v.bin --validation-split end",
        "tokenize a.txt --output t.bin --validation-output v.bin --validation-split middle",
        "tokenize - - --output t.bin",
        "inspect a --no-such-option",
        "tokenize a.txt --output t.bin --validation-fraction 0.5",
        "tokenize a.txt --output a.txt",
        "tokenize a.txt --output t.bin --validation-output ''",
        "tokenize a.txt --output t.bin --validation-output v.bin --validation-fraction 7"}) {
    EXPECT_EQ(run(arguments), 2) << arguments << "\n" << err;
    EXPECT_NE(err, "") << arguments;
    EXPECT_EQ(out, "") << arguments;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "t.bin"));
}

TEST_F(FsdpData, BadFilesExitWith3InOneLine) {
  folder.write("empty", "");
  folder.write("odd", "abc");
  folder.write("cut.jsonl.gz", gzip("{\"text\": \"a\"}\n").substr(0, 20));
  folder.write("bomb.txt.zst", repeated(zstd(std::string(8 << 20, '\0')), 1200));  // 10 GB
  folder.write("window.zst", zstd("text", 30));
  folder.write("not.parquet", "text");
  for (std::string arguments :
       {"tokenize none --output t.bin", "tokenize empty --output t.bin",
        "tokenize cut.jsonl.gz --output t.bin", "tokenize window.zst --output t.bin",
        "tokenize bomb.txt.zst --output t.bin --json-lines", "tokenize not.parquet --output t.bin",
        "train-tokenizer bomb.txt.zst --output t.model --vocab-size 300", "inspect none", "inspect odd",
        "inspect empty", "inspect ."}) {
    EXPECT_EQ(run(arguments), 3) << arguments << "\n" << err;
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  }
}

TEST_F(FsdpData, OutputsThatCannotBeWrittenExitWith7) {
  folder.write("a.txt", "some text");
  EXPECT_EQ(run("tokenize a.txt --output a.txt/t.bin"), 7) << err;
  EXPECT_EQ(run("tokenize a.txt --output /dev/full/t.bin"), 7) << err;
}

TEST_F(FsdpData, AFullStandardOutputIsAnError) {
  write_tokens(folder, "t.bin", {1, 2});
  EXPECT_EQ(run("inspect t.bin", ">/dev/full 2>stderr"), 7) << err;
}

// A limit on file size stands for a full disk: the write fails half-way.
TEST_F(FsdpData, AFailedWriteLeavesNothingBehind) {
  folder.write("a.txt", std::string(3'000'000, 'x'));
  folder.write("t.bin", "old!");
  std::string program = fsdp::testing::program_path("fsdp-data");
  std::string command = "cd '" + folder.path().string() + "' && (trap '' XFSZ; ulimit -f 1000; '" + program +
                        "' tokenize a.txt --output t.bin) 2>stderr";
  int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 7) << folder.read("stderr");
  EXPECT_EQ(folder.read("t.bin"), "old!");
  EXPECT_EQ(folder.entries(), 3);  // a.txt, t.bin, stderr
}

const char* const kChats =
    R"({"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}
{"messages": [{"role": "user", "content": "3"}, {"role": "assistant", "content": "4"}]}
)";

TEST_F(FsdpData, TokenizesConversations) {
  folder.write("chats.jsonl", kChats);
  ASSERT_EQ(run("tokenize chats.jsonl --chat --chat-template chatml --output a.bin --threads 2"), 0) << err;
  EXPECT_EQ(
      out,
      "a.bin: 2 conversations, 126 tokens, 22 of the assistant\n"
      "half of the conversations have at most 63 tokens, 99 % at most 63; the longest have 63 (line 1 of "
      "chats.jsonl) and 63 (line 2 of chats.jsonl)\n"
      "data.documents = \"split\" and data.sequence_length = 62 keep each in one row\n");
  EXPECT_NE(err.find("recognised OpenAI's messages (messages: role, content) in chats.jsonl\n"),
            std::string::npos)
      << err;
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1);
  ASSERT_EQ(run("inspect a.bin"), 0) << err;
  EXPECT_NE(out.find("2 documents, 22 tokens of the assistant"), std::string::npos) << out;
  ASSERT_EQ(run("decode a.bin"), 0) << err;
  EXPECT_EQ(
      out.find("<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\n3"), 0u);
  // Another number of threads writes the same bytes.
  const std::string tokens = folder.read("a.bin"), turns = folder.read("a.bin.turns");
  ASSERT_EQ(run("tokenize - --chat --chat-template chatml --output a.bin --threads 1 <chats.jsonl"), 0)
      << err;
  EXPECT_EQ(folder.read("a.bin"), tokens);
  EXPECT_EQ(folder.read("a.bin.turns"), turns);
}

TEST_F(FsdpData, TakesConversationsFromAllFilesOfRowsAndLeavesOutBadOnes) {
  folder.write("chats.jsonl", kChats);
  ASSERT_EQ(run("tokenize chats.jsonl --chat --chat-template chatml --output a.bin"), 0) << err;
  const std::string tokens = folder.read("a.bin"), turns = folder.read("a.bin.turns");
  folder.write("some.jsonl.gz", gzip("{\"messages\": [{\"role\": \"bot\"}]}\n" + std::string(kChats)));
  ASSERT_EQ(run("tokenize some.jsonl.gz --chat --chat-template chatml --skip-bad 1 --output a.bin"), 0)
      << err;
  EXPECT_NE(err.find("line 1 of some.jsonl.gz"), std::string::npos) << err;
  EXPECT_EQ(folder.read("a.bin"), tokens);
  EXPECT_EQ(folder.read("a.bin.turns"), turns);

  folder.write(
      "pairs.jsonl",
      "{\"prompt\": \"two\", \"completion\": \"2\"}\n{\"prompt\": \"three\", \"completion\": \"3\"}\n");
  ASSERT_EQ(run("tokenize pairs.jsonl --chat --chat-template chatml --output a.bin"), 0) << err;
  const std::string of_lines = folder.read("a.bin");
  write_parquet(folder / "pairs.parquet", {{"messages", column_of({std::nullopt, std::nullopt})},
                                           {"prompt", column_of({"two", "three"})},
                                           {"completion", column_of({"2", "3"})}});
  ASSERT_EQ(run("tokenize pairs.parquet --chat --chat-template chatml --output a.bin"), 0) << err;
  EXPECT_EQ(folder.read("a.bin"), of_lines);
  write_parquet(folder / "texts.parquet", {{"text", column_of({"a"})}});
  EXPECT_EQ(run("tokenize texts.parquet --chat --chat-template chatml --output a.bin"), 3);
  EXPECT_NE(err.find("messages"), std::string::npos) << err;
}

TEST_F(FsdpData, ReadsEachFileInItsOwnFormAndSaysWhich) {
  folder.write("a.json", R"([
  {"instruction": "Add.", "input": "1", "output": "2"},
  {"instruction": "Add.", "input": "", "output": "0"}
])");
  folder.write("b.jsonl",
               R"({"conversations": [{"from": "human", "value": "1"}, {"from": "gpt", "value": "2"}]})");
  folder.write("c.json", R"([{"output": "2", "instruction": "1"}])");
  ASSERT_EQ(run("tokenize a.json b.jsonl c.json --chat --chat-template chatml --output t.bin"), 0) << err;
  EXPECT_EQ(
      err,
      "info: recognised Alpaca (instruction, output) in a.json and 1 more file, ShareGPT (conversations: from, "
      "value) in b.jsonl\n");
  EXPECT_NE(out.find("(element 1 of a.json (line 2))"), std::string::npos) << out;
  write_parquet(folder / "a.parquet", {{"instruction", column_of({"Add.", "Add."})},
                                       {"input", column_of({"1", std::nullopt})},
                                       {"output", column_of({"2", "0"})}});
  ASSERT_EQ(run("tokenize a.json --chat --chat-template chatml --output t.bin"), 0) << err;
  ASSERT_EQ(run("tokenize a.parquet --chat --chat-template chatml --output p.bin"), 0) << err;
  EXPECT_EQ(folder.read("p.bin"), folder.read("t.bin"));

  folder.write("mixed.json", R"([{"instruction": "1", "output": "2"},
{"prompt": "1", "completion": "2"}, {"instruction": "3", "output": "4"}, {"text": "a"}])");
  ASSERT_EQ(run("tokenize mixed.json --chat --chat-template chatml --output t.bin"), 3);
  EXPECT_EQ(
      err,
      "error: element 2 of mixed.json (line 2) is in the form of prompt and completion (prompt, completion), but "
      "the rows before it in the form of Alpaca (instruction, output); write them to a file of their own, or skip "
      "such rows with --skip-bad\n");
  ASSERT_EQ(run("tokenize mixed.json --chat --chat-template chatml --skip-bad 2 --output t.bin"), 0) << err;
  EXPECT_NE(
      err.find(
          "element 4 of mixed.json (line 2) has the fields \"text\", but must have those of a form of "
          "conversations: OpenAI's messages (messages: role, content), ShareGPT (conversations: from, value)"),
      std::string::npos)
      << err;
  EXPECT_EQ(out.find("t.bin: 2 conversations"), 0u) << out;
  ASSERT_EQ(run("decode t.bin"), 0) << err;
  EXPECT_EQ(out,
            "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
            "<|im_start|>user\n3<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n");
}

/// Pairs of preferences, in TRL's form.
std::string pairs(int count) {
  std::string rows;
  for (int i = 0; i < count; ++i)
    rows += util::concat(R"({"prompt": ")", 10 + i, R"(", "chosen": "yes", "rejected": "no"})", "\n");
  return rows;
}

TEST_F(FsdpData, TokenizesPreferences) {
  folder.write("pairs.jsonl", pairs(2));
  ASSERT_EQ(run("tokenize pairs.jsonl --preference --chat-template chatml --output a.bin --threads 2"), 0)
      << err;
  EXPECT_EQ(out,
            "a.bin: 2 pairs, 262 tokens, 26 of chosen and 24 of rejected answers\n"
            "half of the documents have at most 65 tokens, 99 % at most 66; the longest have 66 (line 1 of "
            "pairs.jsonl), 66 (line 2 of pairs.jsonl) and 65 (line 1 of pairs.jsonl)\n"
            "data.sequence_length = 130 keeps any two in one row\n");
  EXPECT_EQ(err, "info: recognised pairs of answers (prompt, chosen, rejected) in pairs.jsonl\n");
  ASSERT_EQ(run("inspect a.bin"), 0) << err;
  EXPECT_NE(out.find("4 documents, 50 tokens of the assistant (26 in last turns or chosen answers)"),
            std::string::npos)
      << out;
  ASSERT_EQ(run("decode a.bin"), 0) << err;
  EXPECT_EQ(out.find("<|im_start|>user\n10<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
                     "<|im_start|>user\n10<|im_end|>\n<|im_start|>assistant\nno<|im_end|>\n"),
            0u);

  folder.write("labels.jsonl", R"({"prompt": "1", "completion": "2", "label": true}
{"prompt": "1", "completion": "3", "label": false})");
  ASSERT_EQ(run("tokenize labels.jsonl --preference --chat-template chatml --output a.bin"), 0) << err;
  EXPECT_EQ(
      out.find("a.bin: 2 labelled answers, 126 tokens, 11 of desirable and 11 of undesirable answers\n"), 0u)
      << out;
  EXPECT_EQ(run("tokenize pairs.jsonl labels.jsonl --preference --chat-template chatml --output a.bin"), 3);
  EXPECT_EQ(err,
            "error: line 1 of labels.jsonl is one answer, but the rows before it are pairs of answers; write "
            "them to an output of their own\n");
}

TEST_F(FsdpData, KeepsPairsTogether) {
  folder.write("bad.jsonl", pairs(40) + R"({"prompt": "1", "chosen": "2", "rejected": "2"})");
  EXPECT_EQ(run("tokenize bad.jsonl --preference --chat-template chatml --output a.bin"), 3);
  EXPECT_EQ(
      err,
      "error: line 41 of bad.jsonl has equal answers in chosen and rejected; correct or remove it, or skip "
      "such rows with --skip-bad\n");
  ASSERT_EQ(run("tokenize bad.jsonl --preference --chat-template chatml --output a.bin --skip-bad 1 "
                "--validation-output v.bin --validation-fraction 0.4 --validation-split documents"),
            0)
      << err;
  // Each question has both answers in the same file, one after the other.
  int found = 0;
  for (const std::string name : {"a.bin", "v.bin"}) {
    ASSERT_EQ(run("decode " + name), 0) << err;
    int in_file = 0;
    for (int i = 10; i < 50; ++i) {
      const std::string question =
          util::concat("<|im_start|>user\n", i, "<|im_end|>\n<|im_start|>assistant\n");
      in_file +=
          out.find(util::concat(question, "yes<|im_end|>\n", question, "no<|im_end|>\n")) != std::string::npos
              ? 1
              : 0;
    }
    EXPECT_GT(in_file, 5);
    found += in_file;
  }
  EXPECT_EQ(found, 40);
}

TEST_F(FsdpData, ReadsPreferencesOfTables) {
  folder.write("pairs.jsonl", R"({"prompt": "1", "chosen": "yes", "rejected": "no"})");
  ASSERT_EQ(run("tokenize pairs.jsonl --preference --chat-template chatml --output a.bin"), 0) << err;
  write_parquet(folder / "pairs.parquet", {{"prompt", column_of({"1"})},
                                           {"chosen", column_of({"yes"})},
                                           {"rejected", column_of({"no"})},
                                           {"messages", column_of({std::nullopt})}});
  ASSERT_EQ(run("tokenize pairs.parquet --preference --chat-template chatml --output p.bin"), 0) << err;
  EXPECT_EQ(folder.read("p.bin"), folder.read("a.bin"));
  EXPECT_EQ(folder.read("p.bin.turns"), folder.read("a.bin.turns"));

  folder.write("labels.jsonl", R"({"prompt": "1", "completion": "yes", "label": false})");
  ASSERT_EQ(run("tokenize labels.jsonl --preference --chat-template chatml --output a.bin"), 0) << err;
  arrow::BooleanBuilder labels;
  ASSERT_TRUE(labels.Append(false).ok());
  write_parquet(folder / "labels.parquet", {{"prompt", column_of({"1"})},
                                            {"completion", column_of({"yes"})},
                                            {"label", labels.Finish().ValueOrDie()}});
  ASSERT_EQ(run("tokenize labels.parquet --preference --chat-template chatml --output p.bin"), 0) << err;
  EXPECT_EQ(folder.read("p.bin.turns"), folder.read("a.bin.turns"));
}

TEST_F(FsdpData, OptionsOfConversationsNeedTheirKind) {
  folder.write("pairs.jsonl", pairs(1));
  EXPECT_EQ(run("tokenize pairs.jsonl --chat-template chatml --output a.bin"), 2);
  EXPECT_EQ(
      err,
      "error: command line: --chat-template: expected --chat or --preference with it; found none; add one "
      "of them\n");
  EXPECT_EQ(run("tokenize pairs.jsonl --add-special-tokens --output a.bin"), 2);
  EXPECT_NE(err.find("--add-special-tokens: expected --chat or --preference"), std::string::npos) << err;
  EXPECT_EQ(run("tokenize pairs.jsonl --chat --preference --output a.bin"), 2);
  EXPECT_NE(err.find("expected one of --chat and --preference; found both"), std::string::npos) << err;
  EXPECT_EQ(
      run("tokenize pairs.jsonl --preference --chat-template none --document-separator eos --output a.bin"),
      2);
  EXPECT_NE(err.find("conversations end, without a --document-separator"), std::string::npos) << err;
}

TEST_F(FsdpData, AddsTheMarkersOfATemplateToTheTokenizer) {
  folder.write("chats.jsonl", kChats);
  const std::string tokenizer = fsdp::testing::source_folder() + "/tests/data/chat/llama3";
  const std::string command =
      "tokenize chats.jsonl --chat --chat-template chatml --output a.bin --tokenizer ";
  ASSERT_EQ(run(command + tokenizer), 3);
  EXPECT_NE(err.find("--add-special-tokens to add them"), std::string::npos) << err;
  ASSERT_EQ(run(command + tokenizer + " --add-special-tokens"), 0) << err;
  EXPECT_NE(err.find("info: added <|im_start|> ("), std::string::npos) << err;
  EXPECT_NE(
      err.find(
          "data.tokenizer = \"a.bin.tokenizer\" has them, for a model with model.vocab_size of at least "),
      std::string::npos)
      << err;
  const std::string tokens = folder.read("a.bin");
  ASSERT_EQ(run("decode a.bin --tokenizer a.bin.tokenizer"), 0) << err;
  EXPECT_EQ(out.find("<|im_start|>user\n1<|im_end|>\n"), 0u) << out;
  ASSERT_EQ(run(command + "a.bin.tokenizer --add-special-tokens"), 0) << err;
  EXPECT_NE(err.find("nothing was added"), std::string::npos) << err;
  EXPECT_EQ(folder.read("a.bin"), tokens);
  EXPECT_EQ(run(command + tokenizer + " --add-special-tokens --spell-markers"), 2);
}

TEST_F(FsdpData, NamesTheFileAndLineOfABadConversation) {
  folder.write("chats.jsonl", std::string(kChats) + "\n{\"messages\": [{\"role\": \"bot\"}]}\n");
  ASSERT_EQ(run("tokenize chats.jsonl --chat --chat-template chatml --output a.bin"), 3);
  EXPECT_EQ(
      err,
      "error: line 4 of chats.jsonl message 1 has the role \"bot\", but expected system, developer, user, "
      "assistant or tool; correct or remove it, or skip such rows with --skip-bad\n");
  EXPECT_EQ(folder.entries(), 3);  // with stdout and stderr
  folder.write("bad.jinja", "{{ messages | }}");
  ASSERT_EQ(run("tokenize chats.jsonl --chat --chat-template bad.jinja --output a.bin"), 3);
  EXPECT_EQ(err.find("error: the chat template bad.jinja, line 1, column 15: "), 0u) << err;
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1);
  ASSERT_EQ(run("tokenize chats.jsonl --chat --output a.bin"), 2);
  EXPECT_NE(err.find("give one by --chat-template"), std::string::npos) << err;
  ASSERT_EQ(
      run("tokenize chats.jsonl --chat --chat-template chatml --document-separator none --output a.bin"), 2);
  ASSERT_EQ(run("tokenize chats.jsonl --chat-template chatml --output a.bin"), 2);
}

}  // namespace
}  // namespace fsdp::data
