#include "state/manifest/manifest.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_map>

#include "base/dtype/dtype.h"
#include "base/util/text.h"
#include "state/manifest/digest.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int kDeepestLevel = 64;
constexpr int64_t kLargestManifestBytes = int64_t{1} << 30;

/// A manifest that is not damaged, but that only a newer release can read.
class NewerFormat : public util::Error {
 public:
  explicit NewerFormat(const std::string& message) : util::Error(ErrorKind::kCheckpoint, message) {}
};

/// Whether a file's name is plain, so that a manifest cannot point outside its own folder.
bool is_plain_name(std::string_view name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  return !name.empty() && name.size() <= 200 && name.front() != '.' && name != kManifestName &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

bool is_file_name(std::string_view name) {
  const size_t folder = name.find('/');
  if (folder == std::string_view::npos) return is_plain_name(name);
  return is_plain_name(name.substr(0, folder)) && is_plain_name(name.substr(folder + 1));
}

/// Quotes a name that was read from a file, with control characters escaped.
std::string in_quotes(const std::string& name) {
  return json(name).dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Returns a required member of an object.
const json& entry_of(const json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key)) {
    fail(ErrorKind::kCheckpoint, where, " has no entry \"", key, "\"");
  }
  return object[key];
}

int64_t whole_number(const json& value, const std::string& what) {
  bool fits = value.is_number_integer() &&
              !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits) fail(ErrorKind::kCheckpoint, what, " is not a whole number that fits in 63 bits");
  return value.get<int64_t>();
}

int64_t number_of(const json& object, const char* key, const std::string& where) {
  return whole_number(entry_of(object, key, where), concat(where, ": \"", key, "\""));
}

std::string text_of(const json& object, const char* key, const std::string& where) {
  const json& value = entry_of(object, key, where);
  if (!value.is_string()) fail(ErrorKind::kCheckpoint, where, ": \"", key, "\" is not a string");
  return value.get<std::string>();
}

const json& list_of(const json& object, const char* key, const std::string& where) {
  const json& value = entry_of(object, key, where);
  if (!value.is_array()) fail(ErrorKind::kCheckpoint, where, ": \"", key, "\" is not a list");
  return value;
}

TensorEntry parse_tensor(const json& value, const std::unordered_map<std::string, size_t>& files,
                         const std::string& where) {
  TensorEntry entry;
  try {
    entry.dtype = util::dtype_from_name(text_of(value, "dtype", where));
  } catch (const util::Error& error) {
    fail(ErrorKind::kCheckpoint, where, ": ", error.what());
  }
  for (const json& size : list_of(value, "shape", where)) {
    entry.shape.push_back(whole_number(size, where + ": a size in \"shape\""));
  }
  if (value.contains("rows")) entry.rows = number_of(value, "rows", where);
  const std::string in_range = where + ": a range";
  for (const json& range : list_of(value, "ranges", where)) {
    std::string file = text_of(range, "file", in_range);
    auto found = files.find(file);
    if (found == files.end()) {
      fail(ErrorKind::kCheckpoint, where, " is in a file ", in_quotes(file), " that \"files\" does not list");
    }
    util::Rectangle part{number_of(range, "begin", in_range), number_of(range, "end", in_range), entry.rows};
    if (range.contains("row_begin")) part.row_begin = number_of(range, "row_begin", in_range);
    if (range.contains("row_end")) part.row_end = number_of(range, "row_end", in_range);
    entry.ranges.push_back({.part = part, .file = found->second});
    if (!range.contains("repeat")) continue;
    for (const json& repeat : list_of(range, "repeat", in_range)) {
      const auto distance = [&](const char* key) {
        return repeat.contains(key) ? number_of(repeat, key, in_range) : 0;
      };
      entry.ranges.back().repeats.push_back({.count = number_of(repeat, "count", in_range),
                                             .files = number_of(repeat, "files", in_range),
                                             .columns = distance("begin"),
                                             .rows = distance("row_begin")});
    }
  }
  return entry;
}

/// All members that are read except "tensors"; empty when the text is not an object.
json without_tensors(const util::CanonicalJson& canonical) {
  json object = json::object();
  for (const char* key : {"format", "version", "seal", "step", "world_size", "layout", "contents", "training",
                          "model", "files"}) {
    if (const auto value = canonical.member(key)) object[key] = json::parse(*value);
  }
  return object;
}

json part_json(const util::Rectangle& part) {
  json object = {{"begin", part.begin}, {"end", part.end}};
  if (part.has_all_rows()) return object;
  object["row_begin"] = part.row_begin;
  object["row_end"] = part.row_end;
  return object;
}

json tensor_json(const TensorEntry& entry, json ranges) {
  json object = {
      {"shape", entry.shape}, {"dtype", util::dtype_name(entry.dtype)}, {"ranges", std::move(ranges)}};
  if (entry.rows != 1) object["rows"] = entry.rows;
  return object;
}

/// Fewer ranges are written one by one, which releases before version 4 can read.
constexpr int64_t kFewestRepeated = 8;

json ranges_json(const TensorEntry& entry, const Manifest& manifest, int64_t& version) {
  std::vector<RangeEntry> ranges;
  for (const RangeEntry& range : entry.ranges) {
    if (range.count() >= kFewestRepeated) {
      ranges.push_back(range);
      version = 4;
    } else {
      for (RangeEntry& single : expanded({range})) ranges.push_back(std::move(single));
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const RangeEntry& a, const RangeEntry& b) { return util::precedes(a.part, b.part); });
  json array = json::array();
  for (const RangeEntry& range : ranges) {
    json& object = array.emplace_back(part_json(range.part));
    object["file"] = manifest.files[range.file].name;
    for (const Repeat& repeat : range.repeats) {
      json& step = object["repeat"].emplace_back(json{{"count", repeat.count}, {"files", repeat.files}});
      if (repeat.columns > 0) step["begin"] = repeat.columns;
      if (repeat.rows > 0) step["row_begin"] = repeat.rows;
    }
  }
  return array;
}

json to_json(const Manifest& manifest) {
  json tensors = json::object();
  int64_t version = 1;
  for (const FileEntry& file : manifest.files) {
    if (file.name.find('/') != std::string::npos) version = 4;
  }
  for (const auto& [name, entry] : manifest.tensors) {
    tensors[name] = tensor_json(entry, ranges_json(entry, manifest, version));
    if (entry.rows == 1) continue;
    // A reader that ignores the rows would misread the ranges.
    const bool in_columns =
        std::ranges::all_of(entry.ranges, [](const RangeEntry& range) { return range.part.has_all_rows(); });
    const bool is_of_2 = in_columns && dimensions_in(entry.shape, entry.rows) == entry.rows;
    version = std::max<int64_t>(version, is_of_2 ? 2 : 3);
  }
  return {{"format", kFormatName},         {"version", version},
          {"step", manifest.step},         {"world_size", manifest.world_size},
          {"layout", manifest.layout},     {"contents", util::name_of(manifest.contents)},
          {"tensors", std::move(tensors)}, {"files", manifest.files},
          {"training", manifest.training}, {"model", manifest.model}};
}

}  // namespace

int64_t dimensions_in(const std::vector<int64_t>& shape, int64_t rows) {
  int64_t product = 1, found = 0;
  for (size_t k = 0; rows > 0 && k <= shape.size() && product > 0; ++k) {
    const int64_t size = k < shape.size() ? shape[k] : 1;
    if (product == rows || (rows % product == 0 && size % (rows / product) == 0)) found = product;
    if (__builtin_mul_overflow(product, size, &product)) break;
  }
  return found;
}

bool is_printable_name(std::string_view name) {
  return name.find_first_of("\n\t") == std::string_view::npos && util::printable(name) == name;
}

bool is_tensor_name(std::string_view name) {
  if (name.size() > kLongestTensorName) return false;
  if (!is_printable_name(name)) return false;
  for (;;) {
    size_t end = name.find('/');
    std::string_view part = name.substr(0, end);
    if (part.empty() || part == "." || part == "..") return false;
    if (end == std::string_view::npos) return true;
    name.remove_prefix(end + 1);
  }
}

std::string describe_file(const Manifest& manifest, size_t file) {
  json tensors = json::object();
  const auto at = static_cast<int64_t>(file);
  for (const auto& [name, entry] : manifest.tensors) {
    std::vector<util::Rectangle> parts;
    for_each_range(entry.ranges, {.file_begin = at, .file_end = at + 1},
                   [&](const util::Rectangle& part, size_t, const RangeEntry&) { parts.push_back(part); });
    if (parts.empty()) continue;
    std::ranges::sort(parts, util::precedes);
    json ranges = json::array();
    for (const util::Rectangle& part : parts) ranges.push_back(part_json(part));
    tensors[name] = tensor_json(entry, std::move(ranges));
  }
  return json{{"format", kFormatName},     {"step", manifest.step}, {"world_size", manifest.world_size},
              {"layout", manifest.layout}, {"file", file},          {"tensors", std::move(tensors)}}
      .dump();
}

std::string seal_of(json manifest) {
  manifest.erase("seal");
  return xxh3_64_of(manifest.dump(-1, ' ', false, json::error_handler_t::replace));
}

std::string manifest_text(const Manifest& manifest) {
  json object = to_json(manifest);
  // The seal covers what a reader will see: dump() has turned numbers that JSON cannot hold (NaN) into null.
  std::string text = object.dump(-1, ' ', false, json::error_handler_t::replace);
  object = json::parse(text);
  object["seal"] = seal_of(object);
  return object.dump(1) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const util::CanonicalJson canonical = canonical_json(text, kDeepestLevel, where);
  const json object = without_tensors(canonical);
  if (!object.contains("format") || object["format"] != kFormatName) {
    fail(ErrorKind::kCheckpoint, where, " is not a manifest of a checkpoint (\"format\" is not \"",
         kFormatName, "\")");
  }
  int64_t version = number_of(object, "version", where);
  if (version > kFormatVersion) {
    throw NewerFormat(concat(where, " has format version ", version, ", but this program reads only up to ",
                             kFormatVersion, "; use the release that wrote it or a newer one"));
  }
  if (version < 1) fail(ErrorKind::kCheckpoint, where, " has the impossible format version ", version);
  if (text_of(object, "seal", where) != xxh3_64_of(canonical.without("seal"))) {
    fail(ErrorKind::kCheckpoint, where,
         " is damaged: its content does not match its seal; restore it from a "
         "copy or use an older checkpoint");
  }

  Manifest manifest;
  manifest.step = number_of(object, "step", where);
  manifest.world_size = number_of(object, "world_size", where);
  manifest.layout = text_of(object, "layout", where);
  if (!manifest.layout.empty() && !is_tensor_name(manifest.layout)) {
    fail(ErrorKind::kCheckpoint, where, ": \"layout\" must be the name of a layout, but is ",
         in_quotes(manifest.layout));
  }
  if (object.contains("contents")) {
    const std::string text = text_of(object, "contents", where);
    const auto contents = util::parse_enum<Contents>(text);
    if (!contents) {
      fail(ErrorKind::kCheckpoint, where, ": \"contents\" must be \"state\" or \"weights\", but is ",
           in_quotes(text));
    }
    manifest.contents = *contents;
  }
  manifest.training = entry_of(object, "training", where);
  manifest.model = entry_of(object, "model", where);
  if (manifest.step < 0 || manifest.world_size < 1) {
    fail(ErrorKind::kCheckpoint, where, " has the impossible step ", manifest.step, " or world size ",
         manifest.world_size);
  }
  std::unordered_map<std::string, size_t> index;
  for (const json& value : list_of(object, "files", where)) {
    FileEntry file{.name = text_of(value, "name", where + ": a file"),
                   .bytes = number_of(value, "bytes", where + ": a file"),
                   .xxh3_64 = text_of(value, "xxh3_64", where + ": a file")};
    if (!is_file_name(file.name) || file.bytes < 0) {
      fail(ErrorKind::kCheckpoint, where, " lists the file ", in_quotes(file.name), " of ", file.bytes,
           " bytes, which cannot be a file of its folder");
    }
    if (!index.emplace(file.name, manifest.files.size()).second) {
      fail(ErrorKind::kCheckpoint, where, " lists the file ", in_quotes(file.name), " twice");
    }
    manifest.files.push_back(std::move(file));
  }
  const std::optional<std::string_view> tensors = canonical.member("tensors");
  if (!tensors) fail(ErrorKind::kCheckpoint, where, " has no entry \"tensors\"");
  if (!tensors->starts_with('{')) fail(ErrorKind::kCheckpoint, where, ": \"tensors\" is not an object");
  // Tensors are parsed one by one, because a structure of all would take many times the memory of the text.
  read_json_members(*tensors, {.deepest_level = kDeepestLevel}, where, [&](std::string&& name, json&& value) {
    if (!is_tensor_name(name)) {
      fail(ErrorKind::kCheckpoint, where, " has an entry ", in_quotes(name),
           ", which cannot be the name of a tensor");
    }
    TensorEntry entry = parse_tensor(value, index, where + ": tensor " + name);
    manifest.tensors.emplace_hint(manifest.tensors.end(), std::move(name), std::move(entry));
  });
  complete_manifest(manifest, where);
  return manifest;
}

void require_state(const Manifest& manifest, const fs::path& folder) {
  if (manifest.contents == Contents::kState) return;
  fail(ErrorKind::kCheckpoint, folder.string(),
       " contains weights only, so no run can resume from it; start one from its weights "
       "with model.init_from=",
       folder.string(), " and checkpoint.resume=never");
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  const std::string text = read_text(path, kLargestManifestBytes, "manifest");
  try {
    return parse_manifest(text, path.string());
  } catch (const NewerFormat&) {
    throw;
  } catch (const util::Error& error) {
    throw DamageError(path, error.what());
  }
}

}  // namespace fsdp::checkpoint
