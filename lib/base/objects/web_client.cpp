#include "base/objects/web_client.h"

#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "base/objects/object_store.h"
#include "base/util/error.h"
#include "base/util/version.h"

// curl.h defines macros that check the arguments of these functions, which are called through pointers here.
#undef curl_easy_setopt
#undef curl_easy_getinfo

namespace fsdp::objects {
namespace {

constexpr std::array<const char*, 3> kLibraries{"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"};
/// A transfer fails when nothing has arrived for this time.
constexpr long kStallSeconds = 20, kConnectSeconds = 15;
/// CURLOPT_PROTOCOLS and CURLOPT_REDIR_PROTOCOLS. curl.h advises against them, but the options that take
/// their place are unknown to libraries before 7.85.
constexpr auto kProtocols = static_cast<CURLoption>(CURLOPTTYPE_LONG + 181),
               kRedirectedProtocols = static_cast<CURLoption>(CURLOPTTYPE_LONG + 182);
constexpr size_t kMostHeaderBytes = size_t{1} << 18;

/// An answer while it arrives.
struct Reception {
  const WebRequest* request;
  WebAnswer answer;
  size_t header_bytes = 0;
  bool is_refused = false;     ///< by on_body
  std::exception_ptr error{};  ///< thrown by on_body, which libcurl's frames cannot pass on
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

/// Called with each line of the head of each answer, those of redirections included.
size_t take_header(char* data, size_t size, size_t count, void* to) {
  auto& reception = *static_cast<Reception*>(to);
  const std::string_view line(data, size * count);
  reception.header_bytes += line.size();
  if (reception.header_bytes > kMostHeaderBytes) return 0;
  if (line.starts_with("HTTP/")) {
    const size_t space = line.find(' ');
    reception.answer = {};
    if (space != std::string_view::npos)
      reception.answer.status = std::atoi(std::string(line.substr(space)).c_str());
  } else if (const size_t colon = line.find(':'); colon != std::string_view::npos) {
    std::string name(line.substr(0, colon));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    reception.answer.headers[name] = std::string(trimmed(line.substr(colon + 1)));
  }
  return line.size();
}

size_t take_body(char* data, size_t size, size_t count, void* to) {
  auto& reception = *static_cast<Reception*>(to);
  const size_t bytes = size * count;
  const bool is_success = reception.answer.status >= 200 && reception.answer.status < 300;
  if (!is_success || !reception.request->on_body) return bytes;  // the text of an error is of no use
  try {
    reception.is_refused = !reception.request->on_body(data, bytes);
  } catch (...) {
    reception.error = std::current_exception();
    reception.is_refused = true;
  }
  return reception.is_refused ? 0 : bytes;
}

/// File with the certificates of authorities, by the variables that curl and OpenSSL read; null: the default.
const char* authorities() {
  for (const char* variable : {"CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}) {
    if (const char* file = std::getenv(variable); file != nullptr && *file != '\0') return file;
  }
  return nullptr;
}

}  // namespace

const std::string& WebAnswer::header(const std::string& name) const {
  static const std::string none;
  const auto found = headers.find(name);
  return found == headers.end() ? none : found->second;
}

struct WebClient::Library {
  Library() {
    for (const char* file : kLibraries) {
      if ((module = dlopen(file, RTLD_NOW | RTLD_LOCAL)) != nullptr) break;
    }
    if (module == nullptr) {
      fail(
          ErrorKind::kUsage, "names that begin with https:// or hf:// require libcurl, but ", kLibraries[0],
          " is not installed; install it (Debian and Ubuntu: apt install libcurl4; Fedora: dnf install libcurl)");
    }
    load(global_init, "curl_global_init");
    load(init, "curl_easy_init");
    load(setopt, "curl_easy_setopt");
    load(perform, "curl_easy_perform");
    load(getinfo, "curl_easy_getinfo");
    load(reset, "curl_easy_reset");
    load(cleanup, "curl_easy_cleanup");
    load(text_of, "curl_easy_strerror");
    if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
      fail(ErrorKind::kUsage, "libcurl cannot be initialized; reinstall it");
    }
  }

  template <typename Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(module, name));
    if (function == nullptr) fail(ErrorKind::kUsage, "the installed libcurl has no ", name, "; reinstall it");
  }

  void* module = nullptr;
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) init;
  decltype(&::curl_easy_setopt) setopt;
  decltype(&::curl_easy_perform) perform;
  decltype(&::curl_easy_getinfo) getinfo;
  decltype(&::curl_easy_reset) reset;
  decltype(&::curl_easy_cleanup) cleanup;
  decltype(&::curl_easy_strerror) text_of;
};

/// Handles that are not in use, each with its connections.
struct WebClient::Handles {
  std::mutex mutex;
  std::vector<CURL*> idle;
};

WebClient::WebClient() : library_(std::make_unique<Library>()), handles_(std::make_unique<Handles>()) {}

WebClient::~WebClient() {
  for (CURL* handle : handles_->idle) library_->cleanup(handle);
}

WebAnswer WebClient::perform(const WebRequest& request) {
  CURL* handle = nullptr;
  {
    const std::lock_guard lock(handles_->mutex);
    if (!handles_->idle.empty()) {
      handle = handles_->idle.back();
      handles_->idle.pop_back();
    }
  }
  if (handle == nullptr) handle = library_->init();
  FSDP_CHECK(handle != nullptr, "libcurl has no handle");
  const auto set = [&](CURLoption option, auto value) { library_->setopt(handle, option, value); };
  Reception reception{.request = &request, .answer = {}};
  char error[CURL_ERROR_SIZE] = "";
  const std::string range = concat(request.first, "-", request.first + request.bytes - 1);
  const std::string agent = concat("fsdp-toolkit/", util::version());
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_USERAGENT, agent.c_str());
  set(CURLOPT_NOSIGNAL, 1L);
  set(kProtocols, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
  set(kRedirectedProtocols, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
  set(CURLOPT_FOLLOWLOCATION, request.follows ? 1L : 0L);
  set(CURLOPT_MAXREDIRS, 10L);
  set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  set(CURLOPT_ERRORBUFFER, static_cast<char*>(error));
  set(CURLOPT_HEADERFUNCTION, &take_header);
  set(CURLOPT_HEADERDATA, static_cast<void*>(&reception));
  set(CURLOPT_WRITEFUNCTION, &take_body);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&reception));
  if (request.head) set(CURLOPT_NOBODY, 1L);
  if (request.bytes >= 0) set(CURLOPT_RANGE, range.c_str());
  if (const char* file = authorities()) set(CURLOPT_CAINFO, file);
  if (!request.bearer.empty()) {
    // libcurl sends it to no other host to which an answer redirects.
    set(CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    set(CURLOPT_XOAUTH2_BEARER, request.bearer.c_str());
  }
  const CURLcode code = library_->perform(handle);
  library_->reset(handle);
  {
    const std::lock_guard lock(handles_->mutex);
    handles_->idle.push_back(handle);
  }
  if (reception.error) std::rethrow_exception(reception.error);
  if (code == CURLE_OK || reception.is_refused) return std::move(reception.answer);
  const std::string text = *error != '\0' ? error : library_->text_of(code);
  const bool is_permanent = code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL ||
                            code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
                            code == CURLE_TOO_MANY_REDIRECTS;
  throw StoreFault(is_permanent ? FaultKind::kPermanent : FaultKind::kTransient, text);
}

}  // namespace fsdp::objects
