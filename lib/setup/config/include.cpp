#include "setup/config/include.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "setup/config/parse.h"
#include "setup/config/value.h"

namespace fsdp::config {
namespace fs = std::filesystem;

namespace {

/// A chain of this length is nearly always a mistake.
constexpr size_t kMaxDepth = 8;
/// Limit of files; the limit of the depth alone would allow hundreds, with two includes a file.
constexpr size_t kMaxFiles = 64;

fs::path resolved(const fs::path& path) {
  std::error_code error;
  const fs::path canonical = fs::weakly_canonical(path, error);
  return error ? path : canonical;
}

class Includes {
 public:
  explicit Includes(Report& report) : report_(report) {}

  void read(Source file) {
    open_.push_back(resolved(file.name()));
    for (const Literal& path : included_paths(file)) {
      if (path.kind != Literal::Kind::kString || path.text.empty()) {
        report_.add(file, path.region,
                    "include must be a list of paths of TOML files, but contains " + described(path));
      } else {
        read_included(file, path);
      }
    }
    open_.pop_back();
    sources_.push_back(std::move(file));
  }

  std::deque<Source> take() { return std::move(sources_); }

 private:
  /// Syntax errors are reported when the keys of the file are read.
  std::vector<Literal> included_paths(const Source& file) {
    try {
      for (const TomlEntry& entry : parse_toml(file)) {
        if (!entry.section.empty() || entry.name != kIncludeKey) continue;
        if (entry.value.kind == Literal::Kind::kList) return entry.value.items;
        if (entry.value.kind == Literal::Kind::kString) return {entry.value};  // one path is a list of one
        report_.add(file, entry.value.region,
                    concat("include must be a list of files, such as include = [\"base.toml\"], but is ",
                           described(entry.value)));
      }
    } catch (const SyntaxError&) {
    }
    return {};
  }

  void read_included(const Source& file, const Literal& path) {
    const fs::path name = (fs::path(file.name()).parent_path() / path.text).lexically_normal();
    const fs::path full = resolved(name);
    const auto refuse = [&](const std::string& message) {
      report_.add(file, path.region, "include" + message);
    };
    if (const auto first = std::find(open_.begin(), open_.end(), full); first != open_.end()) {
      std::string chain;
      for (auto each = first; each != open_.end(); ++each) chain += each->filename().string() + " -> ";
      return refuse(concat(": files must not include themselves, but ", chain, full.filename().string(),
                           " does; leave one of these includes out"));
    }
    if (open_.size() > kMaxDepth) {
      return refuse(concat(": at most ", kMaxDepth, " files may include one another in a chain; include ",
                           path.text, " from a file nearer to the first one"));
    }
    if (++files_ > kMaxFiles) {
      if (files_ == kMaxFiles + 1) {
        refuse(concat(": at most ", kMaxFiles, " files may be included; leave some out"));
      }
      return;
    }
    std::error_code ignored;
    if (!fs::exists(name, ignored)) {
      return refuse(concat(": there is no file ", name.string(),
                           "; correct the path, which is relative to the folder of the file that names it"));
    }
    try {
      read(Source::from_file(name));
    } catch (const util::Error& error) {
      refuse(error.what());
    }
  }

  Report& report_;
  std::vector<fs::path> open_;  ///< the first file, ..., and the one that is being read
  size_t files_ = 0;
  std::deque<Source> sources_;
};

}  // namespace

std::deque<Source> with_included(Source file, Report& report) {
  Includes includes(report);
  includes.read(std::move(file));
  return includes.take();
}

}  // namespace fsdp::config
