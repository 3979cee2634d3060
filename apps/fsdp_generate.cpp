// fsdp-generate CHECKPOINT: continues a text with a trained model. Texts go to stdout, messages to stderr.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <optional>

#include "cli/program.h"
#include "cli/usage_error.h"
#include "config/load.h"
#include "generate/generate.h"
#include "generate/load.h"
#include "generate/sampler.h"
#include "generate_output.h"
#include "plugin/load.h"
#include "plugin_option.h"
#include "short_spinning.h"
#include "util/error.h"
#include "util/file.h"
#include "util/log.h"
#include "util/mapped_allocator.h"
#include "util/stop_signal.h"
#include "util/text.h"

namespace {

using namespace fsdp;
using util::ErrorKind;
using util::fail;

struct Arguments {
  std::string checkpoint, prompt, prompt_file, tokenizer, dtype = "auto", begin_token, dash;
  bool ema = false, json = false;
  std::vector<std::string> plugins;
  std::optional<int64_t> max_new_tokens;
  generate::GenerationOptions options;
};

[[gnu::section(".preinit_array"), gnu::used]] void (*const first_initializer)(int, char**,
                                                                              char**) = spin_shortly;

constexpr int64_t kDefaultNewTokens = 256;

std::string read_prompt(const Arguments& arguments) {
  if (arguments.dash.empty() && arguments.prompt_file.empty()) return arguments.prompt;
  if (arguments.dash == "-" || arguments.prompt_file == "-") {
    std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
    if (std::ferror(stdin) != 0) fail(ErrorKind::kIo, "cannot read the prompt from standard input");
    return text;
  }
  return util::read_file(arguments.prompt_file);
}

std::vector<int64_t> encode(const data::Tokenizer& tokenizer, const std::string& prompt,
                            const std::string& begin_token) {
  std::vector<int64_t> ids;
  if (!begin_token.empty()) {
    const std::optional<int64_t> id = tokenizer.id_of(begin_token);
    if (!id) {
      fail(ErrorKind::kUsage, "--begin-token must be the text of a token of ", tokenizer.name(),
           ", but is \"", begin_token, "\"; fsdp-data inspect shows texts of tokens");
    }
    ids.push_back(*id);
    if (prompt.empty()) return ids;
  }
  const std::vector<int64_t> text = generate::encode_prompt(tokenizer, prompt);
  ids.insert(ids.end(), text.begin(), text.end());
  return ids;
}

/// Without a number, as many as fit up to the default.
int64_t new_tokens(const Arguments& arguments, const nn::ModelOptions& model, size_t prompt) {
  const int64_t room = nn::longest_sequence(model) - static_cast<int64_t>(prompt);
  if (room < 1) {
    fail(ErrorKind::kUsage, "the prompt must have fewer than ", nn::longest_sequence(model),
         " tokens, the positions of the model (max_position_embeddings), but has ", prompt, "; shorten it");
  }
  return arguments.max_new_tokens.value_or(std::min(kDefaultNewTokens, room));
}

int run(Arguments& arguments) {
  generate::GenerationOptions& options = arguments.options;
  generate::check_sampling(options.sampling);
  const std::string prompt = read_prompt(arguments);
  plugin::load_with_configs(arguments.plugins);
  config::load_plugins({}, config::PluginsNamedBy::kUser);
  const checkpoint::StoredModel stored = generate::open_model(arguments.checkpoint, arguments.ema);
  const at::ScalarType dtype = generate::compute_type(stored, arguments.dtype);
  const auto tokenizer = arguments.tokenizer.empty() ? generate::find_tokenizer(stored)
                                                     : data::make_tokenizer(arguments.tokenizer);
  const std::vector<int64_t> ids = encode(*tokenizer, prompt, arguments.begin_token);
  options.max_new_tokens = new_tokens(arguments, stored.options, ids.size());
  options.stop_ids = generate::stop_ids(stored.config, *tokenizer);
  options.allowed_ids = std::min(tokenizer->vocab_size(), stored.options.vocab_size);
  const auto model = generate::load_model(stored, dtype);

  util::StopSignal stop_signal;
  apps::SampleTexts texts(*tokenizer, ids, prompt, options.num_samples, !arguments.json);
  const auto samples =
      generate::generate(*model, stored.options, ids, options,
                         {.on_token = [&](int64_t sample, int64_t id) { texts.push(sample, id); },
                          .stop_requested = [] { return util::StopSignal::received().has_value(); }});
  if (arguments.json) {
    texts.print_json(samples);
  } else {
    texts.finish_texts(samples.size());
    int64_t tokens = 0;
    for (const auto& sample : samples) tokens += static_cast<int64_t>(sample.ids.size());
    util::log_info(util::concat(util::with_commas(tokens), " tokens in ", samples.size(), " sample(s), ",
                                util::fixed(samples.front().tokens_per_second(), 1),
                                " tokens/s in the first"));
  }
  // As a shell has it: a script must not take half a text for all of it.
  if (auto signal = util::StopSignal::received()) return 128 + *signal;
  return 0;
}

cli::Page page() {
  return {
      .name = "fsdp-generate",
      .summary = "continue a text with a trained model",
      .examples =
          {{"from the newest checkpoint of a run", "fsdp-generate checkpoints/quickstart --prompt 'ROMEO:'"},
           {"always the most likely token, from a given checkpoint",
            "fsdp-generate checkpoints/quickstart/step-00000200 --prompt-file scene.txt --temperature 0 "
            "--max-new-tokens 50"},
           {"three texts as JSON, from a Hugging Face folder",
            "echo 'To be, or not to' | fsdp-generate gpt2/ - --num-samples 3 --top-p 0.9 --json"}},
      .words = {}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Continues a text with a trained model.", "fsdp-generate");
  Arguments arguments;
  generate::GenerationOptions& options = arguments.options;
  generate::SamplingOptions& sampling = options.sampling;
  app.add_option("CHECKPOINT", arguments.checkpoint,
                 "a run's folder (its newest checkpoint; RUN/best: its best), a step's folder, a safetensors "
                 "file with config.json beside it, or a Hugging Face folder (llama, gpt2)")
      ->required()
      ->check(cli::not_empty());
  CLI::Option* dash = app.add_option("STDIN", arguments.dash, "-: read the prompt from standard input");
  dash->check(cli::one_of({"-"}));
  CLI::Option* prompt =
      app.add_option("--prompt", arguments.prompt, "the beginning of the text; default: a new text");
  CLI::Option* file = app.add_option("--prompt-file", arguments.prompt_file, "a file with the prompt")
                          ->check(cli::not_empty());
  prompt->excludes(file)->excludes(dash);
  file->excludes(dash);
  app.add_option(
         "--tokenizer", arguments.tokenizer,
         util::concat("default: the one in the folder, or in the run's config; ", data::kTokenizerChoices))
      ->check(cli::not_empty());
  app.add_option("--begin-token", arguments.begin_token,
                 "a token to put before the prompt, such as '<|begin_of_text|>' for models trained with it");
  app.add_option("--max-new-tokens", arguments.max_new_tokens,
                 util::concat("tokens of a sample; default: ", kDefaultNewTokens,
                              ", or as many as the model's positions allow"))
      ->check(cli::between(1, 1'000'000'000));
  app.add_option("--num-samples", options.num_samples, "number of texts for the prompt")
      ->capture_default_str()
      ->check(cli::between(1, 1'000'000));
  app.add_option("--temperature", sampling.temperature, "0: always the most likely token")
      ->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "sample from this many most likely tokens; 0: from all")
      ->capture_default_str();
  app.add_option("--top-p", sampling.top_p,
                 "sample from the most likely tokens that have this probability together")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "the same seed gives the same texts")->capture_default_str();
  app.add_option("--dtype", arguments.dtype,
                 "compute type: float32, bfloat16, float16, or auto (bfloat16 for weights stored in "
                 "it, else float32)")
      ->capture_default_str();
  app.add_flag("--ema", arguments.ema, "use the moving averages of the weights (optimizer.ema_decay)");
  app.add_flag("--json", arguments.json,
               "print a JSON object per sample: prompt, text, tokens, ids, tokens_per_second, ending");
  apps::add_plugin_option(app, arguments.plugins, "");
  if (const auto code = cli::parse(app, page(), argc, argv)) return *code;
  util::MappedAllocator::install();
  return util::run_guarded([&] { return cli::run_command([&] { return run(arguments); }); });
}
