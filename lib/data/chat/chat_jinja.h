#pragma once

// Templates in Jinja, parsed and rendered by llama.cpp's engine, with values as Python prints them
// (chat_python.h). Nothing here limits time, memory or recursion, so
// templates that are not trusted belong into a process of their own (chat_process.h).

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/chat/chat_json.h"

namespace fsdp::data {

/// One line that begins with the place in the template where it is known: "line 3, column 7: ...".
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bytes of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

/// Not thread-safe.
class JinjaTemplate {
 public:
  /// Throws TemplateError for a template that cannot be parsed.
  explicit JinjaTemplate(const std::string& source);
  ~JinjaTemplate();

  /// Whether it has blocks {% generation %}.
  bool marks_generations() const;

  struct Output {
    std::string text;
    std::vector<TextSpan> generations;  ///< what the blocks {% generation %} wrote, in order
  };
  /// `variables` is an object. Throws TemplateError.
  Output render(const OrderedJson& variables) const;

 private:
  struct Parsed;
  std::unique_ptr<Parsed> parsed_;
};

}  // namespace fsdp::data
