#include "train/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <numbers>

#include "comm/mesh.h"
#include "config/checks.h"
#include "data/tokenizer.h"
#include "nn/loss.h"
#include "train/run_parts.h"
#include "util/error.h"
#include "util/log.h"
#include "util/text.h"

namespace fsdp::train {

std::optional<double> Validation::bits_per_byte() const {
  if (!bytes || *bytes == 0) return std::nullopt;
  return loss * static_cast<double>(tokens) / std::numbers::ln2 / static_cast<double>(*bytes);
}

std::optional<Validation> validate(nn::Stage& model, const data::ValidationLoader& loader,
                                   comm::Communicator& communicator, const ValidationHooks& hooks) {
  at::NoGradGuard no_grad;
  enum Sum { kLosses, kTokens, kBytes, kForeignBatches, kSums };
  at::Tensor totals = at::zeros({kSums}, at::kDouble);
  double* sums = totals.data_ptr<double>();
  for (int64_t index = 0; index < loader.num_batches(); ++index) {
    if (hooks.stop_requested && hooks.stop_requested()) return std::nullopt;
    data::Batch batch = loader.batch(index);
    // A batch in which nothing counts still runs: its forward is collective.
    at::Tensor loss =
        nn::loss_of(model, batch.inputs.to(communicator.device()), batch.targets.to(communicator.device()),
                    {.documents = batch.document_starts});
    if (batch.counted == 0) continue;
    const auto tokens = static_cast<double>(batch.counted);
    sums[kLosses] += loss.item<double>() * tokens;
    sums[kTokens] += tokens;
    if (hooks.bytes == nullptr) continue;
    auto counted = hooks.bytes->count(batch.targets.const_data_ptr<int64_t>(), batch.targets.numel());
    counted ? sums[kBytes] += static_cast<double>(*counted) : sums[kForeignBatches] += 1;
  }
  communicator.all_reduce(totals, comm::ReduceOp::kSum, {.unit = "validation loss"})->wait();
  Validation validation{.loss = sums[kLosses] / sums[kTokens],
                        .samples = loader.num_samples(),
                        .tokens = static_cast<int64_t>(sums[kTokens]),
                        .bytes = std::nullopt};
  if (hooks.bytes != nullptr && sums[kForeignBatches] == 0) {
    validation.bytes = static_cast<int64_t>(sums[kBytes]);
  }
  return validation;
}

std::string validation_text(const Validation& validation) {
  const std::optional<double> bits = validation.bits_per_byte();
  return util::concat("loss ", util::fixed(validation.loss, 4), ", perplexity ",
                      util::fixed(validation.perplexity(), 2),
                      bits ? util::concat(", ", util::fixed(*bits, 4), " bits per byte") : "", " over ",
                      validation.samples, " samples");
}

std::unique_ptr<data::TokenBytes> token_bytes(const config::Config& config, bool is_first_rank) {
  try {
    return std::make_unique<data::TokenBytes>(*data::make_tokenizer(config.data.tokenizer));
  } catch (const util::Error& error) {
    if (is_first_rank) {
      util::log_warning(util::concat("validation will not report bits per byte: ", error.what()));
    }
    return nullptr;
  }
}

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
                 "data.validation must list the token files to evaluate on, but is empty; set it in "
                 "the config or as data.validation='[\"FILE\"]'");
    }
    loader.emplace(open_validation_data(config, *communicator));
  });
  const ShardedModel sharded =
      build_sharded_model(config, comm::Mesh(config.mesh, communicator), /*trace=*/nullptr);
  const auto bytes = token_bytes(config, communicator->rank() == 0);
  return *validate(*sharded.model, *loader, *communicator, {.bytes = bytes.get()});
}

bool ValidationHistory::add(int64_t step, double loss) {
  validated_at_ = step;
  const bool better = std::isfinite(loss) && (!best_ || loss < best_->loss - min_delta_);
  if (better) best_ = Best{.step = step, .loss = loss};
  not_better_in_a_row_ = better ? 0 : not_better_in_a_row_ + 1;
  return better;
}

nlohmann::json ValidationHistory::state() const {
  nlohmann::json state = {{"not_better_in_a_row", not_better_in_a_row_}, {"validated_at", validated_at_}};
  if (best_) state["best"] = {{"step", best_->step}, {"loss", best_->loss}};
  return state;
}

void ValidationHistory::set_state(const nlohmann::json& state) {
  not_better_in_a_row_ = state.at("not_better_in_a_row").get<int64_t>();
  validated_at_ = state.at("validated_at").get<int64_t>();
  best_.reset();
  if (!state.contains("best")) return;
  const nlohmann::json& best = state.at("best");
  best_ = Best{.step = best.at("step").get<int64_t>(), .loss = best.at("loss").get<double>()};
}

}  // namespace fsdp::train
