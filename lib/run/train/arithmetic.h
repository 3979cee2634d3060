#pragma once

// With training.reproducible = "world_size": what results depend on besides the config and the data.

#include <nlohmann/json.hpp>
#include <string>

#include "comm/api/communicator.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// The kind of the CPU and of its instructions that kernels use, and the version of libtorch: "AuthenticAMD family 25 model
/// 97, AVX512, bf16, libtorch 2.11.0". The same on all machines that compute the same bits, and on some that do.
std::string arithmetic();

/// Throws comm::AgreedError(kUsage) unless all ranks have kernels that sum by sample for the types of the config, on the CPU,
/// and the same arithmetic. Collective.
void require_equal_arithmetic(const config::Config& config, comm::Communicator& communicator);

/// Warns where the arithmetic in a checkpoint's training record is another. `where` names the checkpoint.
void warn_of_other_arithmetic(const nlohmann::json& record, const std::string& where);

}  // namespace fsdp::train
