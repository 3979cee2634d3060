#include "base/util/version.h"

#include <torch/headeronly/version.h>

#include "base/cli/page.h"
#include "base/util/error.h"
#include "cli/build_commit.h"

namespace fsdp::cli {

std::string nccl_version() { return FSDP_NCCL_VERSION; }

std::string version_text(const std::string& program) {
  const std::string commit = FSDP_COMMIT, cuda = FSDP_CUDA_VERSION;
  std::string text = concat(program, " ", util::version());
  if (!commit.empty()) text += concat(" (commit ", commit, ")");
  text += concat("\nlibtorch ", TORCH_VERSION, cuda.empty() ? " (CPU)" : concat("\nCUDA ", cuda));
  if (!nccl_version().empty()) text += concat("\nNCCL ", nccl_version());
  return text;
}

}  // namespace fsdp::cli
