#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/config_text.h"
#include "config/load.h"

namespace fsdp::config {
namespace {

/// Expects `part` in `text`, and shows the text otherwise.
void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected: " << part << "\nin: " << text;
}

TEST(LoadErrors, UnderlineTheValue) {
  EXPECT_EQ(
      error_of(kTrain + "[training]\nsteps = \"many\"   # words\n"),
      "c.toml:4: training.steps: expected an integer >= 1 and <= 1000000000; found the string \"many\"\n"
      "    4 | steps = \"many\"   # words\n"
      "      |         ~~~~~~");
  EXPECT_EQ(error_of(kTrain + "[optimizer]\nbetas = [0.9, 1.5]\n"),
            "c.toml:4: optimizer.betas: expected a list of 2 numbers >= 0 and < 1; found [0.9, 1.5]\n"
            "    4 | betas = [0.9, 1.5]\n"
            "      |         ~~~~~~~~~~");
  EXPECT_EQ(error_of(kTrain + "[optimizer]\nbetas = [0.9, \"b\"]\n"),
            "c.toml:4: optimizer.betas: expected a list of 2 numbers >= 0 and < 1; found the string \"b\" "
            "in the list\n"
            "    4 | betas = [0.9, \"b\"]\n"
            "      |               ~~~");
}

TEST(LoadErrors, SayWhatThisVersionCannotDo) {
  EXPECT_EQ(error_of(kTrain + "[mesh]\nmodel = 2\n"),
            "c.toml:4: mesh.model: expected 1; found 2 (this version has no tensor parallelism)\n"
            "    4 | model = 2\n"
            "      |         ^");
}

TEST(LoadErrors, NameTheNearestKeyAndSection) {
  EXPECT_EQ(error_of(kTrain + "[model]\nhiden_size = 256\n"),
            "c.toml:4: expected a key that exists; found model.hiden_size; did you mean model.hidden_size?\n"
            "    4 | hiden_size = 256\n"
            "      | ~~~~~~~~~~");
  EXPECT_EQ(error_of(kTrain + "[modle]\nhidden_size = 256\n"),
            "c.toml:3: expected a section that exists; found [modle]; did you mean [model]?\n"
            "    3 | [modle]\n"
            "      | ~~~~~~~");
  expect_in(error_of(kTrain + "[training]\nlr = 0.1\n"), "found training.lr; did you mean optimizer.lr?");
  expect_in(error_of(kTrain + "[model.extra]\na = 1\n"),
            "found model.extra; [model] has preset, architecture, ");
  expect_in(error_of(kTrain + "[something_else]\n"), "expected one of the sections run, model, data");
  // Set from training.fused_kernels; no key of its own.
  expect_in(error_of(kTrain + "[optimizer]\nfused = true\n"), "c.toml:4: expected a key that exists");
}

TEST(LoadErrors, KeysBelongIntoSections) {
  expect_in(error_of("steps = 3\n" + kTrain),
            "c.toml:1: expected every key in a section; found steps outside of all "
            "sections; did you mean training.steps?");
  expect_in(error_of("stepps = 3\n" + kTrain), "did you mean training.steps?");
  expect_in(error_of("a = 3\n" + kTrain), "outside of all sections; there are the sections run, model, ");
  expect_in(error_of("model = 3\n" + kTrain),
            "c.toml:1: expected the section [model], a table; found another");
  expect_in(error_of("[[model]]\nhidden_size = 3\n" + kTrain),
            "c.toml:1: expected the section [model], a table");
}

TEST(LoadErrors, AllAreReportedAtOnce) {
  std::string message = error_of(
      "[model]\nhidden_size = 255\nvocab_size = 1.5\n[training]\nstep = 3\n[data]\nsequence_length = 2048\n",
      {"fsdp.layout=flatt", "nonsense", "run.seed=-1"});
  expect_in(message, "the configuration has 8 errors:\nc.toml:3: model.vocab_size: expected an integer");
  expect_in(message,
            "c.toml:5: expected a key that exists; found training.step; did you mean training.steps?");
  expect_in(message, "command line: fsdp.layout: expected one of");
  expect_in(message, "command line: expected section.key=value, such as training.steps=100; found nonsense");
  expect_in(message, "command line: run.seed: expected an integer >= 0; found -1");
  expect_in(message, "c.toml: data.train: expected a list of at least one non-empty string");
  expect_in(message,
            "c.toml:2: model.hidden_size: expected a multiple of model.num_attention_heads; found 255 ");
  expect_in(message, "c.toml:7: data.sequence_length: expected at most model.max_position_embeddings = 1024");
}

TEST(LoadErrors, AWrongKeyIsNotAlsoACauseOfConflicts) {
  std::string message = error_of(kTrain + "[model]\nnum_attention_heads = 0\nnum_key_value_heads = 3\n");
  EXPECT_EQ(message.find("num_key_value_heads: expected"), std::string::npos) << message;
}

TEST(LoadErrors, ThousandsAreNotAllShown) {
  std::string text = kTrain + "[run]\n";
  for (int i = 0; i < 100; ++i) text += "key_" + std::to_string(i) + " = 1\n";
  std::string message = error_of(text);
  expect_in(message, "the configuration has 100 errors:");
  expect_in(message, "\nand 60 more");
}

TEST(LoadErrors, NumbersThatDoNotFit) {
  expect_in(error_of(kTrain + "[run]\nseed = 9223372036854775808\n"),
            "found the integer 9223372036854775808, which 64 bits do not hold");
  expect_in(error_of(kTrain + "[run]\nseed = 0xFFFFFFFFFFFFFFFFFF\n"), "which 64 bits do not hold");
  expect_in(error_of(kTrain + "[optimizer]\nlr = 1e400\n"),
            "found the float 1e400, which 64 bits do not hold");
  expect_in(error_of(kTrain + "[training]\nsteps = 3.0\n"), "found the float 3.0");
  expect_in(error_of(kTrain + "[optimizer]\nlr = nan\n"), "found nan");
  expect_in(error_of(kTrain + "[optimizer]\nlr = -inf\n"), "found -inf");
}

TEST(LoadErrors, KeysAndSectionsStandOnce) {
  EXPECT_EQ(error_of(kTrain + "[training]\nsteps = 3\nsteps = 4\n"),
            "c.toml:5: expected every key and section once; found a second one, the first is in line 4; "
            "keep one of them\n"
            "    5 | steps = 4\n"
            "      |         ^");
  expect_in(error_of(kTrain + "[data]\nshuffle = true\n"), "c.toml:3: expected every key and section once");
}

TEST(LoadErrors, SyntaxErrorsHaveTheirLine) {
  EXPECT_EQ(error_of(kTrain + "[run]\nname = trial\n"),
            "c.toml:4: expected TOML; found this: trial is no TOML value; text needs quotes\n"
            "    4 | name = trial\n"
            "      |        ~~~~~");
  struct Case {
    std::string text;
    std::string where;
  };
  for (const Case& wrong : std::vector<Case>{{"[run]\nname = \"open\n", "c.toml:2: "},
                                             {"[run]\nname = \n", "c.toml:2: "},
                                             {"[data]\ntrain = [a.bin]\n", "c.toml:2: "},
                                             {"\n[run\n", "c.toml:2: "},
                                             {"[run]\nseed = 1 2\n", "c.toml:2: "},
                                             {"[run]\nseed = 07\n", "c.toml:2: "},
                                             {"[run]\nname = \"\\q\"\n", "c.toml:2: "},
                                             {"[run]\nname = \"\\uD800\"\n", "c.toml:2: "},
                                             {"[run]\nseed = 9999-99-99\n", "c.toml:2: "},
                                             {"[data]\n\ntrain = [\"a\"\n[run]\n", "c.toml:4: "},
                                             {"= 3\n", "c.toml:1: "},
                                             {"[]\n", "c.toml:1: "}}) {
    std::string message = error_of(wrong.text);
    EXPECT_TRUE(message.starts_with(wrong.where + "expected TOML; found this: ")) << message;
  }
}

TEST(LoadErrors, ASyntaxErrorDoesNotHideThoseOfTheOverrides) {
  std::string message = error_of("[run\n", {"training.steps=no"});
  expect_in(message, "the configuration has 2 errors:\nc.toml:1: expected TOML");
  expect_in(message, "command line: training.steps: expected an integer");
}

TEST(LoadErrors, BytesThatAreNoText) {
  expect_in(error_of("[run]\nname = \"\xff\"\n"),
            "c.toml:2: expected TOML, a text in UTF-8; found the byte 0xff in column 9");
  expect_in(error_of(std::string("\0\0\x01", 3)),
            "c.toml:1: expected TOML, a text in UTF-8; found the byte 0x00");
  expect_in(error_of("a = 1\rb = 2\n"), "found the byte 0x0d");          // a lone carriage return
  expect_in(error_of("a = \"\xC0\x80\"\n"), "found the byte 0xc0");      // overlong
  expect_in(error_of("a = \"\xED\xA0\x80\"\n"), "found the byte 0xed");  // a surrogate
}

TEST(LoadErrors, DeepNestingDoesNotExhaustTheStack) {
  expect_in(error_of("a = " + std::string(100'000, '[') + "\n"), "more than 32 levels of nesting");
  std::string dotted = "a";
  for (int i = 0; i < 100'000; ++i) dotted += ".a";
  expect_in(error_of(dotted + " = 1\n"), "more than 32 levels of nesting");
  expect_in(error_of("[" + dotted + "]\n"), "more than 32 levels of nesting");
  // Brackets and dots inside of text do not count.
  std::string harmless = "'";
  harmless.append(50, '[').append(50, '.').append("'");
  EXPECT_EQ(parse_config("[data]\ntrain = [" + harmless + "]  # " + std::string(50, '['), "c.toml")
                .data.train.size(),
            1u);
}

TEST(LoadErrors, VeryLongLinesAreRefusedBeforeTheyTakeForEver) {
  std::string files = "[data]\ntrain = [";
  for (int i = 0; i < 4000; ++i) files += "\"data/part.bin\", ";
  expect_in(error_of(files + "]\n"),
            "c.toml:2: expected at most 32768 bytes in a line; found 68010; give the");
}

TEST(LoadErrors, LongLinesAreCutAroundTheValue) {
  std::string files = "[data]\ntrain = [";
  for (int i = 0; i < 1000; ++i) files += "\"data/part.bin\", ";
  std::string message = error_of(files + "7, \"z\"]\n");
  expect_in(message, "found the integer 7 in the list\n    2 | ...");
  EXPECT_LT(message.size(), 500u);
}

TEST(LoadErrors, NothingButUsageErrorsComesOutOfDamagedText) {
  const std::string text =
      kTrain + "[run]\nname = \"a\\u00e4\"\nseed = 0x1_F\n[optimizer]\nlr = 1e-3\n" +
      "betas = [0.9, 0.95]\nno_decay = ['*']\n[model]\nhidden_size = { a = \"\"\"b\"\"\" }\n";
  const std::string marks = "\"'[]{}=.,#\n\r\\_-+0x\t\xC3 ";
  int refused = 0;
  const auto try_it = [&](const std::string& damaged) {
    try {
      parse_config(damaged, "c.toml");
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), util::ErrorKind::kUsage) << damaged;
      ++refused;
    }
  };
  for (size_t at = 0; at < text.size(); ++at) {
    for (char mark : marks) {
      std::string replaced = text, inserted = text;
      replaced[at] = mark;
      inserted.insert(at, 1, mark);
      try_it(replaced);
      try_it(inserted);
      try_it(replaced.substr(0, at + 1));
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(LoadFile, ReadsFromTheDiskAndNamesThePath) {
  testing::TemporaryFolder folder;
  auto file = folder.write("c.toml", kTrain);
  EXPECT_EQ(load_config(file).data.train, (std::vector<std::string>{"a.bin"}));
  auto wrong = folder.write("d.toml", kTrain + "[run]\nseed = -1\n");
  expect_in(usage_error_of([&] { load_config(wrong); }), wrong.string() + ":4: run.seed: expected");
}

TEST(LoadFile, RefusesWhatIsNoReadableFile) {
  testing::TemporaryFolder folder;
  auto refusal = [](const std::filesystem::path& path) { return usage_error_of([&] { load_config(path); }); };
  auto missing = folder.path() / "missing.toml";
  EXPECT_EQ(refusal(missing),
            missing.string() +
                ": expected a TOML file; found no file of that name; correct the name, or write a "
                "config to begin with: fsdp-train init quickstart --output " +
                missing.string());
  EXPECT_EQ(refusal(folder.path()), folder.path().string() + ": expected a TOML file; found a folder");
  EXPECT_EQ(refusal(""), "the configuration's path: expected a TOML file; found an empty path");
  auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_in(refusal(pipe), "found a pipe, socket or device");
  expect_in(refusal(folder.write("file", "x") / "below.toml"), ": expected a TOML file; found ");
  expect_in(refusal(folder.write("large.toml", std::string(300'000, '#'))), "more than the 256.0 KiB");
  expect_in(refusal(folder.write("empty.toml", "")),
            "empty.toml: data.train: expected a list of at least one");
  if (::geteuid() != 0) {
    auto secret = folder.write("secret.toml", kTrain);
    std::filesystem::permissions(secret, std::filesystem::perms::none);
    expect_in(refusal(secret), "found that it cannot be read: ");
  }
}

TEST(OverrideErrors, ShowTheOverride) {
  EXPECT_EQ(
      error_of(kTrain, {"training.steps=ten"}),
      "command line: training.steps: expected an integer >= 1 and <= 1000000000; found ten, which is no "
      "TOML value\n"
      "    training.steps=ten\n"
      "                   ~~~");
  EXPECT_EQ(error_of(kTrain, {"training.stps=10"}),
            "command line: expected a key that exists; found training.stps; did you mean training.steps?\n"
            "    training.stps=10\n"
            "    ~~~~~~~~~~~~~");
  expect_in(error_of(kTrain, {"steps=10"}), "found steps without a section; did you mean training.steps=?");
  expect_in(error_of(kTrain, {"training.steps"}), "found training.steps without a value");
  expect_in(error_of(kTrain, {""}), "found no key");
  expect_in(error_of(kTrain, {"=3"}), "found no key");
  expect_in(error_of(kTrain, {"training.steps="}), "found nothing");
  expect_in(error_of(kTrain, {"traning.steps=3"}), "did you mean training.steps?");
  expect_in(error_of(kTrain, {"run.name="}), "run.name: expected a non-empty string");
  expect_in(error_of(kTrain, {"run.name=\"open"}), "which is no TOML value");
  expect_in(error_of(kTrain, {"data.train=a.bin"}),
            "such as [\"one\", \"two\"]; found a.bin, which is no TOML");
  expect_in(error_of(kTrain, {"training.steps=1\ntraining.steps=2"}), "in one line; found a line break");
  expect_in(error_of(kTrain, {"run.name=\xff"}), "found the byte 0xff");
}

TEST(OverrideErrors, NameTheNearestValue) {
  expect_in(error_of(kTrain, {"optimizer.name=adamW"}), "; found \"adamW\"; did you mean \"adamw\"?");
  expect_in(error_of(kTrain, {"model.preset=llama3-8B"}), "; did you mean \"llama3-8b\"?");
  expect_in(error_of(kTrain, {"fsdp.cpu_offload=True"}), "; did you mean true?");
  expect_in(error_of(kTrain, {"fsdp.cpu_offload=\"True\""}), "; did you mean true?");
  expect_in(error_of(kTrain, {"training.Steps=3"}), "; did you mean training.steps?");
  EXPECT_EQ(error_of(kTrain, {"optimizer.name=banana"}).find("did you mean"), std::string::npos);
}

TEST(OverrideErrors, AConflictPointsAtTheOverride) {
  EXPECT_EQ(
      error_of(kTrain, {"data.sequence_length=2048"}),
      "command line: data.sequence_length: expected at most model.max_position_embeddings = 1024; found "
      "2048; change one of the two\n"
      "    data.sequence_length=2048\n"
      "                         ~~~~");
}

}  // namespace
}  // namespace fsdp::config
