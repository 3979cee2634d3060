#pragma once

// Precompiled header of the components with modules: nn and those above it.
#include <torch/nn/module.h>

#include "util/torch_precompiled.h"
