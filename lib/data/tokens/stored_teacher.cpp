#include "data/tokens/stored_teacher.h"

#include <cstring>
#include <utility>

#include "base/util/error.h"
#include "data/tokens/data_identity.h"
#include "data/tokens/keyed_file.h"

namespace fsdp::data {
namespace {

constexpr const char* kTeacherFormat = "likeliest tokens of a teacher, version 1";

std::string checked_path(const TokenFiles& files) {
  const std::string path = stored_teacher_path(files).string();
  require_keyed_file(path, "distillation.teacher");
  return path;
}

}  // namespace

std::filesystem::path stored_teacher_path(const TokenFiles& files) {
  return files.paths().front() + ".teacher";
}

nlohmann::json stored_teacher_key(const TokenFiles& files, const DataOptions& options,
                                  std::optional<int64_t> separator) {
  const bool joins = options.documents == DocumentTreatment::kJoin;
  return {{"format", kTeacherFormat},
          {"data", identity_of(files)},
          {"sequence_length", options.sequence_length},
          {"documents", std::string(util::name_of(options.documents.value()))},
          {"document_separator", joins ? -1 : separator.value_or(-1)},
          {"top_k", options.teacher.top_k},
          {"temperature", options.teacher.temperature}};
}

StoredTeacherWriter::StoredTeacherWriter(const TokenFiles& files, const nlohmann::json& key,
                                         const std::string& model)
    : file_(stored_teacher_path(files)) {
  write_key(file_, key, model);
}

void StoredTeacherWriter::append(const std::vector<TeacherRecord>& records) {
  file_.append(records.data(), static_cast<int64_t>(records.size() * sizeof(TeacherRecord)));
}

void StoredTeacherWriter::finish() {
  file_.finish();
  file_.commit();
}

StoredTeacher::StoredTeacher(const TokenFiles& files, const nlohmann::json& key, int64_t samples)
    : file_("file of a teacher", checked_path(files)),
      records_(key["sequence_length"].get<int64_t>() * key["top_k"].get<int64_t>()) {
  begin_ =
      read_key(file_, key, {"sequence_length", "documents", "document_separator", "top_k", "temperature"},
               samples * records_ * static_cast<int64_t>(sizeof(TeacherRecord)));
}

void StoredTeacher::read(int64_t sample, int64_t vocab_size, std::vector<int64_t>& ids,
                         std::vector<float>& log_probs) const {
  ids.resize(static_cast<size_t>(records_));
  log_probs.resize(static_cast<size_t>(records_));
  const int64_t bytes = records_ * static_cast<int64_t>(sizeof(TeacherRecord)), at = begin_ + sample * bytes;
  if (at + bytes > file_.current_size_bytes()) {
    file_.refuse("has become shorter since it was opened", kComputeLogProbs);
  }
  for (int64_t i = 0; i < records_; ++i) {
    TeacherRecord record{};
    std::memcpy(&record, file_.data() + at + i * static_cast<int64_t>(sizeof(record)), sizeof(record));
    if (record.id >= vocab_size || !(record.log_prob <= 0)) {
      file_.refuse(concat("has a record of sample ", sample, " with the token ", record.id,
                          " and the log-probability ", record.log_prob),
                   kComputeLogProbs);
    }
    ids[static_cast<size_t>(i)] = record.id;
    log_probs[static_cast<size_t>(i)] = record.log_prob;
  }
}

}  // namespace fsdp::data
