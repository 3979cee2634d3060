#pragma once

// Distributions of a teacher, kept beside the data so that distillation needs no teacher in memory: for each
// input of each sample the teacher's likeliest tokens. FILE.teacher beside the first token file FILE is a
// line of JSON, the key, and after it for each sample T rows of k records, little-endian: uint32 id, float32
// log-probability.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/options/options.h"
#include "data/tokens/mapped_file.h"
#include "data/tokens/output_file.h"
#include "data/tokens/token_files.h"

namespace fsdp::data {

std::filesystem::path stored_teacher_path(const TokenFiles& files);

/// Returns the conditions under which the file holds: the data, and the options that divide it into samples.
/// separator: the token that ends documents; nothing: it does not matter.
nlohmann::json stored_teacher_key(const TokenFiles& files, const DataOptions& options,
                                  std::optional<int64_t> separator);

struct TeacherRecord {
  uint32_t id;
  float log_prob;
};
static_assert(sizeof(TeacherRecord) == 8);

/// Writes the file, which appears complete or not at all. Throws Error(kIo).
class StoredTeacherWriter {
 public:
  /// model: name of the teacher, for people.
  StoredTeacherWriter(const TokenFiles& files, const nlohmann::json& key, const std::string& model);
  /// Appends records of the next samples.
  void append(const std::vector<TeacherRecord>& records);
  void finish();

 private:
  OutputFile file_;
};

/// Maps the file beside `files`. Thread-safe.
class StoredTeacher {
 public:
  /// Throws Error(kData) if the file is missing or damaged, has another key, or not `samples` samples.
  StoredTeacher(const TokenFiles& files, const nlohmann::json& key, int64_t samples);

  /// Copies a sample's records. ids, log_probs: [T * k]. Throws Error(kData) for an id that is not below
  /// vocab_size.
  void read(int64_t sample, int64_t vocab_size, std::vector<int64_t>& ids,
            std::vector<float>& log_probs) const;

 private:
  MappedFile file_;
  int64_t begin_ = 0, records_ = 0;  ///< first byte, and records of a sample
};

}  // namespace fsdp::data
