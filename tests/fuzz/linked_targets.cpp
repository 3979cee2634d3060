// Targets of readers that need more of lib/ than libFuzzer's programs link: replay_test.cpp and
// limits_test.cpp run them.

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/util/json.h"
#include "fuzz/fuzz_target.h"
#include "fuzz/targets.h"
#include "setup/config/load.h"
#include "setup/translate/translate.h"
#include "state/convert/peft_folder.h"
#include "state/hugging_face/hugging_face_config.h"
#include "tools/report/run_record.h"

namespace fsdp::fuzz {
namespace {

/// A folder of this process, whose files are written anew for each input.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() / ("fsdp-fuzz-folder-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const char* name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::trunc) << bytes;
  }

 private:
  std::filesystem::path path_;
};

std::string_view view(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace

int config_toml(const uint8_t* data, size_t size) {
  try {
    config::parse_config(std::string(view(data, size)), "config.toml");
  } catch (const util::Error& error) {
    // The weights that model.init_from names may be any path.
    if (error.kind() == ErrorKind::kUnexpected) throw;
  }
  return 0;
}

int foreign_config(const uint8_t* data, size_t size) {
  static const Folder folder;
  for (const char* name : {"a.yml", "a.toml", "a.json"}) {
    folder.write(name, view(data, size));
    try {
      config::translated(folder.path() / name);
    } catch (const util::Error& error) {
      if (error.kind() != ErrorKind::kUsage) throw;
    }
  }
  return 0;
}

int model_config(const uint8_t* data, size_t size) {
  refuse_or_read([&] {
    try {
      checkpoint::options_from_hugging_face(util::parse_json(view(data, size), {.deepest_level = 16}),
                                            "config.json");
    } catch (const util::JsonError&) {
    }
  });
  static const Folder folder;
  folder.write("adapter_config.json", view(data, size));
  refuse_or_read([&] { checkpoint::open_adapter(folder.path()); });
  return 0;
}

int run_folder(const uint8_t* data, size_t size) {
  static const Folder folder;
  for (const char* name : {"metrics.jsonl", "environment.json", "config.toml", "trace.rank0.jsonl"}) {
    folder.write(name, view(data, size));
  }
  report::read_run(folder.path());
  return 0;
}

}  // namespace fsdp::fuzz
