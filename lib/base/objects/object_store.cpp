#include "base/objects/object_store.h"

#include <cstdlib>
#include <map>
#include <mutex>

#include "base/objects/cloud_library.h"
#include "base/objects/hub_store.h"
#include "base/objects/object_name.h"
#include "base/objects/retrying_store.h"
#include "base/objects/web_store.h"
#include "base/util/error.h"
#include "base/util/module.h"
#include "base/util/text.h"

namespace fsdp::objects {
namespace {

CloudLibrary& load_library() {
  return *static_cast<CloudLibrary*>(util::load_module({.name = "cloud",
                                                        .feature = "a name that begins with s3:// or gs://",
                                                        .remedy = "install the toolkit again"}));
}

std::unique_ptr<ObjectStore> connect(const std::string& scheme) {
  if (scheme == "s3" || scheme == "gs") {
    static CloudLibrary& library = load_library();
    try {
      return library.connect(scheme);
    } catch (const StoreFault& fault) {
      fail(ErrorKind::kIo, "cannot connect to the store of ", scheme,
           ":// names: ", util::printable(fault.what()), "; check the credentials and the region");
    }
  }
  static const auto client = std::make_shared<WebClient>();
  if (scheme == "hf") return std::make_unique<HubStore>(client);
  return std::make_unique<WebStore>(client);
}

/// FSDP_STORE_ATTEMPTS is for tests, and for users whose store is down for minutes.
RetryOptions retry_options() {
  RetryOptions options;
  if (const char* attempts = std::getenv("FSDP_STORE_ATTEMPTS")) {
    options.attempts = std::max(1, std::atoi(attempts));
  }
  return options;
}

}  // namespace

ObjectStore& object_store(const std::string& name) {
  check_name(name);
  static std::mutex mutex;
  // Never destroyed: threads may still read when the process ends.
  static auto* const stores = new std::map<std::string, std::unique_ptr<ObjectStore>>;
  const std::string scheme = scheme_of(name);
  const std::lock_guard lock(mutex);
  std::unique_ptr<ObjectStore>& store = (*stores)[scheme];
  if (!store) store = std::make_unique<RetryingStore>(connect(scheme), retry_options());
  return *store;
}

}  // namespace fsdp::objects
