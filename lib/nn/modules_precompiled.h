#pragma once

// The same for the rooms of modules: nn and those above it.
#include <torch/nn/module.h>

#include "util/torch_precompiled.h"
