#include "data/texts/tar_rows.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "base/util/error.h"
#include "base/util/json.h"
#include "base/util/text.h"
#include "data/texts/row_text.h"
#include "data/texts/text_input.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

constexpr int64_t kTarBlock = 512;
constexpr int64_t kMaxSampleBytes = int64_t{256} << 20;
/// Limit on the size that a header may name.
constexpr int64_t kMostMemberBytes = int64_t{1} << 60;
/// Limit on the headers of GNU and pax that hold long names.
constexpr int64_t kMaxNameBytes = int64_t{1} << 20;
constexpr int kMaxMemberDepth = 64;

/// A field of a header: octal digits, or a binary number if its first bit is set. -1 if it is neither.
int64_t header_number(std::string_view field) {
  if (!field.empty() && (static_cast<unsigned char>(field[0]) & 0x80) != 0) {
    int64_t number = field[0] & 0x7f;
    for (const char c : field.substr(1)) {
      if (number >> 54 != 0) return -1;
      number = number << 8 | static_cast<unsigned char>(c);
    }
    return number;
  }
  const size_t begin = std::min(field.find_first_not_of(' '), field.size());
  int64_t number = 0;
  const char* const last = field.data() + field.size();
  const auto [end, error] = std::from_chars(field.data() + begin, last, number, 8);
  if (error != std::errc() || (end != last && *end != '\0' && *end != ' ')) return -1;
  return number;
}

std::string_view until_zero(std::string_view field) { return field.substr(0, field.find('\0')); }

/// Returns the type of numpy's descr "<u2", by its name; "" for another.
std::string_view type_of_descr(std::string_view descr) {
  static const std::map<std::string_view, std::string_view> kTypes = {
      {"|u1", "uint8"},  {"|i1", "int8"},  {"<u2", "uint16"}, {"<i2", "int16"},
      {"<u4", "uint32"}, {"<i4", "int32"}, {"<u8", "uint64"}, {"<i8", "int64"}};
  const auto found = kTypes.find(descr);
  return found == kTypes.end() ? std::string_view() : found->second;
}

class TarRows final : public RowFile {
 public:
  TarRows(const std::string& path, const std::vector<std::string>& columns)
      : path_(path), columns_(columns), input_(path, TextKind::kBinary) {}

  int64_t next(std::string& text) override {
    if (!pending_ && !(pending_ = next_member())) return 0;
    const std::string key = pending_->key;
    std::map<std::string, std::string> values;  // by column, as JSON
    std::vector<std::string> names;
    int64_t bytes = 0;
    while (pending_ && pending_->key == key) {
      names.push_back(pending_->name);
      take(*pending_, values, bytes);
      pending_ = next_member();
    }
    text += '{';
    bool is_first = true;
    const auto add = [&](const std::string& name, const std::string& value) {
      if (!is_first) text += ',';
      is_first = false;
      append_string(text, name);
      text += ':' + value;
    };
    for (const auto& [name, value] : values) add(name, value);
    // The message about a row without a wanted column lists the names of its members.
    if (values.empty()) {
      for (const std::string& name : names) add(name, "null");
    }
    text += '}';
    return ++number_;
  }

  RowPlace place() const override { return {path_, number_, "sample"}; }
  int64_t read_bytes() const override { return input_.read_bytes(); }

 private:
  struct Member {
    std::string key, name;  ///< its path up to the first point of the file's name, and what follows the point
    int64_t bytes = 0;
  };

  [[noreturn]] void refuse(const std::string& found) const {
    input_.refuse(concat(found, number_ > 0 ? concat(" after sample ", number_) : std::string()));
  }

  /// Reads exactly so many bytes; fewer are an error.
  std::string read(int64_t bytes) {
    auto content = input_.read_exactly(bytes);
    if (!content) refuse("is cut short: a member of the archive is not complete; fetch it again");
    return std::move(*content);
  }

  void leave_out(int64_t bytes) {
    while (bytes > 0) {
      const int64_t some = std::min<int64_t>(bytes, 1 << 16);
      read(some);
      bytes -= some;
    }
  }

  std::string content_of(int64_t bytes) {
    std::string content = read(bytes);
    leave_out((kTarBlock - bytes % kTarBlock) % kTarBlock);
    return content;
  }

  std::string long_name(int64_t bytes) {
    if (bytes > kMaxNameBytes) refuse("has a header of more than 1 MiB; write it again with shorter names");
    return content_of(bytes);
  }

  /// Returns the next regular file of a sample; nothing at the end.
  std::optional<Member> next_member() {
    std::string path;
    int64_t pax_bytes = -1;
    while (!ended_) {
      const std::string header = read_header();
      if (ended_) break;
      const std::string_view view = header;
      int64_t bytes = header_number(view.substr(124, 12));
      if (bytes < 0 || bytes > kMostMemberBytes) refuse_damage();
      const char type = header[156];
      if (type == 'L') {
        path = until_zero(long_name(bytes));
        continue;
      }
      if (type == 'x') {
        read_pax(long_name(bytes), path, pax_bytes);
        continue;
      }
      if (pax_bytes >= 0) bytes = pax_bytes;
      if (path.empty()) {
        path = until_zero(view.substr(0, 100));
        const std::string_view prefix =
            view.substr(257, 5) == "ustar" ? until_zero(view.substr(345, 155)) : std::string_view();
        if (!prefix.empty() && view[262] == '\0') path = concat(prefix, "/", path);
      }
      const size_t slash = path.rfind('/'), file = slash == std::string::npos ? 0 : slash + 1;
      const size_t point = path.find('.', file);
      const bool is_file = type == '0' || type == '\0';
      if (is_file && point != std::string::npos && point > file && point + 1 < path.size()) {
        std::string name = path.substr(point + 1);
        std::ranges::transform(name, name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
        return Member{.key = path.substr(0, point), .name = std::move(name), .bytes = bytes};
      }
      leave_out(bytes + (kTarBlock - bytes % kTarBlock) % kTarBlock);
      path.clear();
      pax_bytes = -1;
    }
    return std::nullopt;
  }

  /// Returns a header with the right sum; sets ended_ at the mark of the end.
  std::string read_header() {
    std::string header;
    const int64_t got = input_.read(kTarBlock, header);
    if (got == 0) refuse("is cut short: the archive has no end; fetch it again");
    if (got < kTarBlock) refuse("is cut short: a member of the archive is not complete; fetch it again");
    if (header.find_first_not_of('\0') == std::string::npos) {
      ended_ = true;
      return header;
    }
    int64_t sum = 0;
    for (size_t i = 0; i < header.size(); ++i) {
      sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(header[i]);
    }
    if (header_number(std::string_view(header).substr(148, 8)) != sum) refuse_damage();
    return header;
  }

  [[noreturn]] void refuse_damage() const {
    refuse("is damaged or not a tar archive; fetch it again, or correct its name");
  }

  /// Reads "LENGTH KEY=VALUE\n" records.
  void read_pax(const std::string& records, std::string& path, int64_t& bytes) const {
    std::string_view left = records;
    while (!left.empty()) {
      size_t length = 0;
      const auto [end, error] = std::from_chars(left.data(), left.data() + left.size(), length);
      const auto digits = static_cast<size_t>(end - left.data());
      if (error != std::errc() || length <= digits + 1 || length > left.size()) refuse_damage();
      const std::string_view record = left.substr(digits + 1, length - digits - 2);
      left.remove_prefix(length);
      if (record.starts_with("path=")) path = record.substr(5);
      if (record.starts_with("size=")) {
        const std::string_view value = record.substr(5);
        if (std::from_chars(value.data(), value.data() + value.size(), bytes).ec != std::errc() ||
            bytes < 0 || bytes > kMostMemberBytes) {
          refuse_damage();
        }
      }
    }
  }

  /// Returns the wanted columns that a member answers to by its name.
  std::vector<std::string> columns_of(const std::string& name) const {
    std::vector<std::string> found;
    for (const std::string& column : columns_) {
      const bool is_own = name == column || name == column + ".npy";
      const bool is_usual = (column == "text" && name == "txt") || (column == "tokens" && name == "npy");
      if (is_own || is_usual || name == "json") found.push_back(column);
    }
    return found;
  }

  void take(const Member& member, std::map<std::string, std::string>& values, int64_t& bytes) {
    const std::vector<std::string> columns = columns_of(member.name);
    if (columns.empty()) {
      return leave_out(member.bytes + (kTarBlock - member.bytes % kTarBlock) % kTarBlock);
    }
    bytes += member.bytes;
    if (bytes > kMaxSampleBytes) {
      refuse(concat("has a sample of more than ", util::human_bytes(kMaxSampleBytes), "; leave it out"));
    }
    const std::string content = content_of(member.bytes);
    if (member.name == "json") return take_json(content, columns, values);
    std::string value;
    if (member.name == "npy" || member.name.ends_with(".npy")) {
      append_array(content, member, value);
    } else {
      append_string(value, content);
    }
    for (const std::string& column : columns) values[column] = value;
  }

  void take_json(const std::string& content, const std::vector<std::string>& columns,
                 std::map<std::string, std::string>& values) const {
    nlohmann::json object;
    try {
      object = util::parse_json(content, {.deepest_level = kMaxMemberDepth, .unique_keys = false});
    } catch (const util::JsonError&) {
      return;  // the row lacks the column, which its message tells
    }
    if (!object.is_object()) return;
    for (const std::string& column : columns) {
      const auto found = object.find(column);
      if (found == object.end() || values.contains(column)) continue;
      values[column] = found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
  }

  /// Appends an array that numpy has saved as a list of numbers.
  void append_array(std::string_view content, const Member& member, std::string& value) const {
    const auto refuse_array = [&](const std::string& found) {
      refuse(concat("has in ", for_message(member.key), ".", for_message(member.name), " ", found,
                    "; write arrays of whole numbers with one dimension"));
    };
    if (!content.starts_with("\x93NUMPY") || content.size() < 12) refuse_array("no array of numpy");
    const auto byte = [&](size_t at) { return static_cast<size_t>(static_cast<unsigned char>(content[at])); };
    const bool is_long = byte(6) >= 2;
    const size_t begin = is_long ? 12 : 10;
    const size_t length = byte(8) | byte(9) << 8 | (is_long ? byte(10) << 16 | byte(11) << 24 : 0);
    if (content.size() < begin + length) refuse_array("an array without its header");
    const std::string_view header = content.substr(begin, length), data = content.substr(begin + length);
    const size_t descr = header.find("'descr': '");
    const std::string_view type =
        descr == std::string_view::npos ? "" : type_of_descr(header.substr(descr + 10, 3));
    const size_t shape = header.find("'shape': (");
    const std::string_view sizes =
        shape == std::string_view::npos
            ? ""
            : header.substr(shape + 10, header.find(')', shape) - std::min(header.size(), shape + 10));
    if (type.empty() || std::ranges::count(sizes, ',') != 1 || !sizes.ends_with(',')) {
      refuse_array("an array of another type or shape");
    }
    if (data.size() % *bytes_of_number(type) != 0) refuse_array("an array that is cut short");
    append_numbers(value, type, data);
  }

  const std::string_view path_;
  const std::vector<std::string> columns_;
  TextInput input_;
  std::optional<Member> pending_;  ///< the next member, whose content is not read yet
  bool ended_ = false;
  int64_t number_ = 0;  ///< number of the last row
};

}  // namespace

std::unique_ptr<RowFile> open_tar(const std::string& path, const std::vector<std::string>& columns) {
  return std::make_unique<TarRows>(path, columns);
}

}  // namespace fsdp::data
