#include "run/train/arithmetic.h"

#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <cstdlib>
#include <vector>

#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/system.h"
#include "model/kernels/block_product.h"

namespace fsdp::train {

std::string arithmetic() {
  const auto line = [](const char* name) {
    return util::line_value("/proc/cpuinfo", name).value_or("unknown");
  };
  std::string text = concat(line("vendor_id"), " family ", line("cpu family"), " model ", line("model"), ", ",
                            at::get_cpu_capability());
  if (kernels::has_bf16_instructions()) text += ", bf16";
  if (kernels::widens_bf16()) text += ", bf16 in fp32";
  // oneDNN's products depend on it.
  if (const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA")) text += concat(", at most ", limit);
  return concat(text, ", libtorch ", TORCH_VERSION);
}

// Attention in bf16 needs the instructions.
bool sums_by_sample(at::ScalarType type) {
  return type == at::kBFloat16 ? kernels::has_bf16_instructions() : kernels::has_small_products(type);
}

void require_equal_arithmetic(const config::Config& config, comm::Communicator& communicator) {
  const std::string own = arithmetic();
  comm::agree(communicator, "training.reproducible", [&] {
    const auto type = util::scalar_type(config.mixed_precision.param_dtype);
    if (communicator.device().is_cpu() && sums_by_sample(type)) return;
    fail(
        ErrorKind::kUsage,
        "training.reproducible = \"world_size\" requires a CPU with AVX2, in bfloat16 with AVX-512's products of that "
        "type, but rank ",
        communicator.rank(), " computes in ", config.mixed_precision.param_dtype, " on ",
        communicator.device().is_cpu() ? own : communicator.device().str(), "; leave it out");
  });
  const std::vector<std::string> all =
      comm::all_gather_text(communicator, own, {.unit = "comparison of the ranks' arithmetic"});
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0] || all[rank].empty())
      continue;  // empty: a rank that does not exist (run/train/dry_run.h)
    throw comm::AgreedError(
        ErrorKind::kUsage,
        concat("training.reproducible = \"world_size\" requires CPUs of one kind, but rank 0 has ", all[0],
               " and rank ", rank, " has ", all[rank], "; leave it out"));
  }
}

void warn_of_other_arithmetic(const nlohmann::json& record, const std::string& where) {
  if (!record.is_object() || !record.contains("arithmetic")) return;
  const std::string own = arithmetic(), before = record.at("arithmetic").dump();
  if (record.at("arithmetic") == own) return;
  util::log_warning(
      concat(where, " was trained with the arithmetic of ", before, ", and this run has that of \"", own,
             "\": it does not continue bit for bit, although training.reproducible = \"world_size\""));
}

}  // namespace fsdp::train
