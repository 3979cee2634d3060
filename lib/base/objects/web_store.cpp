#include "base/objects/web_store.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/util/descriptor.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/regular_file.h"

namespace fsdp::objects {
namespace {

/// Returns the number in a header; -1: there is none.
int64_t number_of(std::string_view text) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

/// Returns the size of the whole object from "bytes 0-0/1234"; -1 if it is unknown.
int64_t size_in_range(const std::string& content_range) {
  const size_t slash = content_range.rfind('/');
  return slash == std::string::npos ? -1 : number_of(std::string_view(content_range).substr(slash + 1));
}

void require_version(const WebAnswer& answer, const ObjectInfo& object) {
  const std::string version = version_of(answer);
  if (!object.version.empty() && !version.empty() && version != object.version && object.address.empty()) {
    throw StoreFault(FaultKind::kChanged, concat("it was version ", object.version,
                                                 " when it was opened, and is ", version, " now"));
  }
}

}  // namespace

void require_success(const WebAnswer& answer) {
  const int status = answer.status;
  if (status >= 200 && status < 300) return;
  const std::string text = concat("HTTP ", status);
  if (status == 404 || status == 410)
    throw StoreFault(FaultKind::kMissing, "it does not exist (" + text + ")");
  if (status == 401 || status == 403)
    throw StoreFault(FaultKind::kRefused, "access is denied (" + text + ")");
  if (status == 412)
    throw StoreFault(FaultKind::kChanged, "it has changed since it was opened (" + text + ")");
  if (status == 416) {
    throw StoreFault(FaultKind::kChanged, "it has become shorter since it was opened (" + text + ")");
  }
  const bool is_transient = status == 408 || status == 425 || status == 429 || status >= 500;
  throw StoreFault(is_transient ? FaultKind::kTransient : FaultKind::kPermanent, text);
}

std::string version_of(const WebAnswer& answer) {
  std::string tag = answer.header("etag");
  if (tag.starts_with("W/")) tag = tag.substr(2);
  std::erase(tag, '"');
  return tag.empty() ? answer.header("last-modified") : tag;
}

std::optional<ObjectInfo> WebStore::find(const std::string& name) {
  WebAnswer answer = client_->perform({.url = name, .head = true, .bearer = bearer()});
  if (answer.status == 404 || answer.status == 410) return std::nullopt;
  ObjectInfo object{.size_bytes = number_of(answer.header("content-length")), .version = version_of(answer)};
  if (answer.status >= 200 && answer.status < 300 && object.size_bytes >= 0 &&
      answer.header("accept-ranges") == "bytes") {
    return object;
  }
  // Servers that do not answer HEAD, or that do not tell whether they serve ranges, are asked for a byte.
  answer = client_->perform(
      {.url = name, .bearer = bearer(), .first = 0, .bytes = 1, .on_body = [](const char*, size_t) {
         return false;
       }});
  if (answer.status == 404 || answer.status == 410) return std::nullopt;
  if (answer.status == 416) return ObjectInfo{.size_bytes = 0, .version = version_of(answer)};
  require_success(answer);
  object.version = version_of(answer);
  object.has_ranges = answer.status == 206 && size_in_range(answer.header("content-range")) >= 0;
  object.size_bytes = object.has_ranges
                          ? size_in_range(answer.header("content-range"))
                          : std::max(object.size_bytes, number_of(answer.header("content-length")));
  return object;
}

void WebStore::read(const std::string& name, const ObjectInfo& object, int64_t offset, int64_t bytes,
                    char* out) {
  if (bytes == 0) return;
  int64_t received = 0;
  const WebAnswer answer = client_->perform({.url = object.address.empty() ? name : object.address,
                                             .bearer = bearer(),
                                             .first = offset,
                                             .bytes = bytes,
                                             .on_body = [&](const char* data, size_t count) {
                                               if (static_cast<int64_t>(count) > bytes - received)
                                                 return false;
                                               std::memcpy(out + received, data, count);
                                               received += static_cast<int64_t>(count);
                                               return true;
                                             }});
  require_success(answer);
  require_version(answer, object);
  const std::string expected = concat("bytes ", offset, "-", offset + bytes - 1, "/", object.size_bytes);
  if (answer.status != 206) {
    throw StoreFault(FaultKind::kTransient,
                     concat("HTTP ", answer.status, " in place of a part of the object"));
  }
  if (const std::string& range = answer.header("content-range"); range != expected) {
    const bool has_other_size = size_in_range(range) >= 0 && size_in_range(range) != object.size_bytes;
    throw StoreFault(has_other_size ? FaultKind::kChanged : FaultKind::kTransient,
                     concat("the answer is \"", range, "\" instead of \"", expected, "\""));
  }
  if (received != bytes) {
    throw StoreFault(FaultKind::kTransient, concat("the answer has ", received, " bytes instead of ", bytes));
  }
}

void WebStore::download(const std::string& name, const ObjectInfo& object,
                        const std::filesystem::path& file) {
  const util::Descriptor to(util::create_own_file(file));
  if (!to.is_open())
    util::fail(ErrorKind::kIo, "cannot create ", file.string(), ": ", util::errno_text(errno));
  int64_t received = 0;
  const WebAnswer answer = client_->perform({.url = object.address.empty() ? name : object.address,
                                             .bearer = bearer(),
                                             .on_body = [&](const char* data, size_t count) {
                                               received += static_cast<int64_t>(count);
                                               if (object.size_bytes >= 0 && received > object.size_bytes)
                                                 return false;
                                               util::write_all(to.get(), {data, count}, file);
                                               return true;
                                             }});
  require_success(answer);
  require_version(answer, object);
  if (object.size_bytes >= 0 && received != object.size_bytes) {
    throw StoreFault(FaultKind::kTransient,
                     concat("the answer has ", received, " bytes instead of ", object.size_bytes));
  }
}

std::vector<ListedObject> WebStore::list(const std::string& /*folder*/) {
  throw StoreFault(FaultKind::kPermanent, "a web server has no list of its files; name each file");
}

void WebStore::upload(const std::string& /*name*/, const std::filesystem::path& /*file*/) {
  throw StoreFault(FaultKind::kPermanent, "it can only be read; write to s3:// or gs://");
}

void WebStore::remove(const std::string& /*name*/) {
  throw StoreFault(FaultKind::kPermanent, "it can only be read; write to s3:// or gs://");
}

}  // namespace fsdp::objects
