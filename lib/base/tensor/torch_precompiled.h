#pragma once

// The precompiled header of all code that uses libtorch: the headers that most of its files include. Sources
// still include what they use.

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
