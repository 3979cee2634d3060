#include "run/train/tensorboard.h"

#include <bit>
#include <chrono>
#include <cstdint>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/hash.h"
#include "base/util/system.h"

namespace fsdp::train {
namespace fs = std::filesystem;
namespace {

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void add_little_endian(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

void add_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void add_key(std::string& out, int field, WireType type) {
  add_varint(out, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type));
}

void add_bytes(std::string& out, int field, std::string_view bytes) {
  add_key(out, field, WireType::kBytes);
  add_varint(out, bytes.size());
  out += bytes;
}

void add_integer(std::string& out, int field, int64_t value) {
  add_key(out, field, WireType::kVarint);
  add_varint(out, static_cast<uint64_t>(value));
}

std::string event(double wall_time, int64_t step) {
  std::string out;
  add_key(out, 1, WireType::kFixed64);
  add_little_endian(out, std::bit_cast<uint64_t>(wall_time), 8);
  if (step != 0) add_integer(out, 2, step);
  return out;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Returns a name that rises with time, because readers read the files of a folder in the order of their
/// names.
fs::path new_file(const fs::path& folder) {
  const std::string host = util::host_name();
  for (int n = 0;; ++n) {
    fs::path path = folder / concat("events.out.tfevents.", static_cast<int64_t>(now()), ".", n, ".", host);
    if (!fs::exists(path)) return path;
  }
}

}  // namespace

namespace tensorboard {

std::string record(std::string_view data) {
  // Masked, because a CRC is weak over bytes that contain CRCs.
  auto masked_crc = [](std::string_view bytes) { return std::rotr(util::crc32c(bytes), 15) + 0xa282ead8u; };
  std::string out;
  add_little_endian(out, data.size(), 8);
  add_little_endian(out, masked_crc(out), 4);
  out += data;
  add_little_endian(out, masked_crc(data), 4);
  return out;
}

std::string event_of_scalars(double wall_time, int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    add_bytes(value, 1, tag);
    add_key(value, 2, WireType::kFixed32);
    add_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(number)), 4);
    add_bytes(summary, 1, value);
  }
  std::string out = event(wall_time, step);
  add_bytes(out, 5, summary);
  return out;
}

}  // namespace tensorboard

TensorBoardFile::TensorBoardFile(const fs::path& folder, int64_t resumed_step) {
  if (resumed_step == 0 && fs::exists(folder)) put_aside(folder);
  util::make_writable_folder(folder);
  file_.emplace(new_file(folder));
  std::string first = event(now(), 0);
  add_bytes(first, 3, "brain.Event:2");
  file_->append(tensorboard::record(first));
  if (resumed_step == 0) return;
  std::string session_log;
  add_integer(session_log, 1, 1);
  std::string restart = event(now(), resumed_step + 1);
  add_bytes(restart, 7, session_log);
  file_->append(tensorboard::record(restart));
}

void TensorBoardFile::write(int64_t step, const Scalars& scalars) {
  file_->append(tensorboard::record(tensorboard::event_of_scalars(now(), step, scalars)));
}

}  // namespace fsdp::train
