#include "base/objects/object_store.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/objects/cloud_library.h"
#include "base/objects/hub_store.h"
#include "base/objects/object_name.h"
#include "base/objects/retrying_store.h"
#include "base/objects/web_store.h"
#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::objects {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "fsdp_cloud.so";

/// Path of the module beside the program, or its plain name for the dynamic loader to find.
std::string module_file() {
  if (const char* given = std::getenv("FSDP_CLOUD_MODULE"); given != nullptr && *given != '\0') return given;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path beside = program.parent_path().parent_path() / "lib" / "fsdp" / kModule;
  return fs::is_regular_file(beside, error) ? beside.string() : kModule;
}

CloudLibrary& load_library() {
  const std::string file = module_file();
  void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    const char* why = dlerror();
    fail(ErrorKind::kUsage, "names that begin with s3:// or gs:// require the module ", kModule,
         ", but loading it reports: ", why != nullptr ? why : "nothing",
         "; install the toolkit again, or name the module by FSDP_CLOUD_MODULE");
  }
  const auto built_for =
      reinterpret_cast<decltype(&fsdp_cloud_built_for)>(dlsym(module, "fsdp_cloud_built_for"));
  const auto library = reinterpret_cast<decltype(&fsdp_cloud_library)>(dlsym(module, "fsdp_cloud_library"));
  const std::string found =
      built_for != nullptr && library != nullptr ? built_for() : "no module of this library";
  if (found != FSDP_CLOUD_BUILT_FOR) {
    fail(ErrorKind::kUsage, "the module ", file, " must be built for ", FSDP_CLOUD_BUILT_FOR, ", but is ",
         util::printable(found), "; install the toolkit again");
  }
  return *library();
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
