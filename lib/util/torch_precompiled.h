#pragma once

// Headers of libtorch that most files of components with tensors need, compiled once. Sources still include
// what they use.

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
