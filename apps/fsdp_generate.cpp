// fsdp-generate CHECKPOINT: continues or scores a text with a trained model. Texts go to stdout, messages to
// stderr.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <optional>
#include <sstream>

#include "base/cli/program.h"
#include "base/cli/usage_error.h"
#include "base/tensor/mapped_allocator.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "base/util/stop_signal.h"
#include "base/util/text.h"
#include "data/chat/chat_session.h"
#include "data/chat/chat_source.h"
#include "early_environment.h"
#include "generate_output.h"
#include "model/families/families.h"
#include "plugin_option.h"
#include "setup/config/load.h"
#include "setup/plugin/load.h"
#include "tools/generate/generate.h"
#include "tools/generate/generation_defaults.h"
#include "tools/generate/load.h"
#include "tools/generate/requests.h"
#include "tools/generate/sampler.h"
#include "tools/generate/score.h"

namespace {

using namespace fsdp;
using util::ErrorKind;
using util::fail;

struct GenerateArguments {
  std::string checkpoint, prompt, prompt_file, tokenizer, dtype = "auto", begin_token, dash, score;
  std::string score_requests, generate_until;
  std::string system, chat_template;
  bool ema = false, json = false, interactive = false, chat = false;
  std::vector<std::string> stops;
  int64_t window = 0, stride = 0;
  std::vector<std::string> plugins;
  std::optional<int64_t> max_new_tokens;
  generate::SamplingChoice sampling;
  generate::GenerationOptions options;
};

[[gnu::section(".preinit_array"), gnu::used]] void (*const first_initializer)(int, char**,
                                                                              char**) = set_early_environment;

constexpr int64_t kDefaultNewTokens = 256;

/// Reads the text of a file; "-": standard input.
std::string read_input(const std::string& file) {
  if (file != "-") return util::read_file(file);
  std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  if (std::ferror(stdin) != 0) fail(ErrorKind::kIo, "cannot read the text from standard input");
  return text;
}

std::string read_prompt(const GenerateArguments& arguments) {
  if (arguments.dash.empty() && arguments.prompt_file.empty()) return arguments.prompt;
  return read_input(arguments.dash.empty() ? arguments.prompt_file : arguments.dash);
}

std::vector<int64_t> encode(const data::Tokenizer& tokenizer, const std::string& prompt,
                            const std::string& begin_token) {
  if (begin_token == "none") return generate::encode_prompt(tokenizer, prompt, /*begins=*/false);
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
  const std::vector<int64_t> text = generate::encode_prompt(tokenizer, prompt, begin_token.empty());
  ids.insert(ids.end(), text.begin(), text.end());
  return ids;
}

/// Returns the number of tokens to generate. Without a given number, as many as fit, up to the default.
int64_t new_tokens(const GenerateArguments& arguments, const nn::ModelOptions& model, size_t prompt) {
  const int64_t longest = nn::longest_sequence(model), room = longest - static_cast<int64_t>(prompt);
  if (room < 1) {
    fail(ErrorKind::kUsage, "the prompt must have fewer than ", longest,
         " tokens, the positions of the model (max_position_embeddings), but has ", prompt, "; shorten it");
  }
  return arguments.max_new_tokens.value_or(std::min(kDefaultNewTokens, room));
}

struct Model {
  checkpoint::StoredModel stored;
  std::unique_ptr<data::Tokenizer> tokenizer = nullptr;
  std::shared_ptr<nn::Stage> stage = nullptr;
  generate::GenerationDefaults defaults{};
};

/// Returns the exit code by a shell's convention, so that a script does not take half a text for the whole.
int exit_code() {
  const auto signal = util::StopSignal::received();
  return signal ? 128 + *signal : 0;
}

bool stop_requested() { return util::StopSignal::received().has_value(); }

/// The tokens that end a text.
std::vector<int64_t> stop_ids(const Model& model) {
  std::vector<int64_t> ids = generate::stop_ids(model.stored.config, *model.tokenizer);
  ids.insert(ids.end(), model.defaults.stop_ids.begin(), model.defaults.stop_ids.end());
  return ids;
}

/// Generates the texts that continue the tokens.
std::vector<generate::Sample> make_texts(const GenerateArguments& arguments, const Model& model,
                                         const std::vector<int64_t>& ids, std::vector<int64_t> stops,
                                         apps::SampleTexts& texts) {
  generate::GenerationOptions options = arguments.options;
  options.max_new_tokens = new_tokens(arguments, model.stored.options, ids.size());
  options.sampling = generate::chosen_sampling(arguments.sampling, model.defaults);
  options.stop_ids = std::move(stops);
  options.allowed_ids = std::min(model.tokenizer->vocab_size(), model.stored.options.vocab_size);

  util::StopSignal stop_signal;
  return generate::generate(*model.stage, model.stored.options, ids, options,
                            {.on_token = [&](int64_t sample, int64_t id) { texts.push(sample, id); },
                             .stop_requested = [&] { return stop_requested() || texts.have_ended(); }});
}

/// Prints the texts that continue the tokens, after `shown`. Returns the first.
std::string print_texts(const GenerateArguments& arguments, const Model& model,
                        const std::vector<int64_t>& ids, const std::string& shown,
                        std::vector<int64_t> stops) {
  apps::SampleTexts texts(*model.tokenizer, ids,
                          {.prompt = shown,
                           .num_samples = arguments.options.num_samples,
                           .streams = !arguments.json,
                           .stops = arguments.stops});
  const auto samples = make_texts(arguments, model, ids, std::move(stops), texts);
  if (arguments.json) {
    texts.print_json(samples);
  } else {
    texts.finish_texts(samples.size());
  }
  if (!arguments.json && !arguments.interactive && !arguments.chat) {
    int64_t tokens = 0;
    for (const auto& sample : samples) tokens += static_cast<int64_t>(sample.ids.size());
    util::log_info(util::concat(util::with_commas(tokens), " tokens in ", samples.size(), " sample(s), ",
                                util::fixed(samples.front().tokens_per_second(), 1),
                                " tokens/s in the first"));
  }
  return texts.first();
}

/// Continues one prompt, and prints the texts.
int generate_texts(const GenerateArguments& arguments, const Model& model, const std::string& prompt) {
  const std::vector<int64_t> ids = encode(*model.tokenizer, prompt, arguments.begin_token);
  // The reader of the texts of --interactive has typed the prompts.
  const std::string shown = arguments.interactive && !arguments.json ? "" : prompt;
  print_texts(arguments, model, ids, shown, stop_ids(model));
  return exit_code();
}

/// Calls `answer` with each line of standard input until it ends, or until `answer` returns an exit code
/// other than 0. At a terminal, a refused line does not end the program.
template <typename Answer>
int for_each_line(const Answer& answer) {
  const bool at_terminal = ::isatty(STDIN_FILENO) == 1;
  const bool has_colours = ::isatty(STDERR_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
  while (true) {
    if (at_terminal) std::cerr << (has_colours ? "\033[1;36m> \033[0m" : "> ") << std::flush;
    std::string line;
    if (!std::getline(std::cin, line)) break;
    if (line.ends_with('\r')) line.pop_back();
    try {
      if (const int code = answer(line); code != 0) return code;
    } catch (const util::Error& error) {
      if (!at_terminal || error.kind() != ErrorKind::kUsage) throw;
      util::log_error(cli::with_flags(error.what()));
    }
  }
  if (std::ferror(stdin) != 0) fail(ErrorKind::kIo, "cannot read prompts from standard input");
  if (at_terminal) std::cerr << '\n';
  return 0;
}

/// Answers each line as a message of the user, with what was said before.
int chat(const GenerateArguments& arguments, const Model& model, data::ChatSession& session) {
  std::vector<int64_t> stops = stop_ids(model);
  for (const int64_t id : session.ends_of_answers()) stops.push_back(id);
  const int64_t positions = model.stored.options.max_position_embeddings;
  const int64_t room =
      positions - arguments.max_new_tokens.value_or(std::min(kDefaultNewTokens, positions / 2));
  return for_each_line([&](const std::string& line) {
    if (line.empty()) return 0;
    const int64_t before = session.forgotten();
    const std::vector<int64_t> ids = session.ask(line, room);
    if (session.forgotten() != before) {
      util::log_info(util::concat("the conversation has become too long for the model's ", positions,
                                  " positions: its oldest ", session.forgotten(), " messages are forgotten"));
    }
    session.answer(print_texts(arguments, model, ids, arguments.json ? line : "", stops));
    return exit_code();
  });
}

int score(const GenerateArguments& arguments, const Model& model) {
  const std::string text = read_input(arguments.score);
  if (text.empty()) fail(ErrorKind::kUsage, "--score: expected a text; found none in ", arguments.score);
  const std::vector<int64_t> ids = encode(*model.tokenizer, text, arguments.begin_token);
  util::StopSignal stop_signal;
  const generate::Score found = generate::score(
      *model.stage, model.stored.options, ids,
      {.window = arguments.window, .stride = arguments.stride, .stop_requested = stop_requested});
  if (found.stopped) return exit_code();
  apps::print_score(found, data::TokenBytes(*model.tokenizer).count(ids.data() + 1, found.tokens),
                    arguments.json);
  return 0;
}

/// Reads the requests of a file, or of standard input for "-".
std::vector<generate::Request> requests_of(const std::string& file, bool generates) {
  const std::string name = file == "-" ? "standard input" : file;
  std::istringstream text(read_input(file));
  std::vector<generate::Request> requests = generate::read_requests(text, name, generates);
  if (requests.empty()) fail(ErrorKind::kUsage, name, ": expected a request a line; found none");
  return requests;
}

/// Prints a line for each request, in their order.
int score_requests(const GenerateArguments& arguments, const Model& model) {
  const auto requests = requests_of(arguments.score_requests, /*generates=*/false);
  std::optional<int64_t> begin;
  const auto id = model.stored.config.find("bos_token_id");
  if (id != model.stored.config.end() && id->is_number_integer()) begin = id->get<int64_t>();
  std::vector<generate::EncodedRequest> encoded;
  for (const generate::Request& request : requests) {
    encoded.push_back(generate::encode_request(*model.tokenizer, request, begin));
  }
  util::StopSignal stop_signal;
  const auto scores = generate::score_requests(*model.stage, model.stored.options, encoded,
                                               {.stop_requested = stop_requested});
  if (!scores) return exit_code();
  generate::require_finite(*scores, arguments.score_requests);
  for (size_t i = 0; i < scores->size(); ++i) apps::print_request_score(requests[i], (*scores)[i]);
  return exit_code();
}

/// Prints the text of each request when it ends.
int generate_until(GenerateArguments arguments, const Model& model) {
  arguments.options.num_samples = 1;
  const auto most = arguments.max_new_tokens;
  for (const generate::Request& request : requests_of(arguments.generate_until, /*generates=*/true)) {
    std::vector<int64_t> ids = encode(*model.tokenizer, request.context, arguments.begin_token);
    // Of a context that leaves no room for the text, the last tokens are used. A text has at least half of
    // the positions, if it wants them.
    const int64_t longest = nn::longest_sequence(model.stored.options),
                  wanted = request.max_new_tokens.value_or(most.value_or(kDefaultNewTokens)),
                  room = std::max<int64_t>(1, longest - std::min(wanted, longest / 2));
    if (std::ssize(ids) > room) ids.erase(ids.begin(), ids.end() - room);
    arguments.max_new_tokens = std::min(wanted, longest - std::ssize(ids));
    apps::SampleTexts texts(*model.tokenizer, ids, {.streams = false, .stops = request.until});
    const auto samples = make_texts(arguments, model, ids, stop_ids(model), texts);
    if (stop_requested()) break;
    texts.print_request(request, samples.front());
  }
  return exit_code();
}

data::ChatTemplateSource template_of(const GenerateArguments& arguments, const Model& model) {
  const std::string tokenizer = arguments.tokenizer.empty()
                                    ? generate::tokenizer_name(model.stored).value_or("bytes")
                                    : arguments.tokenizer;
  if (arguments.chat_template == data::kNoChatTemplate) {
    fail(ErrorKind::kUsage, "`chat_template` must be a template with `chat`, but is ", data::kNoChatTemplate,
         "; use `interactive` for a model without one");
  }
  return data::find_chat_template(arguments.chat_template, tokenizer);
}

int run(const GenerateArguments& arguments) {
  generate::check_sampling(generate::chosen_sampling(arguments.sampling, {}));
  const bool scores = !arguments.score.empty() || !arguments.score_requests.empty();
  const bool has_prompt =
      !scores && arguments.generate_until.empty() && !arguments.interactive && !arguments.chat;
  const std::string prompt = has_prompt ? read_prompt(arguments) : "";
  plugin::load_with_configs(arguments.plugins, plugin::OfConfigs::kAreRefused);
  config::load_plugins({}, config::PluginsNamedBy::kUser);
  Model model{.stored = generate::open_model(arguments.checkpoint, arguments.ema)};
  const at::ScalarType dtype = generate::compute_type(model.stored, arguments.dtype);
  model.tokenizer = arguments.tokenizer.empty() ? generate::find_tokenizer(model.stored)
                                                : data::make_tokenizer(arguments.tokenizer);
  std::optional<data::ChatSession> session;  // made first: its template runs in a copy of this process
  if (arguments.chat) session.emplace(*model.tokenizer, template_of(arguments, model), arguments.system);
  if (has_prompt) {  // an unfit prompt is refused before the weights are read
    new_tokens(arguments, model.stored.options,
               encode(*model.tokenizer, prompt, arguments.begin_token).size());
  }
  if (!scores) {
    model.defaults = generate::generation_defaults(model.stored);
    const std::string text = generate::defaults_text(arguments.sampling, model.defaults);
    if (!text.empty()) util::log_info(util::concat("sampling by ", model.defaults.file.string(), ": ", text));
  }
  model.stage = generate::load_model(model.stored, dtype);
  if (!arguments.score.empty()) return score(arguments, model);
  if (!arguments.score_requests.empty()) return score_requests(arguments, model);
  if (!arguments.generate_until.empty()) return generate_until(arguments, model);
  if (session) return chat(arguments, model, *session);
  if (!arguments.interactive) return generate_texts(arguments, model, prompt);
  return for_each_line([&](const std::string& line) { return generate_texts(arguments, model, line); });
}

cli::Page page() {
  return {
      .name = "fsdp-generate",
      .summary = "continue or score a text with a trained model",
      .examples =
          {{"from the newest checkpoint of a run", "fsdp-generate checkpoints/quickstart --prompt 'ROMEO:'"},
           {"always the most likely token, from a given checkpoint",
            "fsdp-generate checkpoints/quickstart/step-00000200 --prompt-file scene.txt --temperature 0 "
            "--max-new-tokens 50"},
           {"three texts as JSON, from a Hugging Face folder",
            "echo 'To be, or not to' | fsdp-generate gpt2/ - --num-samples 3 --top-p 0.9 --json"},
           {"a continuation of each line of a file",
            "fsdp-generate checkpoints/quickstart --interactive <prompts.txt"},
           {"a conversation with a model that was tuned on chats", "fsdp-generate checkpoints/chats --chat"},
           {"how likely the model finds a text", "fsdp-generate checkpoints/quickstart --score scene.txt"},
           {"how likely it finds continuations, one a line",
            "fsdp-generate checkpoints/quickstart --score-requests requests.jsonl"}},
      .words = {}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Continues or scores a text with a trained model.", "fsdp-generate");
  GenerateArguments arguments;
  generate::GenerationOptions& options = arguments.options;
  const generate::SamplingOptions sampling;  // used unless the user or the model sets other values
  const auto default_of = [](auto value) {
    return util::concat("; default: that of the model's generation_config.json, else ", value);
  };
  app.add_option("CHECKPOINT", arguments.checkpoint,
                 "a run's folder (its newest checkpoint; RUN/best: its best), a step's folder, a safetensors "
                 "file with config.json beside it, a Hugging Face folder, or a GGUF file")
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
  CLI::Option* interactive =
      app.add_flag("--interactive", arguments.interactive,
                   "read prompts from standard input, one a line, and print the continuation of each");
  interactive->excludes(prompt)->excludes(file)->excludes(dash);
  CLI::Option* chat =
      app.add_flag("--chat", arguments.chat,
                   "answer each line of standard input as a message of a conversation, by the chat template");
  chat->excludes(prompt)->excludes(file)->excludes(dash)->excludes(interactive);
  app.add_option("--system", arguments.system, "with --chat: the system prompt; default: the template's")
      ->needs(chat);
  app.add_option(
         "--chat-template", arguments.chat_template,
         util::concat("with --chat: a file, a folder, or ", util::join(data::chat_template_presets(), ", "),
                      "; default: the one of the tokenizer"))
      ->needs(chat)
      ->check(cli::not_empty());
  app.add_option("--stop", arguments.stops, "end a text before this text; may be repeated")
      ->allow_extra_args(false)
      ->check(cli::not_empty());
  CLI::Option* score =
      app.add_option(
             "--score", arguments.score,
             "print the negative log-likelihood and the perplexity of the text in this file (-: standard "
             "input), which may be longer than the model's positions, and exit")
          ->check(cli::not_empty());
  CLI::Option* score_requests =
      app.add_option(
             "--score-requests", arguments.score_requests,
             "print the log-likelihood of each continuation in this file of JSON lines (-: standard input): "
             "{\"context\": \"...\", \"continuation\": \"...\"} or {\"text\": \"...\"}, and exit")
          ->check(cli::not_empty());
  CLI::Option* generate_until =
      app.add_option("--generate-until", arguments.generate_until,
                     "print a text for each line of this file of JSON lines (-: standard input): "
                     "{\"context\": \"...\", \"until\": [\"...\"], \"max_new_tokens\": N}, and exit")
          ->check(cli::not_empty());
  app.add_option("--window", arguments.window,
                 "with --score: tokens that the model sees at once; default: all of its positions")
      ->check(cli::at_least(1))
      ->needs(score);
  app.add_option("--stride", arguments.stride,
                 "with --score: tokens by which the next window begins later; default: half a window")
      ->check(cli::at_least(1))
      ->needs(score);
  app.add_option(
         "--tokenizer", arguments.tokenizer,
         util::concat("default: the one in the folder, or in the run's config; ", data::kTokenizerChoices))
      ->check(cli::not_empty());
  app.add_option(
      "--begin-token", arguments.begin_token,
      "a token to put before the prompt or text, such as '<|begin_of_text|>', or none; default: what the "
      "tokenizer's files put before texts, as fsdp-data tokenize does");
  app.add_option("--max-new-tokens", arguments.max_new_tokens,
                 util::concat("tokens of a sample; default: ", kDefaultNewTokens,
                              ", or as many as the model's positions allow"))
      ->check(cli::between(1, 1'000'000'000));
  app.add_option("--num-samples", options.num_samples, "number of texts for the prompt")
      ->capture_default_str()
      ->check(cli::between(1, 1'000'000));
  app.add_option("--temperature", arguments.sampling.temperature,
                 "0: always the most likely token" + default_of(sampling.temperature));
  app.add_option("--top-k", arguments.sampling.top_k,
                 "sample from this many most likely tokens; 0: from all" + default_of(sampling.top_k));
  app.add_option(
      "--top-p", arguments.sampling.top_p,
      "sample from the most likely tokens that have this probability together" + default_of(sampling.top_p));
  app.add_option("--seed", options.seed, "the same seed gives the same texts")->capture_default_str();
  app.add_option("--dtype", arguments.dtype,
                 "compute type: float32, bfloat16, float16, or auto (bfloat16 for weights stored in "
                 "it, else float32)")
      ->capture_default_str();
  app.add_flag("--ema", arguments.ema, "use the moving averages of the weights (optimizer.ema_decay)");
  app.add_flag("--json", arguments.json,
               "print a JSON object per sample: prompt, text, tokens, ids, tokens_per_second, ending; with "
               "--score: nats, tokens, nats_per_token, perplexity, bits_per_byte");
  apps::add_plugin_option(app, arguments.plugins, "; a checkpoint that names a plug-in does not load it");
  chat->excludes(app.get_option("--num-samples"))->excludes(app.get_option("--begin-token"));
  for (const char* name :
       {"STDIN", "--prompt", "--prompt-file", "--interactive", "--chat", "--stop", "--max-new-tokens",
        "--num-samples", "--temperature", "--top-k", "--top-p", "--seed"}) {
    score->excludes(app.get_option(name));
    score_requests->excludes(app.get_option(name));
  }
  for (const char* name : {"STDIN", "--prompt", "--prompt-file", "--interactive", "--chat", "--stop",
                           "--num-samples", "--score"}) {
    generate_until->excludes(app.get_option(name));
  }
  score_requests->excludes(score)->excludes(generate_until)->excludes(app.get_option("--begin-token"));
  if (const auto code = cli::parse(app, page(), argc, argv)) return *code;
  util::MappedAllocator::install();
  return util::run_guarded([&] { return cli::run_command([&] { return run(arguments); }); });
}
