#include "base/util/module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "base/util/error.h"
#include "base/util/text.h"
#include "base/util/version.h"

namespace fsdp::util {
namespace {

namespace fs = std::filesystem;

/// A path, or the plain name for the dynamic loader to find.
std::string path_of_module(const std::string& file, const std::string& variable) {
  if (const char* given = std::getenv(variable.c_str()); given != nullptr && *given != '\0') return given;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path beside = program.parent_path().parent_path() / "lib" / "fsdp" / file;
  return fs::is_regular_file(beside, error) ? beside.string() : file;
}

std::string upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

}  // namespace

void* load_module(const ModuleRequest& request) {
  const std::string file = concat("fsdp_", request.name, ".so");
  const std::string variable = concat("FSDP_", upper(request.name), "_MODULE");
  const std::string path = path_of_module(file, variable);
  const std::string remedy = concat("; ", request.remedy, ", or name another build's module by ", variable);
  void* const module = dlopen(path.c_str(), RTLD_NOW | (request.global_symbols ? RTLD_GLOBAL : RTLD_LOCAL));
  if (module == nullptr) {
    const char* why = dlerror();
    fail(ErrorKind::kUsage, request.feature, " requires the module ", file,
         ", but loading it says: ", why != nullptr ? why : "nothing", remedy);
  }
  const auto symbol = [&](const char* suffix) {
    return dlsym(module, concat("fsdp_", request.name, suffix).c_str());
  };
  const auto built_for = reinterpret_cast<const char* (*)()>(symbol("_built_for"));
  const auto library = reinterpret_cast<void* (*)()>(symbol("_library"));
  const std::string expected = concat("fsdp ", version());
  const std::string found =
      built_for != nullptr && library != nullptr ? built_for() : "no module of this library";
  if (found != expected) {
    fail(ErrorKind::kUsage, request.feature, " requires a module that was built for ", expected, ", but ",
         path, " is ", printable(found), remedy);
  }
  return library();
}

}  // namespace fsdp::util
