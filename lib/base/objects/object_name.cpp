#include "base/objects/object_name.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/util/error.h"

namespace fsdp::objects {
namespace {

constexpr std::array<std::string_view, 5> kSchemes{"s3", "gs", "hf", "https", "http"};

/// Parameters of signed addresses of AWS, Google and Azure, and others that are secrets by their name.
constexpr std::array<std::string_view, 8> kSecretParameters{
    "x-amz-signature", "x-amz-security-token", "x-goog-signature", "signature", "sig",
    "token",           "access_token",         "secret_key"};

std::string_view rest_of(std::string_view name) { return name.substr(name.find("://") + 3); }

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

/// Whether a query has a parameter that is a secret.
bool has_secret(std::string_view query) {
  while (!query.empty()) {
    const std::string_view parameter = query.substr(0, query.find('&'));
    const std::string key = lower(parameter.substr(0, parameter.find('=')));
    if (std::ranges::find(kSecretParameters, key) != kSecretParameters.end()) return true;
    query.remove_prefix(std::min(query.size(), parameter.size() + 1));
  }
  return false;
}

}  // namespace

bool is_remote(std::string_view text) {
  const size_t end = text.find("://");
  return end != std::string_view::npos && std::ranges::find(kSchemes, text.substr(0, end)) != kSchemes.end();
}

void check_name(const std::string& name) {
  const std::string_view rest = rest_of(name);
  const std::string_view host = rest.substr(0, rest.find_first_of("/?"));
  if (host.find('@') != std::string_view::npos && scheme_of(name) != "hf") {
    fail(ErrorKind::kUsage, "the name ", scheme_of(name), "://", host.substr(host.find('@') + 1),
         "... must not contain a user or a password, which would get into logs and saved configs; put "
         "credentials where the store's own tools look for them (AWS_ACCESS_KEY_ID, ~/.aws, "
         "GOOGLE_APPLICATION_CREDENTIALS, HF_TOKEN)");
  }
  if (host.empty()) {
    fail(ErrorKind::kUsage, "the name ", name, " must have the form ", scheme_of(name),
         "://BUCKET/KEY, but names no ", scheme_of(name).starts_with("http") ? "host" : "bucket",
         "; complete it");
  }
  const size_t query = rest.find('?');
  if (query != std::string_view::npos && has_secret(rest.substr(query + 1))) {
    fail(
        ErrorKind::kUsage, "the name ", scheme_of(name), "://", rest.substr(0, query),
        "?... must not contain a signature or a token, which would get into logs and saved configs; name the "
        "object by s3:// or gs:// with credentials of the environment, or download it first");
  }
  const std::string slashed = concat("/", rest, "/");
  if (slashed.find("/../") != std::string::npos) {
    fail(ErrorKind::kUsage, "the name ", name, " must not contain the part \"..\"; write the path in full");
  }
}

std::string scheme_of(std::string_view name) { return std::string(name.substr(0, name.find("://"))); }

std::string without_scheme(std::string_view name) { return std::string(rest_of(name)); }

std::string joined(std::string_view folder, std::string_view object) {
  while (folder.ends_with('/')) folder.remove_suffix(1);
  while (object.starts_with('/')) object.remove_prefix(1);
  return concat(folder, "/", object);
}

std::string last_part(std::string_view name) {
  std::string_view path = rest_of(name);
  path = path.substr(0, path.find('?'));
  while (path.ends_with('/')) path.remove_suffix(1);
  return std::string(path.substr(path.rfind('/') + 1));
}

std::string folder_of(std::string_view name) {
  name = name.substr(0, name.find('?'));
  while (name.ends_with('/')) name.remove_suffix(1);
  const size_t begin = name.find("://") + 3, slash = name.rfind('/');
  return std::string(slash == std::string_view::npos || slash < begin ? name : name.substr(0, slash));
}

}  // namespace fsdp::objects
