#pragma once

#include <string>

#include "config/config.h"
#include "data/loader.h"
#include "shard/engine.h"

namespace fsdp::train {

/// A few lines that say what is about to be trained, on what, and where it goes.
/// `peak_flops_per_second`: of a rank, see logging.peak_tflops.
std::string banner(const config::Config& config, const shard::Engine& engine, const data::TrainLoader& loader,
                   double peak_flops_per_second);

}  // namespace fsdp::train
