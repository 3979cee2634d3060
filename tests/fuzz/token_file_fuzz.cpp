// The readers of token files: the input is the tokens' file, and the index's where the first byte says so.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "data/tokens/token_files.h"
#include "fuzz/fuzz_target.h"

namespace fsdp::fuzz {
namespace {

/// Two files in a folder, since an index is found by its name. Written anew for each input.
class Pair {
 public:
  Pair() : folder_(std::filesystem::temp_directory_path() / ("fsdp-fuzz-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~Pair() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string write(const char* name, std::string_view bytes) const {
    std::ofstream(folder_ / name, std::ios::binary | std::ios::trunc) << bytes;
    return (folder_ / name).string();
  }

 private:
  std::filesystem::path folder_;
};

void read_tokens(const std::string& path) {
  refuse_or_read([&] {
    data::TokenFile file(path);
    int64_t count = std::min(file.size(), kMostElements);
    std::vector<int64_t> ids(static_cast<size_t>(count));
    for (int64_t document = 0; document <= std::min(file.documents(), kMostElements); ++document) {
      if (!file.has_documents()) break;
      int64_t begin = file.document_begin(document);
      if (begin < 0 || begin > file.size()) throw std::logic_error("a document outside the file");
    }
    file.read(0, count, ids.data());
    file.read(file.size() - count, count, ids.data());
  });
}

}  // namespace

int token_file(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  MemoryFile flat(data, size);
  read_tokens(flat.path().string());
  // The first byte: how many bytes of tokens come before the index.
  if (size == 0) return 0;
  static const Pair pair;
  size_t tokens = std::min<size_t>(data[0], size - 1);
  pair.write("p.idx", bytes.substr(1 + tokens));
  read_tokens(pair.write("p.bin", bytes.substr(1, tokens)));
  return 0;
}

}  // namespace fsdp::fuzz
