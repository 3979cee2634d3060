#include "setup/config/parameter_groups.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/util/text.h"
#include "setup/config/value.h"

namespace fsdp::config {
namespace {

using Group = optim::ParameterGroupOptions;
using Kind = Literal::Kind;

/// The fields that are numbers.
struct NumberField {
  const char* name;
  std::optional<double> Group::*field;
};
constexpr NumberField kNumbers[] = {
    {"lr", &Group::lr}, {"lr_scale", &Group::lr_scale}, {"weight_decay", &Group::weight_decay}};

std::vector<std::string> read_patterns(const Literal& literal) {
  // One pattern may stand alone.
  if (literal.kind == Kind::kString) return {literal.text};
  if (literal.kind != Kind::kList)
    throw GroupMisfit{"has " + described(literal) + " as pattern", literal.region};
  std::vector<std::string> patterns;
  for (const Literal& item : literal.items) {
    if (item.kind != Kind::kString) throw GroupMisfit{"has " + described(item) + " in pattern", item.region};
    patterns.push_back(item.text);
  }
  return patterns;
}

double read_number(const std::string& name, const Literal& literal) {
  if (!literal.out_of_range && literal.kind == Kind::kFloat) return literal.number;
  if (!literal.out_of_range && literal.kind == Kind::kInteger) return static_cast<double>(literal.integer);
  throw GroupMisfit{"has " + described(literal) + " as " + name, literal.region};
}

Group read_group(const Literal& literal) {
  if (literal.kind != Kind::kTable) throw GroupMisfit{"contains " + described(literal), literal.region};
  Group group;
  for (const auto& [name, value] : literal.fields) {
    if (name == "pattern") {
      group.pattern = read_patterns(value);
      continue;
    }
    bool known = false;
    for (const NumberField& number : kNumbers) {
      if (name != number.name) continue;
      group.*number.field = read_number(name, value);
      known = true;
    }
    if (known) continue;
    const std::string near = util::nearest(name, {"pattern", "lr", "lr_scale", "weight_decay"});
    throw GroupMisfit{"has the field " + clipped(name) + (near.empty() ? "" : "; did you mean " + near + "?"),
                      value.region};
  }
  return group;
}

bool is_allowed(const Group& group) {
  if (group.pattern.empty() || (group.lr && group.lr_scale)) return false;
  for (const std::string& pattern : group.pattern) {
    if (pattern.empty() || !is_printable(pattern)) return false;
  }
  bool says_something = false;
  for (const NumberField& number : kNumbers) {
    const std::optional<double>& value = group.*number.field;
    if (value && !(*value >= 0 && std::isfinite(*value))) return false;
    says_something = says_something || value.has_value();
  }
  return says_something;
}

}  // namespace

std::string toml_text(const ParameterGroups& groups) {
  std::string text;
  for (const Group& group : groups) {
    text += (text.empty() ? "{ pattern = " : ", { pattern = ") + toml_text(Value(group.pattern));
    for (const NumberField& number : kNumbers) {
      const std::optional<double>& value = group.*number.field;
      if (value) text += std::string(", ") + number.name + " = " + toml_text(*value);
    }
    text += " }";
  }
  return "[" + text + "]";
}

bool are_allowed(const ParameterGroups& groups) {
  return std::all_of(groups.begin(), groups.end(), is_allowed);
}

ParameterGroups read_groups(const Literal& literal) {
  ParameterGroups groups;
  for (const Literal& item : literal.items) groups.push_back(read_group(item));
  return groups;
}

}  // namespace fsdp::config
