#include "run/train/sample_text.h"

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "tools/generate/generate.h"
#include "tools/generate/load.h"

namespace fsdp::train {

SampleText::SampleText(const config::Config& config)
    : model_(config.model),
      prompt_(config.logging.sample_prompt),
      tokens_(config.logging.sample_tokens),
      seed_(static_cast<uint64_t>(config.run.seed)),
      tokenizer_(data::make_tokenizer(config.data.tokenizer)),
      ids_(generate::encode_prompt(*tokenizer_, prompt_)) {
  for (int64_t id : ids_) {
    if (id < model_.vocab_size) continue;
    fail(ErrorKind::kUsage, "logging.sample_prompt must have tokens of ", tokenizer_->name(),
         " below model.vocab_size = ", model_.vocab_size, ", but has ", id,
         "; change the prompt, data.tokenizer or model.vocab_size");
  }
  const auto length = static_cast<int64_t>(ids_.size()) + tokens_;
  if (length > model_.max_position_embeddings) {
    fail(ErrorKind::kUsage,
         "logging.sample_tokens and the prompt must have at most "
         "model.max_position_embeddings = ",
         model_.max_position_embeddings, " tokens, but have ", tokens_, " + ", ids_.size(),
         "; shorten logging.sample_prompt or reduce logging.sample_tokens");
  }
}

std::optional<std::string> SampleText::of(nn::Stage& model, comm::Communicator& communicator,
                                          std::function<bool()> stop_requested,
                                          std::function<void(const at::Tensor& ids)> on_input) const {
  generate::GenerationOptions options{.max_new_tokens = tokens_, .seed = seed_};
  options.stop_ids = generate::stop_ids({}, *tokenizer_);
  options.allowed_ids = std::min(tokenizer_->vocab_size(), model_.vocab_size);
  options.device = communicator.device();
  // Ranks on different CPUs may round differently and would then sample different tokens.
  const auto agree = [&](at::Tensor& ids) {
    communicator.broadcast(ids, /*root=*/0, {.unit = "sampled token"})->wait();
  };
  const auto samples = generate::generate(model, model_, ids_, options,
                                          {.on_token = nullptr,
                                           .stop_requested = std::move(stop_requested),
                                           .agree = agree,
                                           .on_input = std::move(on_input)});
  if (samples.empty() || samples.front().ending == generate::Ending::kStopped) return std::nullopt;
  data::TextDecoder decoder(*tokenizer_);
  for (int64_t id : ids_) decoder.push(id);
  std::string text = prompt_;
  for (int64_t id : samples.front().ids) text += decoder.push(id);
  return text + decoder.finish();
}

}  // namespace fsdp::train
