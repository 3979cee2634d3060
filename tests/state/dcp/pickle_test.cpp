#include "state/dcp/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "support/checkpoint_fixtures.h"
#include "support/resident_memory.h"

namespace fsdp::checkpoint {
namespace {

using namespace fsdp::testing;
using namespace std::string_literals;
using ::testing::HasSubstr;
using ValueKind = PickleValue::ValueKind;

constexpr std::array<std::string_view, 2> kKnown{"module.Known", "collections.OrderedDict"};

Pickle read(std::string bytes, const PickleLimits& limits = {}) {
  return Pickle(std::move(bytes), kKnown, "the file", limits);
}

void expect_refused(const std::string& bytes, const std::string& text, const PickleLimits& limits = {}) {
  const auto [kind, found] = error_of([&] { read(bytes, limits); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint) << text;
  EXPECT_THAT(found, HasSubstr(text));
  EXPECT_THAT(found, HasSubstr("the file: the pickle"));
  EXPECT_EQ(found.find('\n'), std::string::npos) << found;
}

// pickle.dumps([1, -2, 70000, 2**40, 2.5, None, True, "text", (0.9, 0.95)], protocol=2)
TEST(Pickle, ReadsPlainValues) {
  const auto value = read(
      "\200\002\135\161\000\050\113\001\112\376\377\377\377\112\160\021\001\000\212\006\000\000\000\000"
      "\000\001\107\100\004\000\000\000\000\000\000\116\210\130\004\000\000\000\164\145\170\164\161\001"
      "\107\077\354\314\314\314\314\314\315\107\077\356\146\146\146\146\146\146\206\161\002\145\056"s);
  const PickleValue& list = value.root();
  ASSERT_EQ(list.items.size(), 9u);
  EXPECT_EQ(json_of(list, 100).dump(), R"([1,-2,70000,1099511627776,2.5,null,true,"text",null])");
  EXPECT_EQ(json_of(*list.items.back(), 0).dump(), "[0.9,0.95]");
}

TEST(Pickle, ReadsNegativeNumbersOfAnyLength) {
  EXPECT_EQ(read("\x80\x02\x8a\x01\xff."s).root().number, -1);
  EXPECT_EQ(read("\x80\x02\x8a\x00."s).root().number, 0);
  EXPECT_EQ(read("\x80\x02\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."s).root().number, INT64_MIN);
  expect_refused("\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."s, "a number of 9 bytes");
}

TEST(Pickle, KeepsCallsOfKnownGlobalsAsData) {
  const auto value = read(
      "\x80\x02"
      "cmodule\nKnown\n(K\x01K\x02tR}(X\x01\x00\x00\x00"
      "aK\x03ub."s);
  const PickleValue& object = value.root();
  EXPECT_TRUE(object.is_object("module.Known"));
  ASSERT_EQ(object.inner->items.size(), 2u);
  ASSERT_NE(object.state, nullptr);
  EXPECT_EQ(find_item(*object.state, "a")->number, 3);
  EXPECT_EQ(find_item(*object.state, "b"), nullptr);
  EXPECT_TRUE(read("\x80\x02"
                   "ccollections\nOrderedDict\n)R."s)
                  .root()
                  .is(ValueKind::kDict));
}

TEST(Pickle, RefusesToNameAnythingElseHoweverItIsNamed) {
  const std::string command = "X\x0b\x00\x00\x00touch /tmp/x\x85"s;
  // __reduce__ of a class that returns (os.system, ("...",)), in protocols 2 and 4.
  expect_refused(
      "\x80\x02"
      "cposix\nsystem\n" +
          command + "R.",
      R"(names "posix.system")");
  expect_refused("\x80\x04\x8c\x02os\x8c\x06system\x93" + command + "R.", R"(names "os.system")");
  expect_refused("\x80\x02(iposix\nsystem\n.", R"(names "posix.system")");
  // eval through the builtins, and a known global's own module or attribute.
  expect_refused(
      "\x80\x02"
      "c__builtin__\neval\n(X\x01\x00\x00\x00"
      "1tR."s,
      R"(names "__builtin__.eval")");
  expect_refused(
      "\x80\x02"
      "cmodule\nKnown.__init__\n)R.",
      R"(names "module.Known.__init__")");
  expect_refused(
      "\x80\x04\x8c\x06module\x8c\x08"
      "Known.os\x93."s,
      R"(names "module.Known.os")");
  expect_refused(
      "\x80\x02"
      "cmodule.Known\n\n)R.",
      R"(names "module.Known.")");
  expect_refused(
      "\x80\x02"
      "c\nmodule.Known\n)R.",
      R"(names ".module.Known")");
  expect_refused(
      "\x80\x02"
      "cbad\nna\x01\xffme\n)R."s,
      R"(names "bad.na\u0001)");
}

TEST(Pickle, RefusesToCallOrChangeWhatIsNoGlobal) {
  expect_refused("\x80\x02X\x02\x00\x00\x00os)R."s, "calls a value that is not a function");
  expect_refused(
      "\x80\x02"
      "cmodule\nKnown\n)R)R."s,
      "calls a value that is not a function");
  expect_refused(
      "\x80\x02"
      "cmodule\nKnown\n]R."s,
      "calls a value that is not a function");
  expect_refused("\x80\x02}}b."s, "sets the state of a value that has none");
  expect_refused(
      "\x80\x02"
      "cmodule\nKnown\n}b."s,
      "sets the state of a value that has none");
  expect_refused(
      "\x80\x02"
      "cmodule\nKnown\n)R}b}b."s,
      "sets the state of a value that has none");
}

TEST(Pickle, RefusesOpcodesThatItDoesNotKnow) {
  // PERSID, EXT1, NEWOBJ_EX, OBJ, BYTEARRAY8, NEXT_BUFFER, POP, DUP
  for (const std::string& opcode : {"P1\n"s, "\x82\x01"s, "\x92"s, "o"s, "\x96"s, "\x97"s, "0"s, "2"s}) {
    expect_refused("\x80\x05" + opcode + "N.", "has the opcode");
  }
  expect_refused("\x80\x06N."s, "the protocol 6");
}

TEST(Pickle, RefusesOneThatIsCutOffAnywhere) {
  const std::string whole =
      "\x80\x02"
      "cmodule\nKnown\n(K\x01K\x02tR}(X\x01\x00\x00\x00"
      "aK\x03ub."s;
  read(whole);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) expect_refused(whole.substr(0, bytes), "");
  expect_refused(whole + "N", "is followed by something else");
}

TEST(Pickle, RefusesLengthsBeyondItsEnd) {
  expect_refused(
      "\x80\x02X\xff\xff\xff\xff"
      "a."s,
      "is cut off");
  expect_refused(
      "\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
      "a."s,
      "is cut off");
  expect_refused("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f."s, "is cut off");
}

TEST(Pickle, RefusesAStackThatDoesNotFit) {
  expect_refused("\x80\x02."s, "does not end with one value");
  expect_refused("\x80\x02NN."s, "does not end with one value");
  expect_refused("\x80\x02N(."s, "does not end with one value");
  expect_refused("\x80\x02t."s, "has no mark");
  expect_refused("\x80\x02\x86."s, "takes more values than it has made");
  expect_refused("\x80\x02N(\x85."s, "takes more values than it has made");  // below a mark
  expect_refused("\x80\x02]}s."s, "takes more values");
  expect_refused("\x80\x02}NNNs."s, "that is not a dict");
  expect_refused("\x80\x02}(Nu."s, "a key without a value");
  expect_refused("\x80\x02)Na."s, "that is not a list");
}

TEST(Pickle, ReadsValuesThatContainThemselves) {
  const auto value = read(
      "\x80\x02]q\x00h\x00"
      "a."s);  // a = []; a.append(a)
  ASSERT_EQ(value.root().items.size(), 1u);
  EXPECT_EQ(value.root().items.front(), &value.root());
  EXPECT_EQ(json_of(value.root(), 100).dump(), "[null]");
}

TEST(Pickle, KeepsNoMoreValuesThanAllowed) {
  expect_refused("\x80\x02r\xff\xff\xff\xff."s, "keeps a value under");
  expect_refused("\x80\x02Nr\xff\xff\xff\xff."s, "keeps a value under 4294967295");
  expect_refused("\x80\x02h\x07."s, "takes the value kept under 7");
  std::string many = "\x80\x02(";
  for (int i = 0; i < 1000; ++i) many += "J\xff\xff\xff\xff";
  many += "t.";
  EXPECT_EQ(read(many).root().items.size(), 1000u);
  expect_refused(many, "more than 1000 values", {.most_values = 1000});
  // Copies of one value take no memory of their own, and nesting needs no recursion.
  std::string deep = "\x80\x02]";
  for (int i = 0; i < 60'000; ++i) deep += "\x85\x94";
  EXPECT_EQ(read(deep + ".").root().items.size(), 1u);
}

TEST(Pickle, MakesNoMoreValuesThanItsBytesAccountFor) {
  const auto measured = [](const std::string& bytes) {
    return rise_of_resident_memory([&] {
      try {
        read(bytes, {.most_values = int64_t{1} << 40});
      } catch (const util::Error&) {
      }
    });
  };
  for (const std::string& opcode :
       {"N"s, "]"s, "}"s, ")"s, "K\x01"s, "M\x01\x01"s, "\x88"s, "N\x94"s, "]N"s, "]\x85"s}) {
    std::string bytes = "\x80\x02(";
    while (bytes.size() < size_t{2} << 20) bytes += opcode;
    bytes += "t.";
    EXPECT_LT(measured(bytes), 64 * static_cast<int64_t>(bytes.size())) << ::testing::PrintToString(opcode);
  }
  expect_refused("\x80\x02(" + std::string(100'000, ']') + "t.", "values, the most that such a file may have",
                 {.most_values = int64_t{1} << 40});
}

TEST(Pickle, CopiesNoTextForEachOfItsNames) {
  // One text, kept under 0, many times.
  std::string bytes = "\x80\x02(X" + "\xe8\x03\0\0"s + std::string(1000, 'x') + "q" + std::string(1, '\0');
  for (int i = 0; i < 1000; ++i) bytes += "h" + std::string(1, '\0');
  bytes += "t.";
  const auto value = read(bytes);
  EXPECT_LT(json_of(value.root(), bytes.size()).dump().size(), 20'000U);
}

}  // namespace
}  // namespace fsdp::checkpoint
