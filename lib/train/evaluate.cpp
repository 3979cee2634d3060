#include "train/evaluate.h"

#include <optional>

#include "comm/mesh.h"
#include "config/checks.h"
#include "train/run_parts.h"
#include "util/error.h"

namespace fsdp::train {

Validation evaluate(const config::Config& given, std::shared_ptr<comm::Communicator> communicator,
                    const std::filesystem::path& weights) {
  config::Config config = given;
  config.model.init_from = weights.string();
  config.training.global_batch_size = 0;  // nothing is trained, so any world will do
  config.training.gradient_accumulation_steps = 1;
  std::optional<data::ValidationLoader> loader;
  comm::agree(*communicator, "set-up", [&] {
    config::check_world(config, communicator->world_size());
    if (config.data.validation.empty()) {
      util::fail(util::ErrorKind::kUsage,
                 "data.validation: expected the token files to evaluate on; found none; name them in the "
                 "config or as data.validation='[\"FILE\"]'");
    }
    loader.emplace(open_validation_data(config, *communicator));
  });
  const ShardedModel sharded =
      build_sharded_model(config, comm::Mesh(config.mesh, communicator), /*trace=*/nullptr);
  const auto bytes = token_bytes(config, communicator->rank() == 0);
  return *validate(*sharded.model, *loader, *communicator, {.bytes = bytes.get()});
}

}  // namespace fsdp::train
