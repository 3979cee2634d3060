#include "state/gguf_export/writer.h"

#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/shape.h"
#include "state/manifest/digest.h"
#include "state/manifest/manifest.h"

namespace fsdp::gguf {
namespace fs = std::filesystem;

namespace {

/// The header grows in memory: names, metadata and vocabulary. Numbers are little-endian, as this machine is.
class HeaderText {
 public:
  template <typename Number>
  void number(Number value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void string(std::string_view value) {
    number<uint64_t>(value.size());
    text_ += value;
  }
  void value(const Value& value) {
    std::visit([this](const auto& content) { put(content); }, value);
  }
  const std::string& text() const { return text_; }

 private:
  void kind(ValueKind kind) { number(static_cast<uint32_t>(kind)); }
  void put(std::monostate) { FSDP_CHECK(false, "a value of no type cannot be written"); }
  void put(uint32_t value) { kind(ValueKind::kUint32), number(value); }
  void put(float value) { kind(ValueKind::kFloat32), number(value); }
  void put(bool value) { kind(ValueKind::kBool), number<uint8_t>(value ? 1 : 0); }
  void put(const std::string& value) { kind(ValueKind::kString), string(value); }
  void put(const std::vector<std::string>& values) {
    array(ValueKind::kString, values.size());
    for (const std::string& value : values) string(value);
  }
  void put(const std::vector<float>& values) {
    array(ValueKind::kFloat32, values.size());
    for (const float value : values) number(value);
  }
  void put(const std::vector<int32_t>& values) {
    array(ValueKind::kInt32, values.size());
    for (const int32_t value : values) number(value);
  }
  void array(ValueKind element, size_t size) {
    kind(ValueKind::kArray);
    kind(element);
    number<uint64_t>(size);
  }

  std::string text_;
};

}  // namespace

Writer::Writer(const fs::path& path, const Metadata& metadata, std::vector<Tensor> tensors)
    : path_(path),
      temporary_(checkpoint::temporary_name(path)),
      tensors_(std::move(tensors)),
      file_(util::RawFile::create_locked(temporary_)) {
  try {
    HeaderText header;
    for (const char letter : kMagic) header.number(letter);
    header.number(kVersion);
    header.number<uint64_t>(tensors_.size());
    header.number<uint64_t>(metadata.size());
    std::unordered_set<std::string_view> seen;
    for (const auto& [key, value] : metadata) {
      FSDP_CHECK(seen.insert(key).second, key);
      header.string(key);
      header.value(value);
    }
    seen.clear();
    int64_t begin = 0;
    for (Tensor& tensor : tensors_) {
      FSDP_CHECK(seen.insert(tensor.name).second, tensor.name);
      const TypeTraits& traits = traits_of(tensor.type);
      FSDP_CHECK(!tensor.shape.empty() && tensor.shape.back() % traits.block_elements == 0, tensor.name);
      FSDP_CHECK(util::checked_numel(tensor.shape, traits.block_bytes) > 0, tensor.name);
      header.string(tensor.name);
      header.number(static_cast<uint32_t>(tensor.shape.size()));
      for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
        header.number(static_cast<uint64_t>(*size));
      }
      header.number(static_cast<uint32_t>(tensor.type));
      header.number(static_cast<uint64_t>(begin));
      tensor.begin_bytes = begin;
      begin += aligned(bytes_of(tensor), kDefaultAlignment);
    }
    written_bytes_ = static_cast<int64_t>(header.text().size());
    file_.write(header.text().data(), written_bytes_);
    pad();
    for (Tensor& tensor : tensors_) tensor.begin_bytes += written_bytes_;
    if (!tensors_.empty()) missing_bytes_ = bytes_of(tensors_.front());
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary_, ignored);
    throw;
  }
}

Writer::~Writer() {
  std::error_code ignored;
  if (!finished_) fs::remove(temporary_, ignored);
}

void Writer::pad() {
  constexpr char kZeros[kDefaultAlignment] = {};
  const int64_t missing = aligned(written_bytes_, kDefaultAlignment) - written_bytes_;
  file_.write(kZeros, missing);
  written_bytes_ += missing;
}

void Writer::append(const void* data, int64_t bytes) {
  FSDP_CHECK(bytes >= 0 && bytes <= missing_bytes_);
  file_.write(data, bytes);
  written_bytes_ += bytes;
  missing_bytes_ -= bytes;
  if (missing_bytes_ > 0) return;
  pad();
  if (++current_ < tensors_.size()) missing_bytes_ = bytes_of(tensors_[current_]);
}

void Writer::finish() {
  FSDP_CHECK(missing_bytes_ == 0 && current_ == tensors_.size() && !finished_);
  file_.sync();
  util::rename_and_sync(temporary_, path_);
  finished_ = true;
}

}  // namespace fsdp::gguf
