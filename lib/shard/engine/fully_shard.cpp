#include "shard/engine/fully_shard.h"

#include "base/util/error.h"
#include "shard/engine/inner_modules.h"
#include "shard/engine/wrap.h"
#include "shard/units/option_conflicts.h"

namespace fsdp::shard {
namespace {

const ShardingFront& plain_front() {
  static const ShardingFront kFront{.name = "fully_shard()", .defaults = {}, .units_keep_all_options = true};
  return kFront;
}

}  // namespace

void require_parts(const comm::Mesh& mesh, const ShardOptions& options) {
  if (mesh.shape().model == 1 || !options.parts.empty()) return;
  fail(
      ErrorKind::kUsage, "fully_shard() on a mesh whose axis model has ", mesh.shape().model,
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
                                    const Materialize& materialize) {
  InnerModules inner(root, plain_front());
  ShardOptions options = WrappedModules::added_to(given);
  inner.add_to(options, mesh);
  require_no_option_conflicts(options);
  require_parts(mesh, options);
  auto engine = inner.shard(options, mesh, std::move(trace), materialize);
  WrappedModules::clear();
  return engine;
}

}  // namespace fsdp::shard
