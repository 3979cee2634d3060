#pragma once

// What libstandin_numbers.so computes ATen's operations by.

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <string_view>

namespace standin {

using torch::jit::Stack;

/// Replaces the arguments of an operation, tensors of the CPU, by its results.
using Computation = void (*)(const c10::FunctionSchema& schema, Stack& stack);

/// Of an operation that libtorch has on CUDA only; null if it is not known.
Computation formula_of(std::string_view operation);

}  // namespace standin
