#include "data/texts/rows.h"

#include <algorithm>
#include <optional>

#include "base/util/error.h"
#include "base/util/json.h"
#include "base/util/text.h"
#include "data/options/text_names.h"
#include "data/texts/mds_rows.h"
#include "data/texts/parquet_rows.h"
#include "data/texts/tar_rows.h"
#include "data/texts/text_input.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

/// Limit on a line or element; a longer one is not a row.
constexpr size_t kMaxRowBytes = size_t{256} << 20;
constexpr size_t kReadBytes = 1 << 18;
constexpr int kMaxRowDepth = 64;

constexpr std::string_view kSpace = " \t\r\n";

/// The rows of a JSON text: its lines or, if it begins with a bracket, the elements of the array.
class JsonRows final : public RowFile {
 public:
  explicit JsonRows(const std::string& path) : path_(path), input_(path, TextKind::kRows) {}

  int64_t next(std::string& text) override {
    if (!begun_) begin();
    return is_array_ ? next_element(text) : next_line(text);
  }

  RowPlace place() const override {
    return is_array_ ? RowPlace{path_, number_, "element", element_line_} : RowPlace{path_, number_};
  }
  int64_t read_bytes() const override { return input_.read_bytes(); }

  int64_t next_byte() const override {
    return is_array_ || !begun_ ? -1 : buffer_begin_ + static_cast<int64_t>(begin_);
  }

  void skip_to(int64_t row, int64_t byte) override {
    if (byte < 0) return RowFile::skip_to(row, byte);
    input_.skip(byte);
    begun_ = true;
    buffer_begin_ = byte;
    number_ = row;
  }

 private:
  void begin() {
    begun_ = true;
    size_t first = 0;
    while ((first = buffer_.find_first_not_of(kSpace, first)) == std::string::npos) {
      first = buffer_.size();
      if (!read_more("white space")) return;
    }
    is_array_ = buffer_[first] == '[';
    if (!is_array_) return;
    skip_space();
    ++begin_;
  }

  int64_t next_line(std::string& text) {
    while (true) {
      const size_t end = line_end();
      if (end == begin_ && begin_ == buffer_.size()) return 0;
      ++number_;
      const std::string_view line = std::string_view(buffer_).substr(begin_, end - begin_);
      begin_ = std::min(end + 1, buffer_.size());
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      text += line;
      return number_;
    }
  }

  /// Returns the end in buffer_ of the line that begins at begin_.
  size_t line_end() {
    size_t searched = begin_;
    while (true) {
      const size_t end = buffer_.find('\n', searched);
      if (end != std::string::npos) return end;
      searched = buffer_.size() - begin_;
      if (!read_more("a line")) return buffer_.size();
    }
  }

  int64_t next_element(std::string& text) {
    if (ended_) return 0;
    char next = skip_space();
    if (next == ']') {
      ++begin_;
      ended_ = true;
      if (skip_space(/*may_end=*/true) != '\0') input_.refuse(at_line("has text behind its JSON array"));
      return 0;
    }
    if (number_ > 0) {
      if (next != ',') input_.refuse(at_line(concat("has no comma behind element ", number_)));
      ++begin_;
      next = skip_space();
    }
    if (next == ',' || next == ']') input_.refuse(at_line(concat("lacks element ", number_ + 1)));
    ++number_;
    element_line_ = line_;
    const size_t end = element_end();
    const std::string_view element = std::string_view(buffer_).substr(begin_, end - begin_);
    line_ += std::ranges::count(element, '\n');
    text += element;
    begin_ = end;
    return number_;
  }

  /// Returns the end in buffer_ of the element that begins at begin_: behind its last bracket or quote, or
  /// before what follows a number or name.
  size_t element_end() {
    int64_t depth = 0;
    bool in_string = false;
    for (size_t length = 0;; ++length) {
      if (begin_ + length == buffer_.size() && !read_more("an element")) refuse_cut();
      const char c = buffer_[begin_ + length];
      if (in_string) {
        if (c == '\\') {
          if (begin_ + ++length == buffer_.size() && !read_more("an element")) refuse_cut();
        } else if (c == '"') {
          in_string = false;
          if (depth == 0) return begin_ + length + 1;
        }
      } else if (c == '"') {
        in_string = true;
      } else if (c == '[' || c == '{') {
        ++depth;
      } else if (depth == 0 && (c == ',' || c == ']' || kSpace.find(c) != std::string_view::npos)) {
        return begin_ + length;
      } else if ((c == ']' || c == '}') && --depth <= 0) {
        return begin_ + length + 1;
      }
    }
  }

  /// Moves to the next character that is no white space and returns it; '\0' if the text may end and does.
  char skip_space(bool may_end = false) {
    while (true) {
      for (; begin_ < buffer_.size(); ++begin_) {
        if (kSpace.find(buffer_[begin_]) == std::string_view::npos) return buffer_[begin_];
        if (buffer_[begin_] == '\n') ++line_;
      }
      if (read_more("white space")) continue;
      if (may_end) return '\0';
      refuse_cut();
    }
  }

  /// Reads more, and moves the text from begin_ on to the beginning of the buffer. Returns false at the end.
  bool read_more(const char* what) {
    if (buffer_.size() - begin_ > kMaxRowBytes) {
      input_.refuse(
          concat("has ", what, " of more than ", kMaxRowBytes >> 20,
                 " MiB, but must have one JSON object per line, or an array of them; check what kind of "
                 "file it is"));
    }
    buffer_.erase(0, begin_);
    buffer_begin_ += static_cast<int64_t>(begin_);
    begin_ = 0;
    return input_.read(kReadBytes, buffer_) > 0;
  }

  std::string at_line(const std::string& found) const {
    return concat(found, ", at line ", line_, "; correct it");
  }
  [[noreturn]] void refuse_cut() const {
    input_.refuse(concat("is cut short: its JSON array does not end, after ", number_,
                         " elements; fetch or write it again"));
  }

  const std::string_view path_;
  TextInput input_;
  std::string buffer_;
  size_t begin_ = 0;          ///< beginning in buffer_ of what is not read yet
  int64_t buffer_begin_ = 0;  ///< offset of buffer_ in the text
  bool begun_ = false, is_array_ = false;
  bool ended_ = false;                   ///< whether the array has ended
  int64_t number_ = 0;                   ///< number of the last row
  int64_t line_ = 1, element_line_ = 0;  ///< lines of begin_ and of the last element, in an array
};

}  // namespace

void RowFile::skip_to(int64_t row, int64_t /*byte*/) {
  std::string ignored;
  for (int64_t number = 0; number < row; ignored.clear()) {
    number = next(ignored);
    if (number == 0) {
      refuse_text(std::string(place().path),
                  "has fewer rows than before; run again when nothing writes to it");
    }
  }
}

std::unique_ptr<RowFile> open_rows(const std::string& path, const std::vector<std::string>& columns) {
  if (is_parquet(path)) return open_parquet(path, columns);
  if (is_tar(path)) return open_tar(path, columns);
  if (is_mds(path)) return open_mds(path, columns);
  return std::make_unique<JsonRows>(path);
}

int64_t check_files(const std::vector<std::string>& files, const std::vector<std::string>& columns,
                    TextKind kind) {
  int64_t bytes = 0;
  bool known = true;
  for (const std::string& path : files) {
    const bool has_columns = has_rows(path) && !is_json_lines(path);
    if (has_columns) open_rows(path, columns);
    const int64_t size = has_columns ? InputFile(path).size_bytes() : TextInput(path, kind).file_bytes();
    known = known && size >= 0;
    bytes += std::max<int64_t>(size, 0);
  }
  return known ? bytes : 0;
}

std::string to_string(const RowPlace& place) {
  if (place.number == 0) return std::string(place.path);
  return concat(place.unit, " ", place.number, " of ", place.path,
                place.line > 0 ? concat(" (line ", place.line, ")") : "");
}

nlohmann::json object_of_row(std::string_view row, const RowPlace& place) {
  auto refuse = [&](const std::string& found) {
    fail(ErrorKind::kData, to_string(place), " must be a JSON object, but ", for_message(found),
         "; correct it, or skip such rows with `skip_bad`");
  };
  nlohmann::json object;
  try {
    object = util::parse_json(row, {.deepest_level = kMaxRowDepth, .unique_keys = false});
  } catch (const util::JsonError& error) {
    refuse(error.what());
  }
  if (!object.is_object()) refuse("is another JSON value");
  return object;
}

namespace {

/// Returns the numbers of a list if all can be tokens.
std::optional<std::vector<int64_t>> tokens_of(const nlohmann::json& list) {
  constexpr int64_t kLargestToken = (int64_t{1} << 32) - 1;
  std::vector<int64_t> tokens;
  if (!list.is_array()) return std::nullopt;
  tokens.reserve(list.size());
  for (const nlohmann::json& each : list) {
    if (!each.is_number_integer()) return std::nullopt;
    const auto token = each.get<int64_t>();
    if (token < 0 || token > kLargestToken) return std::nullopt;
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace

RowDocument document_of_row(std::string_view row, const RowPlace& place, const std::string& field) {
  nlohmann::json object = object_of_row(row, place);
  const auto found = object.find(field);
  if (found != object.end()) {
    if (found->is_string()) return {.text = std::move(found->get_ref<std::string&>())};
    if (auto tokens = tokens_of(*found)) return {.tokens = std::move(*tokens), .is_tokens = true};
  }
  std::string instead;
  if (found != object.end()) {
    instead = concat("has a ", found->type_name());
  } else {
    std::vector<std::string> names;
    for (const auto& item : object.items()) names.push_back("\"" + item.key() + "\"");
    instead = names.empty() ? "has no fields" : "has the fields " + util::join(names, ", ");
  }
  fail(ErrorKind::kData, to_string(place), " must have a string \"", field, "\", but ", for_message(instead),
       "; correct it, set the field with `json_field`, or skip such rows with `skip_bad`");
}

std::string text_of_row(std::string_view row, const RowPlace& place, const std::string& field) {
  RowDocument document = document_of_row(row, place, field);
  if (document.is_tokens) {
    fail(ErrorKind::kData, to_string(place), " must have a string \"", field,
         "\", but has tokens; give a field with texts as `json_field`");
  }
  return std::move(document.text);
}

void BadRows::add(const std::string& message) {
  if (++count_ > most_) {
    if (most_ == 0) fail(ErrorKind::kData, message);
    fail(ErrorKind::kData, "more than ", most_, " rows, which `skip_bad` allows, cannot be used: ", message);
  }
  if (messages_.size() < kMessages) messages_.push_back(message);
}

}  // namespace fsdp::data
