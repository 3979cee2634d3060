#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "base/util/clock.h"
#include "base/util/descriptor.h"
#include "base/util/error.h"
#include "base/util/text.h"
#include "comm/options/mesh_shape.h"
#include "data/options/text_names.h"
#include "data/tokens/file_patterns.h"
#include "data/tokens/token_files.h"
#include "setup/config/model_description.h"
#include "state/weights/stored_model.h"
#include "state/weights/weights.h"
#include "tools/doctor/checks.h"
#include "tools/plan/memory.h"
#include "tools/plan/plan.h"

namespace fsdp::doctor {
namespace {

namespace fs = std::filesystem;
using util::human_bytes;

/// The folder or its nearest ancestor that exists.
fs::path existing(fs::path folder) {
  std::error_code error;
  folder = fs::absolute(folder, error);
  while (!fs::is_directory(folder, error) && folder.has_relative_path() && !fs::exists(folder, error)) {
    folder = folder.parent_path();
  }
  return folder;
}

/// A file that is deleted when it is closed. On failure a closed descriptor, with errno.
util::Descriptor nameless_file(const fs::path& folder) {
  util::Descriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.is_open()) return file;
  // Fallback for file systems without O_TMPFILE.
  std::string name = (folder / ".fsdp-doctor-XXXXXX").string();
  file = util::Descriptor(::mkostemp(name.data(), O_CLOEXEC));
  const int error = errno;
  if (file.is_open()) ::unlink(name.c_str());
  errno = error;
  return file;
}

/// Seconds to write and sync this number of bytes. Negative, with errno, on an error.
double seconds_to_write(int fd, size_t bytes) {
  const std::vector<char> content(bytes, 'x');
  const auto begin = std::chrono::steady_clock::now();
  for (size_t done = 0; done < bytes;) {
    const ssize_t count = ::pwrite(fd, content.data() + done, bytes - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return -1;
    done += static_cast<size_t>(count);
  }
  if (::fsync(fd) != 0) return -1;
  return util::seconds_since(begin);
}

Finding check_speed(const fs::path& folder) {
  constexpr size_t kBytes = size_t{64} << 20, kSmall = 4096;
  const util::Descriptor file = nameless_file(folder);
  if (!file.is_open()) {
    return {FindingVerdict::kFail, "output folder",
            concat("cannot create a file in ", folder.string(), ": ", util::errno_text(errno)),
            "choose another run.output_dir, or get write permission there"};
  }
  const double large = seconds_to_write(file.get(), kBytes), small = seconds_to_write(file.get(), kSmall);
  if (large < 0 || small < 0) {
    return {FindingVerdict::kFail, "disk speed", concat("cannot write 64 MiB: ", util::errno_text(errno)),
            "free space, or choose another run.output_dir"};
  }
  const double rate = static_cast<double>(kBytes) / large / 1e6;
  const char* speed = rate >= 500 ? "fast" : rate >= 50 ? "ordinary" : "slow";
  Finding finding{FindingVerdict::kOk, "disk speed",
                  concat(speed, ": 64 MiB written and synced with ", util::fixed(rate, 0), " MB/s, 4 KiB in ",
                         util::fixed(1e3 * small, 1), " ms"),
                  ""};
  if (rate < 50) {
    finding.verdict = FindingVerdict::kWarn;
    finding.remedy = "checkpoint.asynchronous = true writes while training goes on";
  }
  return finding;
}

/// Bytes of weights and optimizer state in a checkpoint. They do not depend on the number of ranks.
int64_t checkpoint_bytes(const config::Config& config) {
  config::Config alone = config;
  alone.mesh = {};
  alone.fsdp.strategy = shard::Strategy::kFullShard;
  alone.fsdp.hybrid_optimizer = shard::HybridOptimizer::kReplicated;
  alone.fsdp.replica_check_interval = 0;
  const std::vector<shard::UnitSizes> units = plan::planned_units(alone, comm::resolve_mesh(alone.mesh, 1));
  int64_t bytes = plan::optimizer_state_bytes(alone.optimizer, units);
  for (const shard::UnitSizes& unit : units) bytes += unit.shard_bytes();
  return bytes;
}

Finding check_space(const fs::path& folder, const config::Config& config) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) {
    return {FindingVerdict::kWarn, "disk space", concat(folder.string(), ": ", util::errno_text(errno)),
            "check the mount"};
  }
  const auto free = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  const int64_t one = checkpoint_bytes(config);
  Finding finding{FindingVerdict::kOk, "disk space",
                  concat(human_bytes(free), " free for ", config.run.output_dir,
                         "; a checkpoint takes about ", human_bytes(one)),
                  ""};
  // The newest checkpoint is written before the oldest is deleted.
  const int64_t kept =
      std::max<int64_t>(config.checkpoint.keep_last, 1) + 1 + (config.checkpoint.keep_best ? 1 : 0);
  if (one > free) {
    finding.verdict = FindingVerdict::kFail;
    finding.remedy = "free space, or choose another run.output_dir";
  } else if (kept * one > free) {
    finding.verdict = FindingVerdict::kWarn;
    finding.remedy =
        concat(kept, " exist at once by checkpoint.keep_last and keep_best: lower them, or free space");
  }
  return finding;
}

/// Compares names and shapes. Reads no values, except those of a head that is stored beside the embedding to
/// which it is tied.
Finding check_first_weights(const nn::ModelOptions& model) {
  constexpr const char* kSubject = "first weights";
  try {
    config::require_same_model(model, model.init_from);
    checkpoint::Weights weights = checkpoint::open_weights(model.init_from);
    std::string added;
    for (const std::string& rows : checkpoint::extend_vocabulary(weights, model)) added += "; " + rows;
    const size_t used = checkpoint::match_initial_weights(weights, model).size();
    return {FindingVerdict::kOk, kSubject,
            concat(model.init_from, ": the ", used, " weights of the model", added), ""};
  } catch (const util::Error& error) {
    return {FindingVerdict::kFail, kSubject, error.what(), "correct model.init_from or [model]"};
  }
}

constexpr const char* kRemedy =
    "create them (fsdp-data tokenize) or correct the config; relative paths start at the current folder";

/// Most tokens that are read.
constexpr int64_t kReadTokens = 250'000'000;

bool is_text(const std::string& path) {
  std::error_code error;
  return data::is_text_name(path) || fs::is_directory(path, error);
}

/// Whether the model has an embedding for each id of the data.
Finding check_tokens(const char* subject, const std::vector<std::string>& paths, int64_t vocab_size) {
  if (const auto text = std::ranges::find_if(paths, is_text); text != paths.end()) {
    return {FindingVerdict::kOk, subject,
            concat(*text, " is a text, which the run tokenizes while it reads it"), ""};
  }
  try {
    const data::TokenFiles files(paths);
    const int64_t largest = data::largest_id(files, kReadTokens);
    const bool fits = largest < vocab_size;
    return {fits ? FindingVerdict::kOk : FindingVerdict::kFail, subject,
            concat(util::with_commas(files.size()), " tokens, the largest id ",
                   files.size() > kReadTokens
                       ? concat("of the first ", util::with_commas(kReadTokens), " of them ")
                       : "",
                   largest, ", model.vocab_size ", vocab_size),
            fits ? "" : data::remedy_for_id(largest)};
  } catch (const util::Error& error) {
    return {FindingVerdict::kFail, subject, error.what(), "create the files with fsdp-data tokenize"};
  }
}

}  // namespace

Findings check_disk(const config::Config& config) {
  const fs::path folder = existing(config.run.output_dir);
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return {{FindingVerdict::kFail, "output folder", folder.string() + " is not a folder",
             "choose another run.output_dir"}};
  }
  const Finding speed = check_speed(folder);
  if (speed.verdict == FindingVerdict::kFail) return {speed};
  return {check_space(folder, config), speed};
}

Findings check_files(const config::Config& config) {
  std::vector<std::string> train, validation;
  try {
    train = data::expand_patterns(config.data.train);
    validation = data::expand_patterns(config.data.validation);
  } catch (const util::Error& error) {
    return {{FindingVerdict::kFail, "files", error.what(), kRemedy}};
  }
  std::vector<std::string> files = train, missing;
  files.insert(files.end(), validation.begin(), validation.end());
  for (const std::string& weights : {config.model.init_from, config.checkpoint.init_from}) {
    if (!weights.empty()) files.push_back(weights);
  }
  for (const std::string& file : files) {
    if (::access(file.c_str(), R_OK) != 0)
      missing.push_back(concat(file, " (", util::errno_text(errno), ")"));
  }
  if (missing.empty()) {
    Findings findings = {
        {FindingVerdict::kOk, "files", concat(files.size(), " named by the config are there"), ""}};
    findings.push_back(check_tokens("training data", train, config.model.vocab_size));
    if (!validation.empty()) {
      findings.push_back(check_tokens("validation data", validation, config.model.vocab_size));
    }
    if (!config.model.init_from.empty()) findings.push_back(check_first_weights(config.model));
    return findings;
  }
  return {{FindingVerdict::kFail, "files", util::join(missing, ", "), kRemedy}};
}

}  // namespace fsdp::doctor
