#include "tools/plan/logits.h"

#include <algorithm>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "model/families/architectures.h"
#include "model/kernels/fused.h"
#include "tools/plan/memory.h"
#include "tools/plan/plan.h"

namespace fsdp::plan {
namespace {

/// MiB that the logits of a micro-batch take on a GPU.
int64_t mib_of_all(const config::Config& config) {
  const int64_t tokens = config.data.sequence_length / std::max<int64_t>(1, config.mesh.context);
  const int64_t element = util::element_size(util::scalar_type(config.mixed_precision.param_dtype));
  const int64_t bytes = config.data.micro_batch_size * tokens *
                        kernels::device_logits_stride(config.model.vocab_size) * element;
  constexpr int64_t kMib = 1 << 20;
  return (bytes + kMib - 1) / kMib;
}

}  // namespace

int64_t choose_logits_mib(const config::Config& config, const comm::MeshShape& mesh, int64_t device_bytes,
                          PassDevice device) {
  const int64_t given = config.model.logits_mib;
  if (config.training.logits_mib != 0 || !is_for_gpu(config, device) || mesh.model > 1 ||
      !nn::is_built_in_architecture(config.model.architecture)) {
    return given;
  }
  config::Config at_once = config;
  at_once.model.logits_mib = mib_of_all(config);
  if (at_once.model.logits_mib <= given) return given;
  try {
    const int64_t peak = device_peak(at_once, planned_units(at_once, mesh), record_pass(at_once, device));
    const double limit = kMemoryShareOfOneChunk * static_cast<double>(device_bytes);
    return static_cast<double>(peak) <= limit ? at_once.model.logits_mib : given;
  } catch (const Error&) {  // a model that cannot be planned
    return given;
  }
}

}  // namespace fsdp::plan
