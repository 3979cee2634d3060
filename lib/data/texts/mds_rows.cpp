#include "data/texts/mds_rows.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/util/error.h"
#include "base/util/json.h"
#include "base/util/text.h"
#include "data/options/text_names.h"
#include "data/texts/row_text.h"
#include "data/texts/text_input.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxShardSampleBytes = int64_t{256} << 20;
/// Limits on what is read before the samples: their number, the writer's JSON, and an index.
constexpr uint32_t kMostSamples = 1u << 24;
constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
constexpr size_t kMaxMdsIndexBytes = size_t{256} << 20;
constexpr int kMaxIndexDepth = 16;

uint32_t little_endian(std::string_view bytes) {
  uint32_t number = 0;
  for (size_t i = 4; i-- > 0;) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

/// Names of the codes of types in arrays without a fixed type.
std::string_view type_of_code(unsigned char code) {
  switch (code) {
    case 8:
      return "uint8";
    case 9:
      return "int8";
    case 16:
      return "uint16";
    case 17:
      return "int16";
    case 32:
      return "uint32";
    case 33:
      return "int32";
    case 64:
      return "uint64";
    case 65:
      return "int64";
    default:
      return "";
  }
}

class MdsRows final : public RowFile {
 public:
  MdsRows(const std::string& path, const std::vector<std::string>& columns)
      : path_(path), input_(path, TextKind::kBinary) {
    read_header(columns);
  }

  int64_t next(std::string& text) override {
    if (number_ + 1 >= static_cast<int64_t>(offsets_.size())) return 0;
    const auto at = static_cast<size_t>(number_);
    const int64_t bytes = offsets_[at + 1] - offsets_[at];
    const std::string sample = read(bytes);
    ++number_;
    append_row(sample, text);
    return number_;
  }

  RowPlace place() const override { return {path_, number_, "sample"}; }
  int64_t read_bytes() const override { return input_.read_bytes(); }

 private:
  struct Column {
    std::string name, encoding;
    int64_t bytes = -1;  ///< -1: not the same in all samples
    bool is_wanted = false;
  };

  [[noreturn]] void refuse(const std::string& found) const { input_.refuse(found); }
  [[noreturn]] void refuse_damage(const std::string& found) const {
    refuse(concat("is damaged or not a shard of MosaicML's streaming (", found, ")",
                  number_ > 0 ? concat(" after sample ", number_) : std::string(), "; fetch it again"));
  }

  std::string read(int64_t bytes) {
    auto content = input_.read_exactly(bytes);
    if (!content) {
      refuse(concat("is cut short", number_ > 0 ? concat(" after sample ", number_) : std::string(),
                    "; fetch it again"));
    }
    return std::move(*content);
  }

  void read_header(const std::vector<std::string>& columns) {
    const uint32_t samples = little_endian(read(4));
    if (samples > kMostSamples) refuse_damage(concat(samples, " samples"));
    const std::string offsets = read(4 * (int64_t{samples} + 1));
    offsets_.reserve(samples + 1);
    for (size_t i = 0; i <= samples; ++i)
      offsets_.push_back(little_endian(std::string_view(offsets).substr(4 * i, 4)));
    for (size_t i = 0; i < samples; ++i) {
      const int64_t bytes = offsets_[i + 1] - offsets_[i];
      if (bytes < 0 || bytes > kMaxShardSampleBytes)
        refuse_damage(concat("sample ", i + 1, " has ", bytes, " bytes"));
    }
    const int64_t config = offsets_[0] - 4 - 4 * (int64_t{samples} + 1);
    if (config < 2 || config > kMaxConfigBytes) refuse_damage(concat("a header of ", config, " bytes"));
    try {
      read_columns(util::parse_json(read(config), {.deepest_level = kMaxIndexDepth}), columns);
    } catch (const util::JsonError& error) {
      refuse_damage(error.what());
    } catch (const nlohmann::json::exception&) {
      refuse_damage("its header lacks column_names, column_encodings or column_sizes");
    }
  }

  void read_columns(const nlohmann::json& config, const std::vector<std::string>& wanted) {
    const auto names = config.at("column_names").get<std::vector<std::string>>();
    const auto encodings = config.at("column_encodings").get<std::vector<std::string>>();
    const nlohmann::json& sizes = config.at("column_sizes");
    if (encodings.size() != names.size() || !sizes.is_array() || sizes.size() != names.size()) {
      refuse_damage("its header has columns of different numbers");
    }
    bool has_any = false;
    for (size_t i = 0; i < names.size(); ++i) {
      Column column{.name = names[i], .encoding = encodings[i]};
      if (!sizes[i].is_null()) column.bytes = sizes[i].get<int64_t>();
      if (column.bytes < -1 || column.bytes > kMaxShardSampleBytes) refuse_damage("a column's size");
      column.is_wanted = std::ranges::find(wanted, column.name) != wanted.end();
      has_any = has_any || column.is_wanted;
      columns_.push_back(std::move(column));
    }
    if (has_any) return;
    refuse(concat("has no column \"", util::join(wanted, "\" or \""), "\", but ",
                  for_message(util::name_list(names)), "; set the column with `json_field`"));
  }

  void append_row(std::string_view sample, std::string& text) const {
    std::vector<int64_t> sizes;
    size_t at = 0;
    for (const Column& column : columns_) {
      sizes.push_back(column.bytes);
      if (column.bytes >= 0) continue;
      if (sample.size() - at < 4) refuse_damage("a sample without its sizes");
      sizes.back() = little_endian(sample.substr(at, 4));
      at += 4;
    }
    text += '{';
    bool is_first = true;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const auto bytes = static_cast<size_t>(sizes[i]);
      if (sample.size() - at < bytes) refuse_damage("a sample without its columns");
      if (columns_[i].is_wanted) {
        if (!is_first) text += ',';
        is_first = false;
        append_string(text, columns_[i].name);
        text += ':';
        append_value(sample.substr(at, bytes), columns_[i], text);
      }
      at += bytes;
    }
    text += '}';
  }

  void append_value(std::string_view value, const Column& column, std::string& text) const {
    const std::string_view encoding = column.encoding;
    if (encoding == "json") {
      text += value;
    } else if (encoding == "str" || (encoding == "bytes" && column.name == "text")) {
      append_string(text, value);
    } else if (encoding == "bytes") {
      append_list(value, "int64", column, text);
    } else if (encoding == "ndarray" || encoding.starts_with("ndarray:")) {
      append_array(value, column, text);
    } else {
      refuse_encoding(column);
    }
  }

  [[noreturn]] void refuse_encoding(const Column& column) const {
    refuse(concat(
        "has the encoding ", for_message(column.encoding), " in the column \"", for_message(column.name),
        "\", and a text or tokens need str, bytes, json or ndarray of whole numbers with one dimension; "
        "choose another column"));
  }

  void append_list(std::string_view bytes, std::string_view type, const Column& column,
                   std::string& text) const {
    const auto number = bytes_of_number(type);
    if (!number) refuse_encoding(column);
    if (bytes.size() % *number != 0) {
      refuse_damage(
          concat("the column \"", for_message(column.name), "\" has ", bytes.size(), " bytes of ", type));
    }
    append_numbers(text, type, bytes);
  }

  /// Appends "ndarray[:TYPE[:SHAPE]]". Without them, each value begins with its type or its shape.
  void append_array(std::string_view value, const Column& column, std::string& text) const {
    std::string_view type = column.encoding;
    type.remove_prefix(std::min(type.size(), std::string_view("ndarray:").size()));
    const size_t colon = type.find(':');
    const bool has_shape = colon != std::string_view::npos;
    if (has_shape && type.substr(colon).find(',') != std::string_view::npos) refuse_encoding(column);
    type = type.substr(0, colon);
    const auto take = [&]() {
      if (value.empty()) refuse_damage("an array without its header");
      const auto byte = static_cast<unsigned char>(value.front());
      value.remove_prefix(1);
      return byte;
    };
    if (type.empty()) type = type_of_code(take());
    if (!has_shape) {
      const unsigned char shape = take();
      const size_t bytes = size_t{1} << (shape & 3);
      if (shape >> 2 != 1) refuse_encoding(column);
      if (value.size() < bytes) refuse_damage("an array without its shape");
      value.remove_prefix(bytes);
    }
    append_list(value, type, column, text);
  }

  const std::string_view path_;
  TextInput input_;
  std::vector<int64_t> offsets_;  ///< [samples + 1]
  std::vector<Column> columns_;
  int64_t number_ = 0;  ///< number of the last row
};

}  // namespace

std::unique_ptr<RowFile> open_mds(const std::string& path, const std::vector<std::string>& columns) {
  return std::make_unique<MdsRows>(path, columns);
}

std::optional<std::vector<std::string>> mds_shards(const fs::path& folder) {
  const fs::path path = folder / "index.json";
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  const std::string name = path.string();
  const InputFile opened(name);
  if (opened.size_bytes() > static_cast<int64_t>(kMaxMdsIndexBytes)) return std::nullopt;
  std::string content(static_cast<size_t>(opened.size_bytes()), '\0');
  content.resize(opened.source()->read_at(0, content.size(), content.data()));
  std::vector<std::string> shards;
  try {
    const nlohmann::json index = util::parse_json(content, {.deepest_level = kMaxIndexDepth});
    if (!index.is_object() || !index.contains("shards")) return std::nullopt;
    for (const nlohmann::json& shard : index.at("shards")) {
      if (shard.at("format") != "mds") {
        opened.refuse(concat("lists shards of the format ", for_message(shard.at("format").dump()),
                             ", and only mds can be read; write them with MDSWriter"));
      }
      std::string missing;
      const size_t before = shards.size();
      for (const char* kind : {"raw_data", "zip_data"}) {
        const auto data = shard.find(kind);
        if (data == shard.end() || data->is_null()) continue;
        const auto base = data->at("basename").get<std::string>();
        if (base.empty() || base.find('/') != std::string::npos) {
          opened.refuse(
              concat("lists the shard ", for_message(base), ", which is not in its folder; correct it"));
        }
        missing = base;
        if (!fs::is_regular_file(folder / base, error)) continue;
        shards.push_back((folder / base).string());
        break;
      }
      if (shards.size() == before) {
        opened.refuse(concat("lists the shard ", for_message(missing), ", which is not there; fetch it"));
      }
      if (!is_mds(shards.back())) {
        opened.refuse(concat("lists the shard ", for_message(missing),
                             ", which is compressed in a way that cannot be read; write it with zstd or gz"));
      }
    }
  } catch (const util::JsonError&) {
    return std::nullopt;  // an index of something else
  } catch (const nlohmann::json::exception&) {
    opened.refuse("is not an index that MDSWriter has written; write it again");
  }
  if (shards.empty()) opened.refuse("lists no shard; leave the folder out");
  return shards;
}

}  // namespace fsdp::data
