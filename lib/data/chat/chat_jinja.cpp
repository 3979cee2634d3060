#include "data/chat/chat_jinja.h"

#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <jinja/value.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "base/util/error.h"

namespace fsdp::data {
namespace {

using jinja::token;

// Variables whose values mark the begin and end of blocks {% generation %} in the output. Their names are no
// identifiers of Jinja, and the engine distinguishes their text from all other text ("input").
const std::string kBeginName = "\x01", kEndName = "\x02";
constexpr char kBegin = '\x01', kEnd = '\x02';

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string place_of(std::string_view source, size_t position) {
  const std::string_view before = source.substr(0, std::min(position, source.size()));
  const auto line = std::ranges::count(before, '\n') + 1;
  const size_t last = before.rfind('\n');
  return concat("line ", line, ", column ",
                before.size() - (last == std::string_view::npos ? 0 : last + 1) + 1, ": ");
}

/// Shortens a message of the engine to one line. Messages of several lines end with a piece of the source and
/// a line that points into it.
TemplateError lexer_error(std::string_view source, const std::string& what) {
  constexpr size_t kShownBefore = 40, kDots = 3;
  const size_t first = what.find('\n'), last = what.rfind('\n');
  if (first == std::string::npos) return TemplateError(what);
  std::string message = what.substr(0, first);
  if (message.starts_with("lexer: ")) message.erase(0, 7);
  const size_t caret = what.size() - last - 2;
  size_t position = caret - std::min(caret, kDots);
  if (position >= kShownBefore) {
    std::string shown = what.substr(first + 1 + kDots, last - first - 1 - 2 * kDots);
    for (size_t at = 0; (at = shown.find("↵", at)) != std::string::npos;) shown.replace(at, 3, "\n");
    const size_t begin = source.find(shown);
    position += begin == std::string_view::npos ? 0 : begin;
  }
  return TemplateError(concat(place_of(source, position), message));
}

TemplateError runtime_error(std::string what) {
  constexpr std::string_view kPlace = " at line ", kPlaceEnd = " in source:", kError = "\nError: ";
  const size_t at = what.find(kPlace), end = what.find(kPlaceEnd), error = what.find(kError);
  if (at == std::string::npos || end == std::string::npos || error == std::string::npos || end < at) {
    return TemplateError(one_line(std::move(what)));
  }
  std::string message = what.substr(error + kError.size());
  constexpr std::string_view kRaised = "Jinja Exception: ";
  if (message.starts_with(kRaised)) message = "the template refuses: " + message.substr(kRaised.size());
  return TemplateError(concat(what.substr(at + 4, end - at - 4), ": ", one_line(message)));
}

/// Returns the error of parsing the tokens; "" if there is none.
std::string parse_complaint(const jinja::lexer_result& tokens) {
  try {
    jinja::parse_from_tokens(tokens);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Finds the position of an error, which the parser rarely reports. The parser reads tokens one after
/// another, so the error is at the last token of the shortest beginning that gives this error.
TemplateError parser_error(const jinja::lexer_result& tokens, const std::string& what) {
  std::string message = what.substr(0, what.find('\n'));
  for (const std::string_view prefix : {"parser: ", "Parser Error: "}) {
    if (message.starts_with(prefix)) message.erase(0, prefix.size());
  }
  if (message == "Unexpected token type" || message == "Unexpected EOF") {
    return TemplateError(
        concat(place_of(tokens.source, tokens.source.size()), "a block or bracket is not closed"));
  }
  if (message.starts_with("Unknown statement: ")) {
    message = concat("{% ", message.substr(19), " %} is not supported");
  }
  size_t few = 0, enough = tokens.tokens.size();
  while (few + 1 < enough) {
    const size_t middle = (few + enough) / 2;
    const jinja::lexer_result part{
        {tokens.tokens.begin(), tokens.tokens.begin() + static_cast<int64_t>(middle)}, tokens.source};
    (parse_complaint(part) == what ? enough : few) = middle;
  }
  const size_t position = tokens.tokens.empty() ? 0 : tokens.tokens[enough - 1].pos;
  return TemplateError(concat(place_of(tokens.source, position), one_line(message)));
}

/// Inserts the marks into blocks {% generation %}, which the engine ignores. Returns whether there are any.
bool mark_generations(jinja::lexer_result& lexed) {
  std::vector<token> out;
  const std::vector<token>& in = lexed.tokens;
  bool open = false, found = false;
  for (size_t i = 0; i < in.size(); ++i) {
    const bool is_statement = in[i].t == token::open_statement && i + 2 < in.size() &&
                              in[i + 1].t == token::identifier && in[i + 2].t == token::close_statement;
    const bool begins = is_statement && in[i + 1].value == "generation";
    const bool ends = is_statement && in[i + 1].value == "endgeneration";
    if ((begins && open) || (ends && !open)) {
      throw TemplateError(concat(place_of(lexed.source, in[i].pos), "{% ", in[i + 1].value, " %} ",
                                 begins ? "inside another" : "without {% generation %}"));
    }
    const auto mark = [&](const std::string& name) {
      out.push_back({token::open_expression, "{{", in[i].pos});
      out.push_back({token::identifier, name, in[i].pos});
      out.push_back({token::close_expression, "}}", in[i].pos});
    };
    if (ends) mark(kEndName);
    const size_t copied = begins || ends ? 3 : 1;
    out.insert(out.end(), in.begin() + static_cast<int64_t>(i),
               in.begin() + static_cast<int64_t>(i + copied));
    if (begins) mark(kBeginName);
    if (begins || ends) open = begins;
    found |= begins;
    i += copied - 1;
  }
  if (open) {
    throw TemplateError(
        concat(place_of(lexed.source, lexed.source.size()), "{% generation %} is not closed"));
  }
  lexed.tokens = std::move(out);
  return found;
}

/// An integer beyond 64 bits, which templates can print and compare, but not compute with.
struct LargeInteger final : jinja::value_int_t {
  explicit LargeInteger(std::string digits) : value_int_t(0), digits(std::move(digits)) {
    val_flt = std::strtod(this->digits.c_str(), nullptr);
  }
  int64_t as_int() const override {
    throw std::runtime_error(
        concat(digits, " is an integer beyond 64 bits, with which templates cannot compute"));
  }
  double as_float() const override { return val_flt; }
  jinja::string as_string() const override { return digits; }
  bool as_bool() const override { return true; }
  jinja::hasher unique_hash() const noexcept override {
    return jinja::hasher(typeid(*this)).update(digits.data(), digits.size());
  }

  std::string digits;

 protected:
  bool equivalent(const jinja::value_t& other) const override {
    const auto* large = dynamic_cast<const LargeInteger*>(&other);
    return large != nullptr
               ? large->digits == digits
               : dynamic_cast<const jinja::value_float_t*>(&other) != nullptr && other.val_flt == val_flt;
  }
  bool nonequal(const jinja::value_t& other) const override { return !equivalent(other); }
};

jinja::value value_of(const OrderedJson& json) {
  if (std::optional<std::string> digits = large_integer(json)) {
    return std::make_shared<LargeInteger>(std::move(*digits));
  }
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return jinja::mk_val<jinja::value_bool>(json.get<bool>());
    case OrderedJson::value_t::number_integer:
    case OrderedJson::value_t::number_unsigned:
      return jinja::mk_val<jinja::value_int>(json.get<int64_t>());
    case OrderedJson::value_t::number_float:
      return jinja::mk_val<jinja::value_float>(json.get<double>());
    case OrderedJson::value_t::string:
      return jinja::mk_val<jinja::value_string>(json.get_ref<const std::string&>());
    case OrderedJson::value_t::array: {
      auto array = jinja::mk_val<jinja::value_array>();
      for (const OrderedJson& item : json) array->push_back(value_of(item));
      return array;
    }
    case OrderedJson::value_t::object: {
      auto object = jinja::mk_val<jinja::value_object>();
      for (const auto& [key, item] : json.items()) object->insert(key, value_of(item));
      return object;
    }
    default:
      return jinja::mk_val<jinja::value_none>();
  }
}

jinja::value mark_value(char mark) {
  auto value = jinja::mk_val<jinja::value_string>(std::string(1, mark));
  value->mark_input();
  return value;
}

}  // namespace

struct JinjaTemplate::Parsed {
  std::string source;
  jinja::program program;
  bool marks_generations;
};

JinjaTemplate::JinjaTemplate(const std::string& source) {
  jinja::lexer_result tokens;
  try {
    tokens = jinja::lexer().tokenize(source);
  } catch (const std::exception& error) {
    throw lexer_error(source, error.what());
  }
  const bool marks = mark_generations(tokens);
  try {
    parsed_.reset(new Parsed{tokens.source, jinja::parse_from_tokens(tokens), marks});
  } catch (const std::exception& error) {
    throw parser_error(tokens, error.what());
  }
}

JinjaTemplate::~JinjaTemplate() = default;

bool JinjaTemplate::marks_generations() const { return parsed_->marks_generations; }

JinjaTemplate::Output JinjaTemplate::render(const OrderedJson& variables) const {
  jinja::context context(parsed_->source);
  for (const auto& [key, value] : variables.items()) context.set_val(key, value_of(value));
  context.set_val(kBeginName, mark_value(kBegin));
  context.set_val(kEndName, mark_value(kEnd));
  Output output;
  try {
    jinja::runtime runtime(context);
    const auto parts = jinja::runtime::gather_string_parts(runtime.execute(parsed_->program));
    for (const jinja::string_part& part : parts->val_str.parts) {
      if (!part.is_input) {
        output.text += part.val;
        continue;
      }
      for (const char c : part.val) {
        if (c == kBegin) {
          output.generations.push_back({output.text.size(), output.text.size()});
        } else if (c == kEnd && !output.generations.empty()) {
          output.generations.back().end = output.text.size();
        } else {
          output.text += c;
        }
      }
    }
  } catch (const std::exception& error) {
    throw runtime_error(error.what());
  }
  std::erase_if(output.generations, [](const TextSpan& span) { return span.begin == span.end; });
  return output;
}

}  // namespace fsdp::data
