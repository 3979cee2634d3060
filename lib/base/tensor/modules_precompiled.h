#pragma once

// The precompiled header of code that has modules of libtorch.

#include <torch/nn/module.h>

#include "base/tensor/functions_precompiled.h"
