#pragma once

// Templates in Jinja, parsed and rendered by llama.cpp's engine, with values printed as in Python
// (chat_python.h). There are no limits on time, memory or recursion here, so untrusted templates must run in
// a process of their own (chat_process.h).

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/chat/chat_json.h"

namespace fsdp::data {

/// Error in a template: one line that begins with the position, if known: "line 3, column 7: ...".
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A range of bytes of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

/// A parsed template. Not thread-safe.
class JinjaTemplate {
 public:
  /// Parses a template. Throws TemplateError if it cannot be parsed.
  explicit JinjaTemplate(const std::string& source);
  ~JinjaTemplate();

  /// Whether the template has blocks {% generation %}.
  bool marks_generations() const;

  struct Output {
    std::string text;
    std::vector<TextSpan> generations;  ///< output of the blocks {% generation %}, in order
  };
  /// Renders the template with `variables`, an object. Throws TemplateError.
  Output render(const OrderedJson& variables) const;

 private:
  struct Parsed;
  std::unique_ptr<Parsed> parsed_;
};

}  // namespace fsdp::data
