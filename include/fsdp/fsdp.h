#pragma once

/// \file
/// All public headers. Names that they do not export are internal: they are installed under fsdp/internal and
/// may change with any version.
///
/// \code{.cpp}
/// // Shards a custom model over all ranks of the launcher.
/// std::shared_ptr<fsdp::Engine> shard(torch::nn::Module& model) {
///   auto communicator = fsdp::make_communicator(fsdp::read_launch_environment(), {});
///   return fsdp::fully_shard(model, {.min_num_params = 100'000}, communicator);
/// }
/// \endcode
/// Collective, errors, lifetime: see each header.

#include <fsdp/checkpoint.h>
#include <fsdp/communicator.h>
#include <fsdp/decoder.h>
#include <fsdp/device_loader.h>
#include <fsdp/error.h>
#include <fsdp/full_parameters.h>
#include <fsdp/fully_shard.h>
#include <fsdp/grad_norm.h>
#include <fsdp/log.h>
#include <fsdp/mesh.h>
#include <fsdp/module.h>
#include <fsdp/optimizer.h>
#include <fsdp/parallelize.h>
#include <fsdp/plugin.h>
#include <fsdp/recompute.h>
#include <fsdp/schedule.h>
#include <fsdp/spmd.h>
#include <fsdp/state_dict.h>
#include <fsdp/wrap.h>

/// The public types and functions.
namespace fsdp {}
