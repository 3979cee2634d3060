#include "data/tokens/token_storage.h"

#include <filesystem>

#include "base/objects/local_copy.h"
#include "base/objects/object_name.h"
#include "base/util/error.h"

namespace fsdp::data {
namespace {

constexpr const char* kTokenFileKind = "token file";

}  // namespace

TokenStorage::TokenStorage(const std::string& path) : path_(path) {
  if (objects::is_remote(path)) {
    object_ = std::make_unique<objects::ObjectFile>(path);
  } else {
    file_ = std::make_unique<MappedFile>(kTokenFileKind, path);
  }
}

const char* TokenStorage::view(int64_t offset, int64_t bytes, std::vector<char>& buffer) const {
  if (file_) return file_->data() + offset;
  buffer.resize(static_cast<size_t>(bytes));
  object_->read_at(offset, bytes, buffer.data());
  return buffer.data();
}

void TokenStorage::release(int64_t begin, int64_t bytes) const {
  if (file_) file_->release(begin, bytes);
}

void TokenStorage::will_read(int64_t begin, int64_t bytes) const {
  if (object_) object_->will_read(begin, bytes);
}

void TokenStorage::refuse(const std::string& found, const std::string& remedy) const {
  fail(ErrorKind::kData, "the ", kTokenFileKind, " ", path_, " ", found, "; ", remedy);
}

std::optional<std::string> companion_of_tokens(const std::string& path_or_name) {
  if (objects::is_remote(path_or_name)) {
    const auto copy = objects::copy_if_there(path_or_name);
    return copy ? std::optional(copy->string()) : std::nullopt;
  }
  std::error_code error;
  return std::filesystem::exists(path_or_name, error) ? std::optional(path_or_name) : std::nullopt;
}

}  // namespace fsdp::data
