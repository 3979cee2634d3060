#include "base/objects/hub_store.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "base/objects/object_name.h"
#include "base/util/error.h"
#include "base/util/json.h"
#include "base/util/regular_file.h"

namespace fsdp::objects {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostListBytes = size_t{64} << 20;
constexpr int kMostPages = 10000, kMostMoves = 5;

std::string environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

std::string first_line(const fs::path& file) {
  std::string text = util::read_beginning(file, 4096);
  return text.substr(0, text.find_first_of("\r\n"));
}

std::string token_of_user() {
  if (std::string token = environment("HF_TOKEN"); !token.empty()) return token;
  if (const std::string file = environment("HF_TOKEN_PATH"); !file.empty()) return first_line(file);
  const std::string home = environment("HF_HOME");
  return first_line(home.empty() ? fs::path(environment("HOME")) / ".cache/huggingface/token"
                                 : fs::path(home) / "token");
}

/// Escapes what is not allowed in the path of an address; slashes stay.
std::string escaped(std::string_view path) {
  constexpr std::string_view kPlain = "-_.~/";
  constexpr const char* kDigits = "0123456789ABCDEF";
  std::string result;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || kPlain.find(c) != std::string_view::npos) {
      result += c;
    } else {
      result += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return result;
}

struct HubPath {
  bool is_dataset = false;
  std::string repository, revision = "main", file;
};

/// Removes the first part of a path, up to a slash, and returns it.
std::string take_part(std::string_view& path) {
  const size_t slash = std::min(path.find('/'), path.size());
  const std::string part(path.substr(0, slash));
  path.remove_prefix(std::min(slash + 1, path.size()));
  return part;
}

HubPath parsed(const std::string& name) {
  const std::string text = without_scheme(name);
  std::string_view rest = text;
  HubPath path;
  std::string owner = take_part(rest);
  path.is_dataset = owner == "datasets";
  if (path.is_dataset) owner = take_part(rest);
  std::string repository = take_part(rest);
  if (owner.empty() || repository.empty() || owner == "spaces" || owner == "models") {
    throw StoreFault(FaultKind::kPermanent,
                     "names on the hub have the form hf://OWNER/MODEL/FILE or hf://datasets/OWNER/NAME/FILE; "
                     "correct it");
  }
  if (const size_t at = repository.find('@'); at != std::string::npos) {
    path.revision = repository.substr(at + 1);
    repository.resize(at);
    // A revision with a slash is written with %2F, and names of pull requests as refs/pr/N.
    if (path.revision == "refs") path.revision = concat("refs/", take_part(rest), "/", take_part(rest));
    for (size_t escape; (escape = path.revision.find("%2F")) != std::string::npos;) {
      path.revision.replace(escape, 3, "/");
    }
  }
  path.repository = owner + "/" + repository;
  path.file = std::string(rest);
  while (path.file.ends_with('/')) path.file.pop_back();
  return path;
}

std::string revision_in_address(const std::string& revision) {
  std::string result = escaped(revision);
  for (size_t slash; (slash = result.find('/')) != std::string::npos;) result.replace(slash, 1, "%2F");
  return result;
}

int64_t header_number(const WebAnswer& answer, const char* name) {
  const std::string& text = answer.header(name);
  int64_t number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// Returns the address with rel="next" of a Link header; "": there is none.
std::string next_page(const std::string& link) {
  const size_t relation = link.find("rel=\"next\""), begin = link.find('<'), end = link.find('>');
  if (relation == std::string::npos || begin == std::string::npos || end < begin) return "";
  return link.substr(begin + 1, end - begin - 1);
}

nlohmann::json list_in(const std::string& body) {
  try {
    return util::parse_json(body, {.deepest_level = 8});
  } catch (const util::JsonError& error) {
    throw StoreFault(FaultKind::kTransient, concat("the hub's list ", error.what()));
  }
}

}  // namespace

HubStore::HubStore(std::shared_ptr<WebClient> client)
    : WebStore(std::move(client)), endpoint_(environment("HF_ENDPOINT")), token_(token_of_user()) {
  if (endpoint_.empty()) endpoint_ = "https://huggingface.co";
  while (endpoint_.ends_with('/')) endpoint_.pop_back();
}

std::optional<ObjectInfo> HubStore::find(const std::string& name) {
  const HubPath path = parsed(name);
  if (path.file.empty()) return std::nullopt;
  const std::string repository =
                        concat(endpoint_, path.is_dataset ? "/datasets/" : "/", escaped(path.repository)),
                    file = escaped(path.file);
  std::string address = concat(repository, "/resolve/", revision_in_address(path.revision), "/", file);
  for (int move = 0; move < kMostMoves; ++move) {
    // The hub redirects large files to the store that has them, with their size and hash in its own answer.
    const WebAnswer answer =
        client().perform({.url = address, .head = true, .follows = false, .bearer = bearer()});
    if (answer.status == 404) return std::nullopt;
    const bool is_redirected = answer.status >= 300 && answer.status < 400;
    const std::string &location = answer.header("location"), &linked = answer.header("x-linked-etag");
    if (is_redirected && linked.empty() && location.starts_with('/')) {  // a repository that was renamed
      address = endpoint_ + location;
      continue;
    }
    if (!is_redirected) require_success(answer);
    ObjectInfo object{
        .size_bytes = header_number(answer, linked.empty() ? "content-length" : "x-linked-size"),
        .version = linked.empty() ? version_of(answer) : linked};
    std::erase(object.version, '"');
    const std::string& commit = answer.header("x-repo-commit");
    object.address = commit.empty() ? address : concat(repository, "/resolve/", commit, "/", file);
    if (object.size_bytes < 0) throw StoreFault(FaultKind::kTransient, "the hub does not tell its size");
    return object;
  }
  throw StoreFault(FaultKind::kPermanent,
                   "the hub redirects it too often; use the repository's present name");
}

std::vector<ListedObject> HubStore::list(const std::string& folder) {
  const HubPath path = parsed(folder);
  std::string address =
      concat(endpoint_, path.is_dataset ? "/api/datasets/" : "/api/models/", escaped(path.repository),
             "/tree/", revision_in_address(path.revision), path.file.empty() ? "" : "/", escaped(path.file),
             "?recursive=true&expand=false");
  const std::string prefix = path.file.empty() ? "" : path.file + "/";
  std::vector<ListedObject> listed;
  for (int page = 0; !address.empty() && page < kMostPages; ++page) {
    std::string body;
    const WebAnswer answer =
        client().perform({.url = address, .bearer = bearer(), .on_body = [&](const char* data, size_t bytes) {
                            body.append(data, bytes);
                            return body.size() <= kMostListBytes;
                          }});
    if (answer.status == 404) return {};
    require_success(answer);
    const nlohmann::json entries = list_in(body);
    if (!entries.is_array()) throw StoreFault(FaultKind::kTransient, "the hub's list is not one of files");
    for (const nlohmann::json& entry : entries) {
      if (!entry.is_object() || entry.value("type", "") != "file") continue;
      const std::string file = entry.value("path", "");
      if (!file.starts_with(prefix) || concat("/", file, "/").find("/../") != std::string::npos) continue;
      listed.push_back({.name = file.substr(prefix.size()), .size_bytes = entry.value("size", int64_t{0})});
    }
    address = next_page(answer.header("link"));
    if (!address.empty() && !address.starts_with(endpoint_ + "/")) {
      throw StoreFault(FaultKind::kPermanent, "the hub's list continues on another host");
    }
  }
  return listed;
}

}  // namespace fsdp::objects
