#pragma once

// A folder for one test, removed with everything in it at the end of the scope.

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace fsdp::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            ("fsdp-test-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The path of a name in the folder.
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  /// Writes a file of that name and returns its path.
  std::string write(const std::string& name, const std::string& content) const {
    std::string path = *this / name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(*this / name, std::ios::binary);
    if (!file) throw std::runtime_error("no file " + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// Entries of the folder, to see that nothing was left behind.
  int entries() const {
    std::filesystem::directory_iterator begin(path_), end;
    return static_cast<int>(std::distance(begin, end));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace fsdp::testing
