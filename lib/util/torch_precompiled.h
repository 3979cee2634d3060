#pragma once

// What most files of the components with tensors need of libtorch, compiled once. Sources still include what they use.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
