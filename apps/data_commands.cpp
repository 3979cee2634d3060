#include "data_commands.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <thread>

#include "base/cli/program.h"
#include "base/cli/usage_error.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/progress_bar.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "data/chat/chat_encoder.h"
#include "data/chat/chat_source.h"
#include "data/chat/chat_tokens.h"
#include "data/chat/preference_encoder.h"
#include "data/texts/tokenize.h"
#include "data/texts/train_tokenizer.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/convert.h"
#include "data/tokens/inspect.h"
#include "data/tokens/token_files.h"

namespace fsdp::apps {
namespace {

void print(std::string_view text) {
  // A file or pipe gets the exact bytes of a text.
  if (::isatty(STDOUT_FILENO) != 0 ? !(std::cout << util::printable(text) << std::flush)
                                   : !(std::cout << text << std::flush)) {
    util::fail(util::ErrorKind::kIo,
               "cannot write to standard output; check the file or pipe that it is connected to");
  }
}

int default_threads() {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::min(cores, util::cpu_quota().value_or(cores));
}

std::string format_names() { return "One of: " + util::join(data::token_format_names(), ", "); }

void add_threads(CLI::App* command, int& threads, const char* help) {
  threads = default_threads();
  command->add_option("--threads", threads, help)->default_str("all cores")->check(cli::between(1, 1024));
}

void add_input_format(CLI::App* command, std::string& format) {
  command
      ->add_option("--input-format", format,
                   "Read the files in this format, whatever their content and name suggest")
      ->check(cli::not_empty());
}

std::optional<data::TokenFormat> optional_format(const std::string& name) {
  return name.empty() ? std::nullopt : std::optional(data::token_format(name));
}

/// Adds the options of texts that have rows.
template <typename Options>
void add_rows(CLI::App* command, Options& options) {
  command
      ->add_option("--json-field,--text-column", options.json_field,
                   "Field of a JSON line, or column of a table, that contains the document")
      ->capture_default_str();
  command->add_flag("--json-lines", options.json_lines,
                    "The texts are JSON lines, whatever their names (.json too), except .parquet");
  command
      ->add_option("--skip-bad", options.skip_bad,
                   "Leave out up to so many JSON lines and rows that cannot be used")
      ->capture_default_str()
      ->check(cli::at_least(0));
}

void warn_of(const data::BadRows& rows) {
  for (const std::string& message : rows.messages())
    util::log_warning("left out: " + cli::with_flags(message));
  if (rows.count() > 0) util::log_warning(util::with_commas(rows.count()) + " rows were left out");
}

void print_output(const std::string& path, int64_t tokens, int64_t documents, bool documents_kept) {
  std::string kept = documents_kept ? util::with_commas(documents) + " documents, " : std::string();
  print(util::concat(path, ": ", kept, util::with_commas(tokens), " tokens\n"));
}

void print_conversations(const std::string& path, int64_t tokens, int64_t conversations,
                         int64_t assistant_tokens) {
  print(util::concat(path, ": ", util::with_commas(conversations), " conversations, ",
                     util::with_commas(tokens), " tokens, ", util::with_commas(assistant_tokens),
                     " of the assistant\n"));
}

/// Prints what preferences became: pairs, or answers with labels.
void print_preferences(const std::string& path, int64_t tokens, int64_t documents, int64_t documents_per_row,
                       int64_t preferred_tokens, int64_t other_tokens) {
  const bool are_pairs = documents_per_row == 2;
  print(util::concat(path, ": ", util::with_commas(documents / documents_per_row),
                     are_pairs ? " pairs, " : " labelled answers, ", util::with_commas(tokens), " tokens, ",
                     util::with_commas(preferred_tokens),
                     are_pairs ? " of chosen and " : " of desirable and ", util::with_commas(other_tokens),
                     are_pairs ? " of rejected answers\n" : " of undesirable answers\n"));
}

void print_conversation_lengths(const data::DocumentLengths& lengths) {
  print(util::concat(lengths.text("conversations"),
                     "\ndata.documents = \"split\" and data.sequence_length = ",
                     std::max<int64_t>(lengths.longest() - 1, 1), " keep each in one row\n"));
}

/// The same of preferences, whose rows have two documents.
void print_preference_lengths(const data::DocumentLengths& lengths) {
  print(util::concat(lengths.text("documents"), "\ndata.sequence_length = ",
                     std::max<int64_t>(2 * (lengths.longest() - 1), 1), " keeps any two in one row\n"));
}

struct ChatArguments {
  bool chat = false, preference = false, adds_tokens = false;
  data::ChatOptions options;

  bool has_conversations() const { return chat || preference; }
};

/// Names of the options that need --chat or --preference.
constexpr std::array<const char*, 4> kChatOptions = {"--chat-template", "--chat-variables", "--spell-markers",
                                                     "--add-special-tokens"};

/// Refuses options of conversations for other texts. CLI11 cannot express that one of two options is needed.
void check_chat_options(const CLI::App& command, const ChatArguments& arguments) {
  if (arguments.has_conversations()) return;
  for (const char* name : kChatOptions) {
    if (command.count(name) == 0) continue;
    util::fail(util::ErrorKind::kUsage, "command line: ", name,
               ": expected --chat or --preference with it; found none; add one of them");
  }
}

void add_chat_options(CLI::App* command, ChatArguments& arguments) {
  command->add_flag(
      "--chat", arguments.chat,
      "The texts are conversations, in JSON or tables, in the form of OpenAI (messages), ShareGPT, Alpaca, or prompt and "
      "completion, which the program recognises. The output's "
      "companion NAME.turns says which tokens the assistant wrote, for data.train_on");
  command
      ->add_flag(
          "--preference", arguments.preference,
          "The texts are preferences, in JSON or tables: pairs of a chosen and a rejected answer to a prompt, or "
          "answers with a label, in the forms of TRL, LLaMA-Factory and axolotl, which the program recognises. A "
          "pair becomes two conversations, the chosen one first. The companion NAME.turns says which tokens are "
          "of chosen answers, and which of rejected")
      ->excludes("--chat");
  command
      ->add_option("--chat-template", arguments.options.chat_template,
                   "Chat template: a file of Jinja, a tokenizer_config.json, a folder, or one of " +
                       util::join(data::chat_template_presets(), ", ") +
                       " (default: that of the tokenizer's folder)")
      ->check(cli::not_empty());
  command
      ->add_option("--chat-variables", arguments.options.chat_variables,
                   "JSON object of more variables for the template, such as '{\"enable_thinking\": false}'")
      ->check(cli::not_empty());
  command->add_flag(
      "--spell-markers", arguments.options.spell_markers,
      "Spell markers of the template, such as <|im_start|>, that the tokenizer has no token for as text, "
      "for models that were trained so (OLMo 2); without it they are an error (exit code 3)");
  command
      ->add_flag(
          "--add-special-tokens", arguments.adds_tokens,
          "Add markers of the template that the tokenizer has no token for to a copy of its tokenizer.json, in the "
          "folder NAME.tokenizer beside the output NAME")
      ->excludes("--spell-markers");
}

/// Replaces the tokenizer by a copy that has the markers of the chat template, unless it has them.
void add_special_tokens(const data::ChatOptions& chat, data::TokenizeOptions& options) {
  const std::string folder = options.output + ".tokenizer";
  const std::vector<data::AddedMarker> added = data::add_markers(chat, options.tokenizer, folder);
  if (added.empty()) {
    util::log_info("the tokenizer has all markers of the chat template; nothing was added");
    return;
  }
  options.tokenizer = folder;
  std::vector<std::string> names;
  for (const data::AddedMarker& marker : added)
    names.push_back(util::concat(marker.text, " (", marker.id, ")"));
  util::log_info(util::concat("added ", util::join(names, ", "), "; data.tokenizer = \"", folder,
                              "\" has them, for a model with model.vocab_size of at least ",
                              data::make_tokenizer(folder)->vocab_size()));
}

}  // namespace

void add_tokenize(CLI::App& app, Command& run) {
  struct Arguments {
    data::TokenizeOptions options;
    std::string format;
    ChatArguments chat;
  };
  auto arguments = std::make_shared<Arguments>();
  data::TokenizeOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand("tokenize", "Turn texts into a token file");
  command
      ->add_option(
          "TEXT", options.texts,
          "Texts, joined in the order given: files, patterns such as 'a/*.txt', folders, - for standard input. "
          "Each file is a document; in .jsonl, .ndjson and .parquet files each row is one. Files may be "
          "compressed, .gz or .zst")
      ->required();
  command->add_option("--output", options.output, "Token file to write")->required();
  command->add_option("--tokenizer", options.tokenizer, data::kTokenizerChoices)->capture_default_str();
  command
      ->add_option("--format", arguments->format,
                   format_names() + " (default: u32 for NAME.u32, u16 for other names)")
      ->check(cli::not_empty());
  add_rows(command, options);
  add_chat_options(command, arguments->chat);
  command->add_option(
      "--document-separator", options.document_separator,
      "What to put after every document: a token's text, eos (the tokenizer's own), id:N (any id), "
      "text:TEXT (tokenized; \\n is a line end), or none (default: eos where the tokenizer has "
      "one; bytes has none)");
  command->add_option(
      "--document-start", options.document_start,
      "What to put before every document, in the same forms, bos for the tokenizer's own (default: "
      "what the tokenizer's files put before texts, often bos or nothing)");
  command->add_flag(
      "--split-special-tokens", options.split_special_tokens,
      "Treat the name of a special token in a document, such as <|endoftext|>, as text (by default "
      "it becomes that token, as in Hugging Face's tokenizers)");
  CLI::Option* validation =
      command
          ->add_option("--validation-output", options.validation_output, "Token file for the validation part")
          ->check(cli::not_empty());
  command
      ->add_option("--validation-fraction", options.validation_fraction,
                   "Share of the texts that goes to --validation-output")
      ->capture_default_str()
      ->needs(validation);
  command
      ->add_option(
          "--validation-split", options.validation_split,
          "What validation takes: the end of each text (end), or whole documents chosen by a hash of their content "
          "(documents). Default: documents if there are rows, compressed files or standard input, end otherwise")
      ->needs(validation)
      ->check(cli::not_empty());
  command->add_option("--seed", options.seed, "Seed of the choice of documents for validation")
      ->capture_default_str()
      ->needs(validation);
  add_threads(command, options.threads, "Threads; the output is the same for any number");
  command->callback([arguments, command, &run] {
    run = [arguments, command] {
      check_chat_options(*command, arguments->chat);
      data::TokenizeOptions& options = arguments->options;
      options.format = optional_format(arguments->format);
      util::ByteProgressBar bar(util::progress_on_stderr());
      options.progress = [&bar](std::string_view phase, int64_t done, int64_t total) {
        bar.show(phase, done, total);
      };
      data::ChatOptions& chat = arguments->chat.options;
      chat.threads = options.threads;
      chat.begin_of_text = options.document_start != "none";
      if (arguments->chat.adds_tokens) add_special_tokens(chat, options);
      if (arguments->chat.has_conversations()) {
        options.make_row_encoder = [&](const data::Tokenizer& tokenizer) {
          return arguments->chat.preference
                     ? data::make_preference_encoder(chat, tokenizer, options.tokenizer)
                     : data::make_chat_encoder(chat, tokenizer, options.tokenizer);
        };
      }
      data::TokenizeReport report = data::tokenize(options);
      bar.clear();
      warn_of(report.bad_rows);
      if (!report.warning.empty()) util::log_warning(cli::with_flags(report.warning));
      if (!report.note.empty()) util::log_info(cli::with_flags(report.note));
      if (arguments->chat.preference) {
        print_preferences(options.output, report.tokens, report.documents, report.documents_per_row,
                          report.last_turn_tokens, report.assistant_tokens - report.last_turn_tokens);
        if (!options.validation_output.empty()) {
          print_preferences(options.validation_output, report.validation_tokens, report.validation_documents,
                            report.documents_per_row, report.validation_last_turn_tokens,
                            report.validation_assistant_tokens - report.validation_last_turn_tokens);
        }
        print_preference_lengths(report.lengths);
        return;
      }
      if (arguments->chat.chat) {
        print_conversations(options.output, report.tokens, report.documents, report.assistant_tokens);
        if (!options.validation_output.empty()) {
          print_conversations(options.validation_output, report.validation_tokens,
                              report.validation_documents, report.validation_assistant_tokens);
        }
        print_conversation_lengths(report.lengths);
        return;
      }
      bool documents = options.format && data::has_documents(*options.format);
      print_output(options.output, report.tokens, report.documents, documents);
      if (!options.validation_output.empty()) {
        print_output(options.validation_output, report.validation_tokens, report.validation_documents,
                     documents);
      }
      // A text with a part in each output is one document, whose length is plain.
      if (std::max(report.documents, report.validation_documents) < 2) return;
      print(report.lengths.text("documents") + "\n");
    };
  });
}

void add_train_tokenizer(CLI::App& app, Command& run) {
  auto options = std::make_shared<data::TrainTokenizerOptions>();
  CLI::App* command = app.add_subcommand(
      "train-tokenizer", "Make a vocabulary of texts: learnt with SentencePiece, or their characters");
  command->add_option("TEXT", options->texts, "Texts, as for tokenize")->required();
  command
      ->add_option("--output", options->output,
                   "NAME.model to write (NAME.json of characters), for --tokenizer")
      ->required();
  command->add_option("--vocab-size", options->vocab_size, "Number of tokens; not with characters");
  add_rows(command, *options);
  command
      ->add_option("--type", options->model_type,
                   "bpe, unigram, or characters: a tokenizer.json of all that occur")
      ->capture_default_str();
  command->add_option("--max-lines", options->max_lines, "Learn from this many lines, drawn at random")
      ->capture_default_str()
      ->check(cli::at_least(1));
  add_threads(command, options->threads, "Threads");
  command->callback([options, &run] {
    run = [options] {
      util::ByteProgressBar bar(util::progress_on_stderr());
      options->progress = [&bar](std::string_view phase, int64_t done, int64_t total) {
        bar.show(phase, done, total);
      };
      const data::BadRows bad_rows = data::train_tokenizer(*options);
      bar.clear();
      warn_of(bad_rows);
      print(util::concat(options->output, ": ",
                         util::with_commas(data::make_tokenizer(options->output)->vocab_size()),
                         " tokens\n"));
    };
  });
}

void add_inspect(CLI::App& app, Command& run) {
  struct Arguments {
    data::InspectOptions options;
    std::string input_format;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  data::InspectOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand("inspect", "Show the contents of token files");
  command->add_option("FILE", options.files, "Token files, read as if joined")->required();
  command->add_option("--vocab-size", options.vocab_size, "Refuse ids of this size or larger (exit code 3)")
      ->check(cli::at_least(1));
  command
      ->add_option("--sequence-length", options.sequence_length,
                   "Tokens per sample, to report the number of samples")
      ->capture_default_str()
      ->check(cli::at_least(1));
  command->add_option("--tokenizer", options.tokenizer, "Show the beginning as text")->capture_default_str();
  add_input_format(command, arguments->input_format);
  command->add_flag("--json", arguments->json, "Print a JSON object");
  command->callback([arguments, &run] {
    run = [arguments] {
      data::InspectOptions& options = arguments->options;
      options.format = optional_format(arguments->input_format);
      data::TokenStatistics statistics = data::inspect(options);
      print(arguments->json ? data::to_json(statistics) : data::to_text(statistics));
      // The statistics are printed first, even if an id outside the vocabulary is then an error.
      if (statistics.ids_outside_vocabulary > 0) {
        data::check_all_ids(data::TokenFiles(options.files, options.format), options.vocab_size);
      }
    };
  });
}

void add_convert(CLI::App& app, Command& run) {
  struct Arguments {
    data::ConvertOptions options;
    std::string format, input_format;
  };
  auto arguments = std::make_shared<Arguments>();
  data::ConvertOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand("convert", "Write token files in another format");
  command->add_option("FILE", options.inputs, "Token files, joined in the order given")->required();
  command->add_option("--output", options.output, "Token file to write")->required();
  command->add_option("--format", arguments->format, format_names())->required();
  command->add_option("--document-separator", options.document_separator,
                      "Id that ends a document, for input formats that do not record documents");
  add_input_format(command, arguments->input_format);
  command->callback([arguments, &run] {
    run = [arguments] {
      data::ConvertOptions& options = arguments->options;
      options.format = data::token_format(arguments->format);
      options.input_format = optional_format(arguments->input_format);
      data::ConvertReport report = data::convert(options);
      print_output(options.output, report.tokens, report.documents, data::has_documents(options.format));
    };
  });
}

void add_decode(CLI::App& app, Command& run) {
  struct Arguments {
    std::vector<std::string> files;
    std::string tokenizer = "bytes", input_format;
    int64_t begin = 0, count = -1;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("decode", "Print the text of token files");
  command->add_option("FILE", arguments->files, "Token files, read as if joined")->required();
  command->add_option("--tokenizer", arguments->tokenizer, data::kTokenizerChoices)->capture_default_str();
  command->add_option("--begin", arguments->begin, "First token")
      ->capture_default_str()
      ->check(cli::at_least(0));
  command->add_option("--count", arguments->count, "Maximum number of tokens")->check(cli::at_least(1));
  add_input_format(command, arguments->input_format);
  command->callback([arguments, &run] {
    run = [arguments] {
      auto tokenizer = data::make_tokenizer(arguments->tokenizer);
      data::TokenFiles files(arguments->files, optional_format(arguments->input_format));
      if (arguments->begin >= files.size()) {
        util::fail(util::ErrorKind::kUsage, "--begin must be less than ", files.size(),
                   ", the number of tokens in the files, but is ", arguments->begin);
      }
      int64_t rest = files.size() - arguments->begin;
      int64_t count = arguments->count < 0 ? rest : std::min(arguments->count, rest);
      data::decode(files, *tokenizer, arguments->begin, count, print);
    };
  });
}

}  // namespace fsdp::apps
