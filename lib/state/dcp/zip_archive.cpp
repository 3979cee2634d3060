#include "state/dcp/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/util/error.h"

namespace fsdp::checkpoint {

namespace {

// Signatures and sizes of PKWARE's APPNOTE.TXT, sections 4.3.7, 4.3.9, 4.3.12, 4.3.14 to 4.3.16.
constexpr uint32_t kLocalHeader = 0x04034b50, kDescriptor = 0x08074b50, kDirectoryHeader = 0x02014b50,
                   kEnd = 0x06054b50, kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr int64_t kLocalHeaderBytes = 30, kDirectoryHeaderBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                  kLocator64Bytes = 20;
constexpr int64_t kLargestDirectoryBytes = 1 << 20;
/// Marks a number that is in a field of zip64 instead.
constexpr uint32_t kIn64 = std::numeric_limits<uint32_t>::max();
constexpr int64_t kBlock = 1 << 20;

/// Reads little-endian numbers of a header.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}
  uint64_t number(size_t at, size_t bytes) const {
    uint64_t number = 0;
    if (at + bytes <= bytes_.size()) std::memcpy(&number, bytes_.data() + at, bytes);
    return number;
  }
  uint16_t two(size_t at) const { return static_cast<uint16_t>(number(at, 2)); }
  uint32_t four(size_t at) const { return static_cast<uint32_t>(number(at, 4)); }
  uint64_t eight(size_t at) const { return number(at, 8); }

 private:
  std::string_view bytes_;
};

std::string bytes_at(const util::RawFile& file, int64_t begin, int64_t count) {
  std::string bytes(static_cast<size_t>(count), '\0');
  file.read_at(begin, bytes.data(), count);
  return bytes;
}

/// The zip64 field among the extra fields. Empty if there is none.
std::string_view zip64_field(std::string_view extra) {
  while (extra.size() >= 4) {
    const Fields fields(extra);
    const size_t size = fields.two(2);
    if (size > extra.size() - 4) break;
    if (fields.two(0) == 1) return extra.substr(4, size);
    extra.remove_prefix(4 + size);
  }
  return {};
}

}  // namespace

ZipReader::ZipReader(const util::RawFile& file, const FilePart& part, std::string where)
    : file_(file), part_(part), where_(std::move(where)) {
  const auto refuse = [&](const auto&... parts) {
    fail(ErrorKind::kCheckpoint, where_, " must be what torch.save() writes, but ", parts...);
  };
  const int64_t file_bytes = file.size_bytes();
  if (part.begin < 0 || part.bytes < 0 || part.begin > file_bytes || part.bytes > file_bytes - part.begin) {
    fail(ErrorKind::kCheckpoint, where_, " must be ", part.bytes, " bytes from byte ", part.begin,
         " of the file on, which has ", file_bytes, " bytes; the file is cut off");
  }
  if (part.bytes < kEndBytes) refuse("has ", part.bytes, " bytes, too few");
  const int64_t end_begin = part.bytes - kEndBytes;
  const std::string end_text = bytes_at(file, part.begin + end_begin, kEndBytes);
  const Fields end(end_text);
  if (end.four(0) != kEnd) refuse("has no end of a zip archive at its end; the file is cut off or damaged");
  uint64_t count = end.two(10), bytes = end.four(12), begin = end.four(16);
  if ((count == 0xffff || bytes == kIn64 || begin == kIn64) && end_begin >= kLocator64Bytes) {
    const std::string locator = bytes_at(file, part.begin + end_begin - kLocator64Bytes, kLocator64Bytes);
    const uint64_t at = Fields(locator).eight(8);
    if (Fields(locator).four(0) != kLocator64 || end_begin < kEnd64Bytes ||
        at > static_cast<uint64_t>(end_begin - kEnd64Bytes)) {
      refuse("its end does not say where its directory is");
    }
    const std::string end64 = bytes_at(file, part.begin + static_cast<int64_t>(at), kEnd64Bytes);
    if (Fields(end64).four(0) != kEnd64) refuse("its end does not say where its directory is");
    count = Fields(end64).eight(32);
    bytes = Fields(end64).eight(40);
    begin = Fields(end64).eight(48);
  }
  const auto limit = static_cast<uint64_t>(end_begin);
  if (begin > limit || bytes > limit - begin || bytes > static_cast<uint64_t>(kLargestDirectoryBytes) ||
      count > bytes / kDirectoryHeaderBytes) {
    refuse("gives ", bytes, " bytes from byte ", begin, " on for a directory of ", count, " records");
  }
  directory_begin_ = part.begin + static_cast<int64_t>(begin);
  const std::string directory = bytes_at(file, directory_begin_, static_cast<int64_t>(bytes));
  std::string_view rest = directory;
  for (uint64_t i = 0; i < count; ++i) {
    const Fields fields(rest);
    const size_t name_bytes = fields.two(28), extra_bytes = fields.two(30), comment_bytes = fields.two(32);
    const size_t header_bytes = kDirectoryHeaderBytes + name_bytes + extra_bytes + comment_bytes;
    if (rest.size() < header_bytes || fields.four(0) != kDirectoryHeader) refuse("its directory is damaged");
    if (fields.two(10) != 0) refuse("has a compressed record");
    Fields wide(zip64_field(rest.substr(kDirectoryHeaderBytes + name_bytes, extra_bytes)));
    uint64_t stored = fields.four(20), original = fields.four(24), header = fields.four(42);
    size_t at = 0;
    for (uint64_t* number : {&original, &stored, &header}) {
      if (*number != kIn64) continue;
      *number = wide.eight(at);
      at += 8;
    }
    if (stored != original || header > begin || original > begin) refuse("its directory is damaged");
    records_.push_back({.name = std::string(rest.substr(kDirectoryHeaderBytes, name_bytes)),
                        .bytes = static_cast<int64_t>(original),
                        .crc32 = fields.four(16),
                        .header_begin = part.begin + static_cast<int64_t>(header)});
    rest.remove_prefix(header_bytes);
  }
}

const ZipReader::ZipRecord* ZipReader::find(std::string_view name) const {
  const auto found = std::find_if(records_.begin(), records_.end(),
                                  [&](const ZipRecord& record) { return record.name == name; });
  return found != records_.end() ? &*found : nullptr;
}

FilePart ZipReader::place_of(const ZipRecord& record) const {
  const int64_t room = directory_begin_ - record.header_begin - kLocalHeaderBytes;
  if (room >= 0) {
    const std::string header = bytes_at(file_, record.header_begin, kLocalHeaderBytes);
    const Fields fields(header);
    const int64_t names = fields.two(26) + fields.two(28);
    if (fields.four(0) == kLocalHeader && names <= room && record.bytes <= room - names) {
      return {record.header_begin + kLocalHeaderBytes + names, record.bytes};
    }
  }
  fail(ErrorKind::kCheckpoint, where_, " must be what torch.save() writes, but a record of ", record.bytes,
       " bytes is outside it; the file is damaged");
}

std::string ZipReader::read(const ZipRecord& record, int64_t largest_bytes) const {
  if (record.bytes > largest_bytes) {
    fail(ErrorKind::kCheckpoint, where_, " has a record of ", record.bytes, " bytes, more than the ",
         largest_bytes, " that such a record may have");
  }
  verify(record);
  return bytes_at(file_, place_of(record).begin, record.bytes);
}

void ZipReader::verify(const ZipRecord& record) const {
  const FilePart place = place_of(record);
  if (record.crc32 == 0) return;  // written after torch.serialization.set_crc32_options(False)
  uLong found = ::crc32(0, nullptr, 0);
  std::string block(static_cast<size_t>(std::min(kBlock, place.bytes)), '\0');
  for (int64_t at = 0; at < place.bytes; at += kBlock) {
    const int64_t count = std::min(kBlock, place.bytes - at);
    file_.read_at(place.begin + at, block.data(), count);
    found = ::crc32_z(found, reinterpret_cast<const Bytef*>(block.data()), static_cast<size_t>(count));
  }
  if (found == record.crc32) return;
  fail(ErrorKind::kCheckpoint, where_,
       " is damaged: the checksum of its bytes is not the one that was stored");
}

namespace {

template <typename... Numbers>
std::string packed(Numbers... numbers) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof(numbers)), ...);
  return bytes;
}

constexpr uint16_t kVersion = 20;
constexpr uint16_t kFlags = 0x808;  ///< sizes follow the data; names are UTF-8

}  // namespace

void ZipWriter::write(const std::string& bytes) {
  file_.write(bytes.data(), static_cast<int64_t>(bytes.size()));
  written_ += static_cast<int64_t>(bytes.size());
}

void ZipWriter::begin(std::string_view name) {
  end_record();
  records_.push_back({.name = std::string(name), .header_begin = written_});
  open_ = true;
  constexpr uint16_t kNone = 0;
  write(packed(kLocalHeader, kVersion, kFlags, kNone, uint32_t{0}, uint32_t{0}, uint32_t{0}, uint32_t{0},
               static_cast<uint16_t>(name.size()), kNone));
  write(std::string(name));
}

void ZipWriter::append(const void* data, int64_t bytes) {
  FSDP_CHECK(open_);
  ZipReader::ZipRecord& record = records_.back();
  record.crc32 = static_cast<uint32_t>(
      ::crc32_z(record.crc32, static_cast<const Bytef*>(data), static_cast<size_t>(bytes)));
  record.bytes += bytes;
  file_.write(data, bytes);
  written_ += bytes;
}

void ZipWriter::end_record() {
  if (!open_) return;
  const ZipReader::ZipRecord& record = records_.back();
  // A larger record would need another kind of descriptor.
  FSDP_CHECK(record.bytes < kIn64);
  const auto bytes = static_cast<uint32_t>(record.bytes);
  write(packed(kDescriptor, record.crc32, bytes, bytes));
  open_ = false;
}

int64_t ZipWriter::finish() {
  end_record();
  constexpr uint16_t kNone = 0;
  const int64_t begin = written_;
  FSDP_CHECK(begin < kIn64);
  for (const ZipReader::ZipRecord& record : records_) {
    const auto bytes = static_cast<uint32_t>(record.bytes);
    write(packed(kDirectoryHeader, kVersion, kVersion, kFlags, kNone, uint32_t{0}, record.crc32, bytes, bytes,
                 static_cast<uint16_t>(record.name.size()), kNone, kNone, kNone, kNone, uint32_t{0},
                 static_cast<uint32_t>(record.header_begin)));
    write(record.name);
  }
  const int64_t bytes = written_ - begin, count = static_cast<int64_t>(records_.size());
  write(packed(kEnd, kNone, kNone, static_cast<uint16_t>(count), static_cast<uint16_t>(count),
               static_cast<uint32_t>(bytes), static_cast<uint32_t>(begin), kNone));
  return written_;
}

}  // namespace fsdp::checkpoint
