#include "data/texts/rows.h"

#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/json.h"
#include "base/util/text.h"
#include "data/texts/parquet_rows.h"
#include "data/texts/text_input.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

/// Limit on a line; a longer line is not a row.
constexpr size_t kMaxLineBytes = size_t{256} << 20;
constexpr size_t kReadBytes = 1 << 18;
constexpr int kMaxRowDepth = 64;

class JsonLines final : public RowFile {
 public:
  explicit JsonLines(const std::string& path) : input_(path, TextKind::kRows) {}

  int64_t next(std::string& text) override {
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

  int64_t read_bytes() const override { return input_.read_bytes(); }

 private:
  /// Returns the end in buffer_ of the line that begins at begin_.
  size_t line_end() {
    size_t searched = begin_;
    while (true) {
      const size_t end = buffer_.find('\n', searched);
      if (end != std::string::npos) return end;
      if (buffer_.size() - begin_ > kMaxLineBytes) {
        input_.refuse(concat("has a line of more than ", kMaxLineBytes >> 20,
                             " MiB, but must have one JSON object per line; check what kind of file it is"));
      }
      buffer_.erase(0, begin_);
      begin_ = 0;
      searched = buffer_.size();
      if (input_.read(kReadBytes, buffer_) == 0) return buffer_.size();
    }
  }

  TextInput input_;
  std::string buffer_;
  size_t begin_ = 0;  ///< beginning of the next line in buffer_
  int64_t number_ = 0;
};

}  // namespace

bool is_parquet(const std::string& path) { return util::extension_of(path) == ".parquet"; }

bool has_rows(const std::string& path) { return is_json_lines(path) || is_parquet(path); }

std::unique_ptr<RowFile> open_rows(const std::string& path, const std::vector<std::string>& columns) {
  if (is_parquet(path)) return open_parquet(path, columns);
  return std::make_unique<JsonLines>(path);
}

int64_t check_files(const std::vector<std::string>& files, const std::vector<std::string>& columns,
                    TextKind kind) {
  int64_t bytes = 0;
  bool known = true;
  for (const std::string& path : files) {
    if (is_parquet(path)) open_parquet(path, columns);
    const int64_t size = is_parquet(path) ? InputFile(path).size_bytes() : TextInput(path, kind).file_bytes();
    known = known && size >= 0;
    bytes += std::max<int64_t>(size, 0);
  }
  return known ? bytes : 0;
}

std::string to_string(const RowPlace& place) {
  return concat(is_parquet(std::string(place.path)) ? "row " : "line ", place.number, " of ", place.path);
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

std::string document_of_row(std::string_view row, const RowPlace& place, const std::string& field) {
  nlohmann::json object = object_of_row(row, place);
  const auto found = object.find(field);
  if (found != object.end() && found->is_string()) return std::move(found->get_ref<std::string&>());
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

void BadRows::add(const std::string& message) {
  if (++count_ > most_) {
    if (most_ == 0) fail(ErrorKind::kData, message);
    fail(ErrorKind::kData, "more than ", most_, " rows, which `skip_bad` allows, cannot be used: ", message);
  }
  if (messages_.size() < kMessages) messages_.push_back(message);
}

}  // namespace fsdp::data
