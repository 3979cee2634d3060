#pragma once

// Zip archives without compression, in parts of a file, as torch.save() writes one per object. A file that is
// read is not trusted.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/util/raw_file.h"

namespace fsdp::checkpoint {

/// Bytes [begin, begin + bytes) of a file.
struct FilePart {
  int64_t begin = 0, bytes = 0;
};

class ZipReader {
 public:
  /// Reads the directory of the archive in `part` of the file. Throws Error(kCheckpoint) that begins with
  /// `where` unless the part is an archive without a comment that ends with the part. The file must outlive
  /// the object.
  ZipReader(const util::RawFile& file, const FilePart& part, std::string where);

  struct ZipRecord {
    std::string name;
    int64_t bytes = 0;
    uint32_t crc32 = 0;        ///< 0: possibly not computed
    int64_t header_begin = 0;  ///< offset from the start of the file
  };

  const std::vector<ZipRecord>& records() const { return records_; }
  /// The record of this name. Null if there is none.
  const ZipRecord* find(std::string_view name) const;

  /// The place of a record's bytes in the file. Throws Error(kCheckpoint) unless they are within the archive.
  FilePart place_of(const ZipRecord& record) const;
  /// Reads a small record and compares its checksum.
  std::string read(const ZipRecord& record, int64_t largest_bytes) const;
  /// Throws Error(kCheckpoint) if the checksum of a record's bytes differs from the archive's.
  void verify(const ZipRecord& record) const;

 private:
  const util::RawFile& file_;
  FilePart part_;
  std::string where_;
  std::vector<ZipRecord> records_;
  int64_t directory_begin_ = 0;  ///< offset from the start of the file
};

/// Appends one archive of less than 4 GiB to a file. Records are written one after another.
class ZipWriter {
 public:
  explicit ZipWriter(util::RawFile& file) : file_(file) {}

  /// Begins a record, to which append() adds bytes.
  void begin(std::string_view name);
  void append(const void* data, int64_t bytes);
  void add(std::string_view name, std::string_view bytes) {
    begin(name);
    append(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  /// Writes the directory and returns the size of the archive in bytes.
  int64_t finish();

 private:
  void end_record();
  void write(const std::string& bytes);

  util::RawFile& file_;
  std::vector<ZipReader::ZipRecord> records_;
  int64_t written_ = 0;
  bool open_ = false;
};

}  // namespace fsdp::checkpoint
