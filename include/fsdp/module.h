#pragma once

/// \file
/// Modules with hooks around their calls. A C++ module's forward() cannot be hooked, so each module that
/// should be an FSDP unit, and the model itself, must be a Hooked<ModuleImpl> (any arguments and results), a
/// SequentialHooked, or derive from Stage (one tensor in, one out, and a StageContext). Parameter names do
/// not change.
///
/// Collective: nothing by itself. Calls and their backward are collective after fully_shard() has attached
/// the engine.
///
/// Errors: those of the attached hooks.
///
/// Lifetime: a module owns its hooks. A copy of a StageHook::Next keeps the stage alive if a shared_ptr owns
/// it.
///
/// \code{.cpp}
/// struct BlockImpl : torch::nn::Module {
///   explicit BlockImpl(int64_t width)
///       : linear(register_module("linear", torch::nn::Linear(width, width))) {}
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

#include "model/nn/hooked.h"
#include "model/nn/stage.h"

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
