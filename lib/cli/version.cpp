#include "cli/version.h"

#include <torch/headeronly/version.h>

#include "cli/build_commit.h"
#include "util/error.h"
#include "util/version.h"

namespace fsdp::cli {

std::string commit() { return FSDP_COMMIT; }
std::string libtorch_version() { return TORCH_VERSION; }
std::string cuda_version() { return FSDP_CUDA_VERSION; }
std::string nccl_version() { return FSDP_NCCL_VERSION; }

std::string version_text(const std::string& program) {
  std::string text = util::concat(program, " ", util::version());
  if (!commit().empty()) text += util::concat(" (commit ", commit(), ")");
  text += util::concat("\nlibtorch ", libtorch_version());
  if (cuda_version().empty()) text += " (CPU)";
  if (!cuda_version().empty()) text += util::concat("\nCUDA ", cuda_version());
  if (!nccl_version().empty()) text += util::concat("\nNCCL ", nccl_version());
  return text;
}

}  // namespace fsdp::cli
