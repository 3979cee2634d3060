#include "data/tokens/stored_reference.h"

#include <cstring>
#include <string_view>

#include "base/util/error.h"
#include "data/tokens/data_identity.h"
#include "data/tokens/mapped_file.h"
#include "data/tokens/output_file.h"

namespace fsdp::data {
namespace {

constexpr const char* kFormat = "log-probabilities of a reference, version 1";
constexpr int64_t kMaxKeyBytes = int64_t{1} << 20;
constexpr const char* kRemedy = "compute them with fsdp-train reference-log-probs CONFIG";

/// Returns the first line of the file; empty if there is none.
std::string_view first_line(const MappedFile& file) {
  const std::string_view head(file.data(), static_cast<size_t>(std::min(file.size_bytes(), kMaxKeyBytes)));
  const size_t end = head.find('\n');
  return end == std::string_view::npos ? std::string_view() : head.substr(0, end);
}

/// Returns the difference of two keys in words; empty if there is none.
std::string difference_of_keys(const nlohmann::json& recorded, const nlohmann::json& expected) {
  if (const auto data = difference(recorded.value("data", nlohmann::json()), expected["data"])) {
    return "are of other data: " + *data;
  }
  for (const char* name : {"rows", "sequence_length", "exchanged_rows"}) {
    const nlohmann::json found = recorded.value(name, nlohmann::json());
    if (found != expected[name])
      return concat("are for ", name, " = ", found.dump(), ", but the run has ", expected[name].dump());
  }
  return "";
}

}  // namespace

std::filesystem::path stored_reference_path(const TokenFiles& files) {
  return files.paths().front() + ".reference";
}

nlohmann::json stored_reference_key(const TokenFiles& files, const PreferenceOptions& options,
                                    int64_t sequence_length) {
  return {{"format", kFormat},
          {"data", identity_of(files)},
          {"rows", options.rows == PreferenceRows::kPairs ? "pairs" : "single"},
          {"sequence_length", sequence_length},
          {"exchanged_rows", options.exchanged_rows}};
}

void write_stored_reference(const TokenFiles& files, const nlohmann::json& key, const std::string& model,
                            const std::vector<double>& log_probs) {
  OutputFile file(stored_reference_path(files));
  nlohmann::json head = key;
  head["model"] = model;
  const std::string line = head.dump() + "\n";
  file.append(line.data(), static_cast<int64_t>(line.size()));
  file.append(log_probs.data(), static_cast<int64_t>(log_probs.size() * sizeof(double)));
  file.finish();
  file.commit();
}

std::vector<double> read_stored_reference(const TokenFiles& files, const nlohmann::json& key, int64_t count) {
  const std::filesystem::path path = stored_reference_path(files);
  if (!std::filesystem::exists(path)) {
    fail(ErrorKind::kData, "preference.reference = \"stored\" needs the file ", path.string(),
         ", which does not exist; ", kRemedy);
  }
  const MappedFile file("file of a reference", path.string());
  const std::string_view line = first_line(file);
  const auto recorded = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto bytes = static_cast<int64_t>(static_cast<size_t>(count) * sizeof(double));
  if (!recorded.is_object() || recorded.value("format", nlohmann::json()) != kFormat) {
    file.refuse("does not begin with the line that describes it", kRemedy);
  }
  if (const std::string differs = difference_of_keys(recorded, key); !differs.empty()) {
    fail(ErrorKind::kData, "the log-probabilities in ", path.string(), " ", differs, "; ", kRemedy);
  }
  if (file.size_bytes() != static_cast<int64_t>(line.size()) + 1 + bytes) {
    file.refuse(concat("must have ", line.size() + 1 + static_cast<size_t>(bytes), " bytes, but has ",
                       file.size_bytes()),
                kRemedy);
  }
  std::vector<double> log_probs(static_cast<size_t>(count));
  std::memcpy(log_probs.data(), file.data() + line.size() + 1, static_cast<size_t>(bytes));
  return log_probs;
}

}  // namespace fsdp::data
