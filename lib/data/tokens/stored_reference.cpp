#include "data/tokens/stored_reference.h"

#include <cstring>

#include "data/tokens/data_identity.h"
#include "data/tokens/keyed_file.h"
#include "data/tokens/mapped_file.h"
#include "data/tokens/output_file.h"

namespace fsdp::data {
namespace {

constexpr const char* kReferenceFormat = "log-probabilities of a reference, version 1";
}  // namespace

std::filesystem::path stored_reference_path(const TokenFiles& files) {
  return files.paths().front() + ".reference";
}

nlohmann::json stored_reference_key(const TokenFiles& files, const PreferenceOptions& options,
                                    int64_t sequence_length) {
  return {{"format", kReferenceFormat},
          {"data", identity_of(files)},
          {"rows", options.rows == PreferenceRows::kPairs ? "pairs" : "single"},
          {"sequence_length", sequence_length},
          {"exchanged_rows", options.exchanged_rows}};
}

void write_stored_reference(const TokenFiles& files, const nlohmann::json& key, const std::string& model,
                            const std::vector<double>& log_probs) {
  OutputFile file(stored_reference_path(files));
  write_key(file, key, model);
  file.append(log_probs.data(), static_cast<int64_t>(log_probs.size() * sizeof(double)));
  file.finish();
  file.commit();
}

std::vector<double> read_stored_reference(const TokenFiles& files, const nlohmann::json& key, int64_t count) {
  const std::string path = stored_reference_path(files).string();
  require_keyed_file(path, "preference.reference");
  const MappedFile file("file of a reference", path);
  const auto bytes = static_cast<int64_t>(static_cast<size_t>(count) * sizeof(double));
  const int64_t begin = read_key(file, key, {"rows", "sequence_length", "exchanged_rows"}, bytes);
  std::vector<double> log_probs(static_cast<size_t>(count));
  std::memcpy(log_probs.data(), file.data() + begin, static_cast<size_t>(bytes));
  return log_probs;
}

}  // namespace fsdp::data
