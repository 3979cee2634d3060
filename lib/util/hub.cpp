#include "util/hub.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>

#include "util/error.h"

namespace fsdp::util {
namespace {

bool is_part(std::string_view part) {
  constexpr size_t kLongest = 96;
  return !part.empty() && part.size() <= kLongest && part.front() != '.' && part.front() != '-' &&
         std::all_of(part.begin(), part.end(), [](unsigned char c) {
           return (c < 128 && std::isalnum(c) != 0) || c == '-' || c == '_' || c == '.';
         });
}

/// "gpt2.safetensors", but not "Llama-3.2-1B".
bool ends_like_a_file(const std::string& name) {
  constexpr const char* kSuffixes[] = {".safetensors", ".json", ".model", ".bin", ".pt",
                                       ".pth",         ".ckpt", ".txt",   ".toml"};
  return std::any_of(std::begin(kSuffixes), std::end(kSuffixes),
                     [&](const char* suffix) { return name.ends_with(suffix); });
}

}  // namespace

std::string hub_remedy(const std::string& name) {
  const size_t slash = name.find('/');
  const std::string owner = slash == std::string::npos ? "" : name.substr(0, slash);
  const std::string model = slash == std::string::npos ? name : name.substr(slash + 1);
  std::error_code error;
  const bool is_name = is_part(model) && (slash == std::string::npos || is_part(owner)) &&
                       (slash == std::string::npos || !std::filesystem::exists(owner, error));
  if (!is_name || ends_like_a_file(name)) return "";
  return concat(
      "; nothing is downloaded here: if that is a model's name on the Hugging Face hub, fetch it "
      "with `huggingface-cli download ",
      name, " --local-dir models/", model, "` and give models/", model);
}

}  // namespace fsdp::util
