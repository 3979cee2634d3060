#pragma once

#include "comm/communicator.h"
#include "data/loader.h"
#include "nn/stage.h"

namespace fsdp::train {

/// Mean loss in nats over all tokens of the validation samples, the same on every rank and at any world size
/// (up to rounding). Collective; nothing is recorded for backward.
double validation_loss(nn::Stage& model, const data::ValidationLoader& loader,
                       comm::Communicator& communicator);

}  // namespace fsdp::train
