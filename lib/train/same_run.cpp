#include "train/same_run.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/print.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/system.h"
#include "util/text.h"
#include "util/version.h"

namespace fsdp::train {
namespace {

using nlohmann::json;
using util::concat;

constexpr uint64_t kSeed = 0x66736470;
constexpr std::streamsize kHashedBytes = 1 << 16;

/// Size and hash of the beginning: enough to tell files apart that were not meant to be the same.
json file_mark(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string begin(kHashedBytes, '\0');
  file.read(begin.data(), kHashedBytes);
  begin.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  std::error_code error;
  auto bytes = std::filesystem::file_size(path, error);
  // A file that cannot be read is reported by who opens it.
  return error ? json(nullptr) : json{bytes, util::hash_of(kSeed, begin)};
}

json file_marks(const std::vector<std::string>& paths) {
  json marks = json::array();
  for (const std::string& path : paths) marks.push_back(file_mark(path));
  return marks;
}

/// The keys that say where a host finds its files may differ; what is in the files may not.
std::string comparable_config(config::Config config) {
  config.data.train = {"files"};
  config.data.validation.clear();
  config.model.init_from.clear();
  config.model.init_unused.clear();  // belongs to it, and changes no weight
  return config::to_toml(config);
}

std::string difference(const json& first, const json& other) {
  if (first["version"] != other["version"]) {
    return concat("version of the toolkit: ", first["version"].dump(), " -> ", other["version"].dump());
  }
  if (first["config"] != other["config"]) {
    auto changes = config::differing_keys(
        config::parse_config(first["config"].get<std::string>(), "rank 0's config"),
        config::parse_config(other["config"].get<std::string>(), "another rank's config"));
    return changes.empty() ? "the config" : util::join(changes, "; ");
  }
  for (const char* key : {"data.train", "data.validation"}) {
    if (first[key] != other[key]) return concat("what is in the files of ", key);
  }
  return {};
}

}  // namespace

void require_same_run(const config::Config& config, comm::Communicator& communicator) {
  if (communicator.world_size() == 1) return;
  json mine = {{"version", util::version()},
               {"config", comparable_config(config)},
               {"data.train", file_marks(config.data.train)},
               {"data.validation", file_marks(config.data.validation)},
               {"host", util::host_name()}};
  std::vector<std::string> all =
      comm::all_gather_text(communicator, mine.dump(-1, ' ', false, json::error_handler_t::replace),
                            {.unit = "comparison of the ranks"});
  json first = json::parse(all[0]);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    json other = json::parse(all[rank]);
    std::string what = difference(first, other);
    if (what.empty()) continue;
    throw comm::AgreedError(util::ErrorKind::kUsage,
                            concat("expected the same run on all ranks; found rank ", rank, " on ",
                                   other["host"].get<std::string>(), " to differ from rank 0 on ",
                                   first["host"].get<std::string>(), " in ", what,
                                   "; start all processes with the same program, config and data"));
  }
}

}  // namespace fsdp::train
