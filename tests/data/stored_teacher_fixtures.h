#pragma once

#include <cstdint>
#include <vector>

#include "data/options/options.h"
#include "data/tokens/stored_teacher.h"

namespace fsdp::data {

/// Record j of place t of a sample of stored_teacher(): numbers that no other place has.
inline TeacherRecord teacher_record(int64_t sample, int64_t place, int64_t j) {
  return {.id = static_cast<uint32_t>((sample * 31 + place * 7 + j) % 256),
          .log_prob =
              -static_cast<float>(sample + 1) - static_cast<float>(place) / 16 - static_cast<float>(j) / 256};
}

/// Writes such records for `samples` samples beside the files. separator: as in stored_teacher_key().
inline void store_teacher(const TokenFiles& files, const DataOptions& options, int64_t samples,
                          std::optional<int64_t> separator = std::nullopt) {
  StoredTeacherWriter writer(files, stored_teacher_key(files, options, separator), "a teacher");
  for (int64_t sample = 0; sample < samples; ++sample) {
    std::vector<TeacherRecord> records;
    for (int64_t place = 0; place < options.sequence_length; ++place) {
      for (int64_t j = 0; j < options.teacher.top_k; ++j) records.push_back(teacher_record(sample, place, j));
    }
    writer.append(records);
  }
  writer.finish();
}

}  // namespace fsdp::data
