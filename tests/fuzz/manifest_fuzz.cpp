// The reader of manifest.json. Once with the bytes as they are, and once with a seal that fits, because a
// fuzzer cannot guess a hash and would never get behind it.

#include <string_view>

#include "fuzz/fuzz_target.h"
#include "state/manifest/digest.h"
#include "state/manifest/manifest.h"

namespace fsdp::fuzz {

int manifest(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  refuse_or_read([&] { checkpoint::parse_manifest(text, "manifest.json"); });
  refuse_or_read([&] {
    nlohmann::json sealed =
        nlohmann::json::parse(checkpoint::canonical_json(text, 32, "manifest.json").text());
    if (!sealed.is_object()) return;
    sealed.erase("seal");
    sealed["seal"] = checkpoint::seal_of(sealed);
    checkpoint::Manifest parsed = checkpoint::parse_manifest(sealed.dump(), "manifest.json");
    // What is accepted is written again as something that is accepted.
    checkpoint::parse_manifest(checkpoint::manifest_text(parsed), "manifest.json");
  });
  return 0;
}

}  // namespace fsdp::fuzz
