#include "checkpoint/weights_format.h"

#include <string>

#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "util/error.h"
#include "util/file.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::ErrorKind;
using util::fail;

namespace {

constexpr const char* kPickleRemedy =
    "such files can run code when they are read, and are not; where the model is trusted, save it as "
    "safetensors: python3 -c 'import sys, transformers as t; "
    "t.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=\"auto\")"
    ".save_pretrained(sys.argv[2], safe_serialization=True)' FROM TO, and copy the tokenizer's files along";

bool is_pickle(const fs::path& file) {
  const std::string suffix = file.extension().string();
  return suffix == ".bin" || suffix == ".pt" || suffix == ".pth" || suffix == ".ckpt";
}

/// The name of a pickled file of PyTorch's in a folder; empty when there is none.
std::string pickle_in(const fs::path& folder) {
  std::error_code error;
  for (const char* name :
       {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.pt"}) {
    if (fs::exists(folder / name, error)) return name;
  }
  return "";
}

}  // namespace

WeightsFormat format_of(const fs::path& path) {
  std::error_code error;
  if (!util::is_there(path)) {
    fail(ErrorKind::kCheckpoint, "expected weights at ", path.string(),
         " and found nothing: name a folder as Hugging Face lays it out, a safetensors file, or a checkpoint",
         util::hub_remedy(path.string()));
  }
  if (!fs::is_directory(path, error)) {
    if (is_pickle(path)) {
      fail(ErrorKind::kCheckpoint, "expected safetensors at ", path.string(),
           " and found a pickled PyTorch file; ", kPickleRemedy);
    }
    return WeightsFormat::kSafetensors;
  }
  if (fs::exists(path / kManifestName, error)) return WeightsFormat::kCheckpoint;
  if (fs::exists(path / kSingleFileName, error) || fs::exists(path / kIndexFileName, error)) {
    return WeightsFormat::kSafetensors;
  }
  const FoundCheckpoints found = find_checkpoints(path);
  if (!found.complete.empty() || !found.torn.empty()) return WeightsFormat::kCheckpoint;
  const std::string pickle = pickle_in(path);
  if (!pickle.empty()) {
    fail(ErrorKind::kCheckpoint, "expected ", kSingleFileName, " or ", kIndexFileName, " in ", path.string(),
         " and found ", pickle, ", pickled by PyTorch; ", kPickleRemedy);
  }
  fail(ErrorKind::kCheckpoint, "the folder ", path.string(), " has neither ", kSingleFileName, " nor ",
       kIndexFileName, " nor ", kManifestName,
       "; name a safetensors file, a folder as Hugging Face lays it out, or a checkpoint");
}

}  // namespace fsdp::checkpoint
