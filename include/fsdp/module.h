#pragma once

/// \file
/// Modules whose calls the engine can see. A C++ module's forward() cannot be hooked, so what is to be a
/// unit, and the model itself, is declared as Hooked<ModuleImpl> (any arguments and results), as
/// SequentialHooked, or derives from Stage (one tensor in, one out, and a StageContext beside them). Names of
/// parameters stay as they are.
///
/// Collective: nothing by itself; once fully_shard() has attached the engine, the calls and their backward
/// are.
///
/// Errors: those of the hooks that are attached.
///
/// Lifetime: a module owns its hooks. A copy of a StageHook::Next keeps the stage alive if a shared_ptr owns
/// it.
///
/// \code{.cpp}
/// struct BlockImpl : torch::nn::Module {
///   explicit BlockImpl(int64_t width) : linear(register_module("linear", torch::nn::Linear(width, width))) {}
///   /// x: [B, width], mask: [B, 1] -> [B, width]
///   at::Tensor forward(const at::Tensor& x, std::optional<at::Tensor> mask) {
///     const at::Tensor y = at::gelu(linear(x));
///     return mask ? y * *mask : y;
///   }
///   torch::nn::Linear linear;
/// };
/// struct NetImpl : torch::nn::Module {
///   NetImpl() { register_module("block", block); }
///   at::Tensor forward(const at::Tensor& x) { return block(x, std::nullopt); }
///   fsdp::Hooked<BlockImpl> block{64};
/// };
/// using Net = fsdp::Hooked<NetImpl>;
/// \endcode

#include "nn/hooked.h"
#include "nn/stage.h"

namespace fsdp {

using nn::CallHook;
using nn::CallTensors;
using nn::Hookable;
using nn::Hooked;
using nn::SequentialHooked;
using nn::Stage;
using nn::StageAdaptor;
using nn::StageContext;
using nn::StageHook;
using nn::StageList;

}  // namespace fsdp
