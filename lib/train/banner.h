#pragma once

#include <string>

#include "config/config.h"
#include "data/loader.h"
#include "shard/engine.h"
#include "train/peak_rate.h"

namespace fsdp::train {

/// A few lines that say what is about to be trained, on what, and where it goes.
std::string banner(const config::Config& config, const shard::Engine& engine, const data::TrainLoader& loader,
                   const PeakRate& peak);

}  // namespace fsdp::train
