#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "setup/config/config_text.h"
#include "setup/config/load.h"

namespace fsdp::config {
namespace {

TEST(LoadErrors, UnderlineTheValue) {
  EXPECT_EQ(error_of(kTrain + "[training]\nsteps = \"many\"   # words\n"),
            "c.toml:4: training.steps must be an integer >= 1 and <= 1000000000, but is the string \"many\"\n"
            "    4 | steps = \"many\"   # words\n"
            "      |         ~~~~~~");
  EXPECT_EQ(error_of(kTrain + "[optimizer]\nbetas = [0.9, 1.5]\n"),
            "c.toml:4: optimizer.betas must be a list of 2 numbers >= 0 and < 1, but is [0.9, 1.5]\n"
            "    4 | betas = [0.9, 1.5]\n"
            "      |         ~~~~~~~~~~");
  EXPECT_EQ(
      error_of(kTrain + "[optimizer]\nbetas = [0.9, \"b\"]\n"),
      "c.toml:4: optimizer.betas must be a list of 2 numbers >= 0 and < 1, but contains the string \"b\"\n"
      "    4 | betas = [0.9, \"b\"]\n"
      "      |               ~~~");
}

TEST(LoadErrors, NameTheNearestKeyAndSection) {
  EXPECT_EQ(error_of(kTrain + "[model]\nhiden_size = 256\n"),
            "c.toml:4: unknown key model.hiden_size; did you mean model.hidden_size?\n"
            "    4 | hiden_size = 256\n"
            "      | ~~~~~~~~~~");
  EXPECT_EQ(error_of(kTrain + "[modle]\nhidden_size = 256\n"),
            "c.toml:3: unknown section [modle]; did you mean [model]?\n"
            "    3 | [modle]\n"
            "      | ~~~~~~~");
  expect_in(error_of(kTrain + "[training]\nlr = 0.1\n"),
            "unknown key training.lr; did you mean optimizer.lr or outer_optimizer.lr?");
  expect_in(error_of(kTrain + "[model.extra]\na = 1\n"),
            "unknown key model.extra; the keys of [model] are preset, architecture, ");
  expect_in(error_of(kTrain + "[something_else]\n"),
            "unknown section [something_else]; the sections are run, model, lora, data");
  // Set from training.fused_kernels; no key of its own.
  expect_in(error_of(kTrain + "[optimizer]\nfused = true\n"), "c.toml:4: unknown key optimizer.fused");
}

TEST(LoadErrors, KeysBelongInSections) {
  expect_in(error_of("steps = 3\n" + kTrain),
            "c.toml:1: every key must be in a section, but steps is outside all sections; did "
            "you mean training.steps?");
  expect_in(error_of("stepps = 3\n" + kTrain), "did you mean training.steps?");
  expect_in(error_of("a = 3\n" + kTrain), "outside all sections; the sections are run, model, ");
  expect_in(error_of("model = 3\n" + kTrain),
            "c.toml:1: [model] must be a section (a table), but is another");
  expect_in(error_of("[[model]]\nhidden_size = 3\n" + kTrain),
            "c.toml:1: [model] must be a section (a table)");
}

TEST(LoadErrors, AllAreReportedAtOnce) {
  std::string message = error_of(
      "[model]\nhidden_size = 255\nvocab_size = 1.5\n[training]\nstep = 3\n[data]\nsequence_length = 2048\n",
      {"fsdp.layout=flatt", "nonsense", "run.seed=-1"});
  expect_in(message, "the config has 8 errors:\nc.toml:3: model.vocab_size must be an integer");
  expect_in(message, "c.toml:5: unknown key training.step; did you mean training.steps?");
  expect_in(message, "command line: fsdp.layout must be one of");
  expect_in(message, "command line: expected section.key=value, such as training.steps=100; found nonsense");
  expect_in(message, "command line: run.seed must be an integer >= 0, but is -1");
  expect_in(message, "c.toml: data.train must be a list of at least one non-empty string");
  expect_in(message,
            "c.toml:2: model.hidden_size must be a multiple of model.num_attention_heads, but is 255 ");
  expect_in(message, "c.toml:7: data.sequence_length must be at most model.max_position_embeddings = 1024");
}

TEST(LoadErrors, AWrongKeyIsNotAlsoACauseOfConflicts) {
  std::string message = error_of(kTrain + "[model]\nnum_attention_heads = 0\nnum_key_value_heads = 3\n");
  EXPECT_EQ(message.find("num_key_value_heads must"), std::string::npos) << message;
}

TEST(LoadErrors, ThousandsAreNotAllShown) {
  std::string text = kTrain + "[run]\n";
  for (int i = 0; i < 100; ++i) text += "key_" + std::to_string(i) + " = 1\n";
  std::string message = error_of(text);
  expect_in(message, "the config has 100 errors:");
  expect_in(message, "\nand 60 more");
}

TEST(LoadErrors, NumbersThatDoNotFit) {
  expect_in(error_of(kTrain + "[run]\nseed = 9223372036854775808\n"),
            "but is the integer 9223372036854775808, which does not fit in 64 bits");
  expect_in(error_of(kTrain + "[run]\nseed = 0xFFFFFFFFFFFFFFFFFF\n"), "which does not fit in 64 bits");
  expect_in(error_of(kTrain + "[optimizer]\nlr = 1e400\n"),
            "but is the float 1e400, which does not fit in 64 bits");
  expect_in(error_of(kTrain + "[training]\nsteps = 3.5\n"), "but is the float 3.5");
  expect_in(error_of(kTrain + "[run]\nseed = 1e17\n"), "but is the float 1e17");
  expect_in(error_of(kTrain + "[optimizer]\nlr = nan\n"), "but is nan");
  expect_in(error_of(kTrain + "[optimizer]\nlr = -inf\n"), "but is -inf");
}

TEST(LoadErrors, KeysAndSectionsAppearOnce) {
  EXPECT_EQ(error_of(kTrain + "[training]\nsteps = 3\nsteps = 4\n"),
            "c.toml:5: a key or section must appear only once, but this one is already on line "
            "4; keep one of them\n"
            "    5 | steps = 4\n"
            "      |         ^");
  expect_in(error_of(kTrain + "[data]\nshuffle = true\n"),
            "c.toml:3: a key or section must appear only once");
}

TEST(LoadErrors, SyntaxErrorsHaveTheirLine) {
  EXPECT_EQ(error_of(kTrain + "[run]\nname = trial\n"),
            "c.toml:4: not valid TOML: trial is not a value; text needs quotes\n"
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
    EXPECT_TRUE(message.starts_with(wrong.where + "not valid TOML: ")) << message;
  }
}

TEST(LoadErrors, ASyntaxErrorDoesNotHideThoseOfTheOverrides) {
  std::string message = error_of("[run\n", {"training.steps=no"});
  expect_in(message, "the config has 2 errors:\nc.toml:1: not valid TOML");
  expect_in(message, "command line: training.steps must be an integer");
}

TEST(LoadErrors, BytesThatAreNotText) {
  expect_in(error_of("[run]\nname = \"\xff\"\n"),
            "c.toml:2: not valid TOML, which is UTF-8 text: found the byte 0xff in column 9");
  expect_in(error_of(std::string("\0\0\x01", 3)),
            "c.toml:1: not valid TOML, which is UTF-8 text: found the byte 0x00");
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
            "c.toml:2: expected at most 32768 bytes in a line; found 68010; put the");
}

TEST(LoadErrors, LongLinesAreCutAroundTheValue) {
  std::string files = "[data]\ntrain = [";
  for (int i = 0; i < 1000; ++i) files += "\"data/part.bin\", ";
  std::string message = error_of(files + "7, \"z\"]\n");
  expect_in(message, "contains the integer 7\n    2 | ...");
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
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << damaged;
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
  expect_in(usage_error_of([&] { load_config(wrong); }), wrong.string() + ":4: run.seed must be");
}

TEST(LoadFile, RefusesUnreadableFiles) {
  testing::TemporaryFolder folder;
  auto refusal = [](const std::filesystem::path& path) { return usage_error_of([&] { load_config(path); }); };
  auto missing = folder.path() / "missing.toml";
  EXPECT_EQ(refusal(missing),
            missing.string() +
                ": expected a TOML file; found no such file; correct the name, or write a first "
                "config with: fsdp-train init quickstart --output " +
                missing.string());
  EXPECT_EQ(refusal(folder.path()), folder.path().string() + ": expected a TOML file; found a folder");
  EXPECT_EQ(refusal(""), "the path of the config: expected a TOML file; found an empty path");
  auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_in(refusal(pipe), "found a pipe, socket or device");
  expect_in(refusal(folder.write("file", "x") / "below.toml"), ": expected a TOML file; found ");
  expect_in(refusal(folder.write("large.toml", std::string(300'000, '#'))), "more than the 256.0 KiB");
  expect_in(refusal(folder.write("empty.toml", "")), "empty.toml: data.train must be a list of at least one");
  if (::geteuid() != 0) {
    auto secret = folder.write("secret.toml", kTrain);
    std::filesystem::permissions(secret, std::filesystem::perms::none);
    expect_in(refusal(secret), "found that it cannot be read: ");
  }
}

TEST(OverrideErrors, ShowTheOverride) {
  EXPECT_EQ(error_of(kTrain, {"training.steps=ten"}),
            "command line: training.steps must be an integer >= 1 and <= 1000000000, but is ten, "
            "which is not a TOML value\n"
            "    training.steps=ten\n"
            "                   ~~~");
  EXPECT_EQ(error_of(kTrain, {"training.stps=10"}),
            "command line: unknown key training.stps; did you mean training.steps?\n"
            "    training.stps=10\n"
            "    ~~~~~~~~~~~~~");
  expect_in(error_of(kTrain, {"steps=10"}), "found steps without a section; did you mean training.steps=?");
  expect_in(error_of(kTrain, {"training.steps"}), "found training.steps without a value");
  expect_in(error_of(kTrain, {""}), "found no key");
  expect_in(error_of(kTrain, {"=3"}), "found no key");
  expect_in(error_of(kTrain, {"training.steps="}), "but is empty");
  expect_in(error_of(kTrain, {"traning.steps=3"}), "did you mean training.steps?");
  expect_in(error_of(kTrain, {"run.name="}), "run.name must be a non-empty string");
  expect_in(error_of(kTrain, {"run.name=\"open"}), "which is not a TOML value");
  expect_in(error_of(kTrain, {"data.train=a.bin"}),
            "such as [\"one\", \"two\"], but is a.bin, which is not a TOML");
  expect_in(error_of(kTrain, {"training.steps=1\ntraining.steps=2"}), "on one line; found a line break");
  expect_in(error_of(kTrain, {"run.name=\xff"}), "found the byte 0xff");
}

TEST(OverrideErrors, NameTheNearestValue) {
  expect_in(error_of(kTrain, {"optimizer.name=adamW"}), ", but is \"adamW\"; did you mean \"adamw\"?");
  expect_in(error_of(kTrain, {"model.preset=llama3-8B"}), "; did you mean \"llama3-8b\"?");
  expect_in(error_of(kTrain, {"fsdp.cpu_offload=True"}), "; did you mean true?");
  expect_in(error_of(kTrain, {"fsdp.cpu_offload=\"True\""}), "; did you mean true?");
  expect_in(error_of(kTrain, {"training.Steps=3"}), "; did you mean training.steps?");
  EXPECT_EQ(error_of(kTrain, {"optimizer.name=banana"}).find("did you mean"), std::string::npos);
}

TEST(OverrideErrors, AConflictPointsAtTheOverride) {
  EXPECT_EQ(error_of(kTrain, {"data.sequence_length=2048"}),
            "command line: data.sequence_length must be at most model.max_position_embeddings = "
            "1024, but is 2048; change one of the two\n"
            "    data.sequence_length=2048\n"
            "                         ~~~~");
}

}  // namespace
}  // namespace fsdp::config
