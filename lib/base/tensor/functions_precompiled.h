#pragma once

// The precompiled header of code whose files include all functions of ATen.

#include <ATen/Functions.h>

#include "base/tensor/tensors_precompiled.h"
