#include "shard/name_checks.h"

#include <algorithm>

#include "util/error.h"
#include "util/text.h"

namespace fsdp::shard {
namespace {

using util::concat;
using util::ErrorKind;
using util::fail;

constexpr size_t kNamesInAMessage = 10;

/// "a, b, c and 7 more".
std::string list_of(std::vector<std::string> names) {
  size_t left_out = names.size() > kNamesInAMessage ? names.size() - kNamesInAMessage : 0;
  names.resize(names.size() - left_out);
  std::string text = util::join(names, ", ");
  return left_out == 0 ? text : concat(text, " and ", left_out, " more");
}

std::string remedy_for(const std::string& word, const std::vector<std::string>& known) {
  std::string near = util::nearest(word, known);
  return near.empty() ? std::string("correct it or take it out") : concat("did you mean \"", near, "\"?");
}

void check_patterns(const GivenNames& given, const std::vector<std::string>& known,
                    const std::string& expected) {
  for (const std::string& pattern : given.names) {
    bool matched = std::any_of(known.begin(), known.end(), [&pattern](const std::string& name) {
      return util::matches_any(name, {pattern});
    });
    if (matched) continue;
    fail(ErrorKind::kUsage, given.option, ": expected ", expected, "; found \"", pattern,
         "\", which matches none; ", remedy_for(pattern, known));
  }
}

}  // namespace

void check_stage_types(const GivenNames& given, const std::vector<std::string>& known) {
  for (const std::string& type : given.names) {
    if (std::find(known.begin(), known.end(), type) != known.end()) continue;
    fail(ErrorKind::kUsage, given.option, ": expected types of stages that the model has (", list_of(known),
         "); found \"", type, "\"; ", remedy_for(type, known));
  }
}

void check_parameter_patterns(const GivenNames& given, const std::vector<std::string>& known) {
  std::string example = known.empty() ? std::string(", of which the model has none")
                                      : concat(" such as \"", known.front(), "\"");
  check_patterns(given, known, concat("patterns that match names of parameters", example));
}

void check_unit_patterns(const GivenNames& given, const std::vector<std::string>& known) {
  check_patterns(given, known, concat("patterns that match names of units (", list_of(known), ")"));
}

}  // namespace fsdp::shard
