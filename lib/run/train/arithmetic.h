#pragma once

// The machine properties on which results depend with training.reproducible = "world_size", besides config
// and data.

#include <c10/core/ScalarType.h>

#include <nlohmann/json.hpp>
#include <string>

#include "comm/api/communicator.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// Returns the kind of the CPU, the instructions that kernels use, and the version of libtorch: "AuthenticAMD
/// family 25 model 97, AVX512, bf16, libtorch 2.15.0". Machines with the same text compute the same bits;
/// some machines with different texts do too.
std::string arithmetic();

/// Whether this CPU has kernels that sum by sample, computing in `type`.
bool sums_by_sample(at::ScalarType type);

/// Throws comm::AgreedError(kUsage) unless all ranks have the same arithmetic, compute on the CPU, and have
/// kernels that sum by sample for the types of the config. Collective.
void require_equal_arithmetic(const config::Config& config, comm::Communicator& communicator);

/// Warns if the arithmetic in a checkpoint's training record is another. `where` names the checkpoint.
void warn_of_other_arithmetic(const nlohmann::json& record, const std::string& where);

}  // namespace fsdp::train
