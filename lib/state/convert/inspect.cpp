#include "state/convert/inspect.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <sstream>
#include <string_view>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/shape.h"
#include "base/util/text.h"
#include "state/dcp/dcp_folder.h"
#include "state/description/described_model.h"
#include "state/manifest/folders.h"
#include "state/manifest/local_weights.h"
#include "state/weights/shard_set.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// Orders numbers by value: "layers.9." before "layers.10.".
struct NumbersInOrder {
  bool operator()(std::string_view a, std::string_view b) const {
    const bool numbers = is_number(a) && is_number(b);
    if (numbers && a.size() != b.size()) return a.size() < b.size();
    return a < b;
  }
  static bool is_number(std::string_view text) { return !text.empty() && text[0] >= '0' && text[0] <= '9'; }
};

struct NameNode {
  /// Children, keyed by the part of the name with its separator. The keys are views of the tensors' names.
  std::map<std::string_view, NameNode, NumbersInOrder> children;
  const TensorInfo* tensor = nullptr;
  int64_t tensors = 0, bytes = 0;
};

void add(NameNode& root, const TensorInfo& tensor) {
  const std::string_view name = tensor.name;
  const int64_t bytes = bytes_of(tensor);
  NameNode* node = &root;
  for (size_t begin = 0;;) {
    ++node->tensors;
    node->bytes += bytes;
    if (begin == name.size()) break;
    const size_t separator = name.find_first_of("./", begin);
    const size_t end = separator == std::string_view::npos ? name.size() : separator + 1;
    node = &node->children[name.substr(begin, end - begin)];
    begin = end;
  }
  node->tensor = &tensor;
}

/// Calls line(label, node) for every line of the tree.
template <typename Line>
void walk(const NameNode& node, const std::string& label, const std::string& indent, const Line& line) {
  // A group with one child shares its line.
  if (node.children.size() == 1 && node.tensor == nullptr) {
    const auto& [part, only] = *node.children.begin();
    walk(only, concat(label, part), indent, line);
    return;
  }
  if (node.tensor != nullptr || !label.empty()) line(indent + label, node);
  const std::string deeper = label.empty() ? indent : indent + "  ";
  for (const auto& [part, child] : node.children) walk(child, std::string(part), deeper, line);
}

void write_about(const NameNode& node, std::ostream& out) {
  if (node.tensor != nullptr) {
    out << util::dtype_name(node.tensor->dtype) << ' ' << util::shape_text(node.tensor->shape);
  } else {
    out << util::with_commas(node.tensors) << " tensors";
  }
}

}  // namespace

void write_tensor_tree(const std::vector<TensorInfo>& tensors, std::ostream& out) {
  NameNode root;
  for (const TensorInfo& tensor : tensors) add(root, tensor);
  size_t widest = 0;
  walk(root, "", "",
       [&](const std::string& label, const NameNode&) { widest = std::max(widest, label.size()); });
  walk(root, "", "", [&](const std::string& label, const NameNode& node) {
    out << label << std::string(widest - label.size() + 2, ' ');
    write_about(node, out);
    out << "  " << util::human_bytes(node.tensor != nullptr ? bytes_of(*node.tensor) : node.bytes) << '\n';
  });
}

namespace {

CheckpointDescription describe_checkpoint(const fs::path& folder) {
  Manifest manifest = read_manifest(folder);
  json optimizer = json::object();
  int64_t total_bytes = 0;
  CheckpointDescription description;
  for (const auto& [name, entry] : manifest.tensors) {
    description.tensors.push_back({name, entry.shape, entry.dtype});
    const int64_t bytes = bytes_of(description.tensors.back());
    total_bytes += bytes;
    if (!name.starts_with(kOptimizerPrefix)) continue;
    const std::string_view state = std::string_view(name).substr(std::string_view(kOptimizerPrefix).size());
    const std::string kind(state.substr(0, state.find('/')));
    json& sums = *optimizer.emplace(kind, json{{"tensors", 0}, {"bytes", 0}}).first;
    sums["tensors"] = sums["tensors"].get<int64_t>() + 1;
    sums["bytes"] = sums["bytes"].get<int64_t>() + bytes;
  }
  description.whole = {{"path", folder.string()},       {"format", kFormatName},
                       {"step", manifest.step},         {"world_size", manifest.world_size},
                       {"layout", manifest.layout},     {"contents", util::name_of(manifest.contents)},
                       {"training", manifest.training}, {"optimizer", std::move(optimizer)},
                       {"model", manifest.model},       {"files", manifest.files},
                       {"bytes", total_bytes}};
  return description;
}

CheckpointDescription describe_weights(const fs::path& path) {
  const Weights weights = open_weights(path);
  CheckpointDescription description;
  for (const std::string& name : weights.names()) {
    description.tensors.push_back({name, weights.shape(name), weights.dtype(name)});
  }
  description.whole = {
      {"path", path.string()}, {"format", "safetensors"}, {"bytes", bytes_of(description.tensors)}};
  return description;
}

CheckpointDescription describe_dcp(const fs::path& path) {
  const DcpFolder folder(path);
  CheckpointDescription description{.whole = {}, .tensors = folder.infos()};
  description.whole = {{"path", path.string()},
                       {"format", "torch.distributed.checkpoint"},
                       {"values", folder.value_keys()},
                       {"bytes", bytes_of(description.tensors)}};
  return description;
}

/// The JSON as indented ASCII. Escapes bytes that are not UTF-8 and characters that confuse a terminal, which
/// may be in paths and names from files.
std::string indented(const json& value) { return value.dump(2, ' ', true, json::error_handler_t::replace); }

std::string count_text(size_t count, const char* noun) {
  return concat(util::with_commas(static_cast<int64_t>(count)), " ", noun, count == 1 ? "" : "s");
}

}  // namespace

CheckpointDescription describe(const fs::path& path) {
  if (is_dcp_folder(path)) return describe_dcp(path);
  return format_of(path) == WeightsFormat::kCheckpoint ? describe_checkpoint(checkpoint_folder(path))
                                                       : describe_weights(path);
}

void write_as_json(const CheckpointDescription& description, std::ostream& out) {
  // A line break within a text is escaped, so these are the lines of the outermost object.
  static constexpr std::string_view kList = "\n  \"tensors\": [", kInner = "\n    ";
  json whole = description.whole;
  whole["tensors"] = json::array();
  const std::string text = indented(whole);
  const size_t end = text.find(kList) + kList.size();
  out << text.substr(0, end);
  bool first = true;
  for (const TensorInfo& info : description.tensors) {
    out << (first ? "" : ",") << kInner;
    first = false;
    for (const char c : indented({{"name", info.name},
                                  {"shape", info.shape},
                                  {"dtype", util::dtype_name(info.dtype)},
                                  {"bytes", bytes_of(info)}})) {
      c == '\n' ? out << kInner : out << c;
    }
  }
  out << (first ? "" : "\n  ") << text.substr(end) << '\n';
}

void write_as_text(const CheckpointDescription& description, std::ostream& to) {
  std::ostringstream out;
  const json& whole = description.whole;
  out << whole["path"].get<std::string>() << ": ";
  if (whole.contains("step")) {
    out << "checkpoint of step " << whole["step"].get<int64_t>() << ", world size "
        << whole["world_size"].get<int64_t>() << ", layout " << whole["layout"].get<std::string>() << ", "
        << (whole["contents"] == util::name_of(Contents::kWeights) ? "weights only, " : "")
        << count_text(whole["files"].size(), "file") << ", ";
  } else {
    out << whole["format"].get<std::string>() << ", ";
  }
  out << count_text(description.tensors.size(), "tensor") << ", "
      << util::human_bytes(whole["bytes"].get<int64_t>()) << "\n";
  for (const char* key : {"training", "model"}) {
    if (whole.contains(key) && !whole[key].is_null()) out << key << ": " << whole[key].dump() << "\n";
  }
  if (whole.contains("optimizer")) {
    for (const auto& [state, sums] : whole["optimizer"].items()) {
      out << "optimizer state " << state << ": " << count_text(sums["tensors"].get<size_t>(), "tensor")
          << ", " << util::human_bytes(sums["bytes"].get<int64_t>()) << "\n";
    }
  }
  write_tensor_tree(description.tensors, out);
  to << util::printable(out.str());
}

std::vector<std::string> find_damage(const fs::path& folder, const util::ByteProgress& progress) {
  std::vector<std::string> damage;
  auto note = [&](const auto& body) {
    try {
      body();
      return true;
    } catch (const util::Error& error) {
      damage.emplace_back(error.what());
      return false;
    }
  };
  if (is_dcp_folder(folder)) {
    note([&] { DcpFolder(folder).verify_all(progress); });
    return damage;
  }
  Manifest manifest;
  if (!note([&] { manifest = read_manifest(folder); })) return damage;
  ShardSet shards(folder, manifest);
  int64_t total_bytes = 0;
  for (const FileEntry& file : manifest.files) total_bytes += file.bytes;
  util::ByteCounter counter(progress, "verifying", total_bytes);
  std::vector<bool> whole;
  for (size_t file = 0; file < manifest.files.size(); ++file) {
    whole.push_back(note([&] { shards.verify(file, [&](int64_t bytes) { counter.add(bytes); }); }));
  }
  // Checks file by file, so that each file is opened once.
  for (size_t file = 0; file < manifest.files.size(); ++file) {
    if (whole[file] && !is_remote_checkpoint(folder)) shards.check(file, note);
  }
  return damage;
}

namespace {

/// Asks the system to drop its cached copy of a synced file, so that the next read is from the disk.
void forget_cached(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

}  // namespace

std::string damage_in(const fs::path& folder, const std::function<bool(const std::string& name)>& takes) {
  try {
    forget_cached(folder / kManifestName);
    const Manifest manifest = read_manifest(folder);
    ShardSet shards(folder, manifest);
    for (size_t file = 0; file < manifest.files.size(); ++file) {
      if (!takes(manifest.files[file].name)) continue;
      forget_cached(folder / manifest.files[file].name);
      shards.verify(file);
      // The structure of a file in a store is not read: the whole file would be copied for it.
      if (!is_remote_checkpoint(folder)) shards.check(file, [](const auto& check) { check(); });
    }
  } catch (const DamageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace fsdp::checkpoint
