#include "data/tokenizer.h"

#include "util/error.h"
#include "util/text.h"

namespace fsdp::data {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  int64_t vocab_size() const override { return 256; }

  void encode(std::string_view text, std::vector<int64_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
  }

  std::string decode(const std::vector<int64_t>& ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (int64_t id : ids) {
      if (id < 0 || id >= vocab_size()) {
        util::fail(util::ErrorKind::kData, "the id ", id, " at place ", text.size(),
                   " is no byte token (0 to 255); decode it with the tokenizer that made it");
      }
      text.push_back(static_cast<char>(id));
    }
    return text;
  }
};

}  // namespace

std::vector<std::string> tokenizer_names() { return {"bytes"}; }

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  util::fail(util::ErrorKind::kUsage, "unknown tokenizer \"", name,
             "\"; expected one of: ", util::join(tokenizer_names(), ", "));
}

}  // namespace fsdp::data
