#pragma once

// Zip archives without compression, as torch.save() writes one of each object: in a part of a file, which is not
// trusted.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "state/manifest/raw_file.h"

namespace fsdp::checkpoint {

/// Bytes [begin, begin + bytes) of a file.
struct FilePart {
  int64_t begin = 0, bytes = 0;
};

class ZipReader {
 public:
  /// Reads the directory of the archive that is `part` of the file. kCheckpoint that starts with `where` unless it is
  /// one, ends with the part and has no comment. The file must outlive the object.
  ZipReader(const RawFile& file, const FilePart& part, std::string where);

  struct Record {
    std::string name;
    int64_t bytes = 0;
    uint32_t crc32 = 0;        ///< 0: perhaps not computed
    int64_t header_begin = 0;  ///< from the start of the file
  };

  const std::vector<Record>& records() const { return records_; }
  /// Null when there is none of this name.
  const Record* find(std::string_view name) const;

  /// Where a record's bytes are in the file. kCheckpoint unless they are within the archive.
  FilePart place_of(const Record& record) const;
  /// The bytes of a small record, after comparing their checksum.
  std::string read(const Record& record, int64_t largest_bytes) const;
  /// kCheckpoint when the checksum of a record's bytes is not the archive's.
  void verify(const Record& record) const;

 private:
  const RawFile& file_;
  FilePart part_;
  std::string where_;
  std::vector<Record> records_;
  int64_t directory_begin_ = 0;  ///< from the start of the file
};

/// Appends one archive of less than 4 GiB to a file. Records are written one after another.
class ZipWriter {
 public:
  explicit ZipWriter(RawFile& file) : file_(file) {}

  /// Begins a record; append() adds to it.
  void begin(std::string_view name);
  void append(const void* data, int64_t bytes);
  void add(std::string_view name, std::string_view bytes) {
    begin(name);
    append(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  /// Writes the directory; returns the bytes of the archive.
  int64_t finish();

 private:
  void end_record();
  void write(const std::string& bytes);

  RawFile& file_;
  std::vector<ZipReader::Record> records_;
  int64_t written_ = 0;
  bool open_ = false;
};

}  // namespace fsdp::checkpoint
