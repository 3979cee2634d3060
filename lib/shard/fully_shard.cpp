#include "shard/fully_shard.h"

#include "nn/buffers.h"
#include "shard/option_conflicts.h"
#include "shard/wrap.h"
#include "util/dtype.h"
#include "util/error.h"

namespace fsdp::shard {
namespace {

void require_real_buffers(torch::nn::Module& root) {
  for (const auto& buffer : root.named_buffers()) {
    if (!buffer.value().is_meta()) continue;
    util::fail(util::ErrorKind::kUsage, "buffer ", buffer.key(),
               ": expected values; found a tensor on the meta device, which has none; make buffers on a real "
               "device, on which only parameters may be missing");
  }
}

void cast_buffers(torch::nn::Module& root, at::ScalarType dtype) {
  at::NoGradGuard no_grad;
  for (const auto& buffer : root.named_buffers()) {
    at::Tensor tensor = buffer.value();
    if (tensor.is_floating_point() && tensor.scalar_type() != dtype) tensor.set_data(tensor.to(dtype));
  }
}

/// Those that belong to the model's state, with the source's values. Collective if the source is.
std::vector<NamedTensor> take_buffers(torch::nn::Module& root, ParameterSource* source) {
  at::NoGradGuard no_grad;
  std::vector<NamedTensor> buffers;
  for (auto& [name, tensor] : nn::persistent_buffers(root)) {
    if (!tensor.is_contiguous()) tensor.set_data(tensor.contiguous());  // state dicts have views of it
    if (source != nullptr) source->read_buffer({name, tensor});
    buffers.push_back({name, tensor});
  }
  return buffers;
}

}  // namespace

void require_parts(const comm::Mesh& mesh, const ShardOptions& options) {
  if (mesh.shape().model == 1 || !options.parts.empty()) return;
  util::fail(
      util::ErrorKind::kUsage, "fully_shard() on a mesh whose axis model has ", mesh.shape().model,
      " ranks: expected ShardOptions::parts; found none, so that each of these ranks would train a model of "
      "its own; pass what parallelize() returned, mark parameters with the axis and use spmd_fully_shard(), or give "
      "the ranks to data");
}

std::shared_ptr<Engine> fully_shard(torch::nn::Module& root, const ShardOptions& options,
                                    std::shared_ptr<comm::Communicator> communicator,
                                    std::shared_ptr<comm::Trace> trace, const Materialize& materialize) {
  return fully_shard(root, options, comm::Mesh({}, std::move(communicator)), std::move(trace), materialize);
}

std::shared_ptr<Engine> fully_shard(torch::nn::Module& root, const ShardOptions& given,
                                    const comm::Mesh& mesh, std::shared_ptr<comm::Trace> trace,
                                    const Materialize& materialize, HookPlaces places) {
  const ShardOptions options = WrappedModules::added_to(given);
  require_no_option_conflicts(options);
  require_parts(mesh, options);
  require_real_buffers(root);
  auto engine = std::make_shared<Engine>(options, mesh, plan_units(root, options), trace, materialize);
  cast_buffers(root, util::scalar_type(options.mixed_precision.buffer_dtype));
  engine->set_buffers(take_buffers(root, materialize.source));
  // Nothing fails from here on, so hooks may be attached.
  engine->attach_hooks(std::move(places));
  WrappedModules::clear();
  return engine;
}

}  // namespace fsdp::shard
