// fsdp-data: tokenizes text, converts and inspects token files. Results go to stdout, messages to stderr.

#include <CLI/CLI.hpp>
#include <iostream>

#include "data/convert.h"
#include "data/inspect.h"
#include "data/token_files.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"
#include "util/error.h"
#include "util/text.h"

namespace {

namespace data = fsdp::data;
namespace util = fsdp::util;

void print(const std::string& text) {
  if (!(std::cout << text << std::flush)) {
    util::fail(util::ErrorKind::kIo,
               "cannot write to standard output; check the file or pipe that it leads to");
  }
}

int run_tokenize(const data::TokenizeOptions& options) {
  data::TokenizeReport report = data::tokenize(options);
  print(util::concat(options.output, ": ", util::with_commas(report.tokens), " tokens\n"));
  if (!options.validation_output.empty()) {
    print(util::concat(options.validation_output, ": ", util::with_commas(report.validation_tokens),
                       " tokens\n"));
  }
  return 0;
}

int run_convert(const data::ConvertOptions& options) {
  data::ConvertReport report = data::convert(options);
  std::string documents = data::has_documents(options.format)
                              ? util::with_commas(report.documents) + " documents, "
                              : std::string();
  print(util::concat(options.output, ": ", documents, util::with_commas(report.tokens), " tokens\n"));
  return 0;
}

/// The statistics come first, even when an id outside the vocabulary then makes it an error.
int run_inspect(const data::InspectOptions& options, bool json) {
  data::TokenStatistics statistics = data::inspect(options);
  print(json ? data::to_json(statistics) : data::to_text(statistics));
  if (statistics.ids_outside_vocabulary > 0) {
    data::check_all_ids(data::TokenFiles(options.files, options.format), options.vocab_size);
  }
  return 0;
}

/// A script whose variable is unset should hear of it.
std::string not_empty(const std::string& value) { return value.empty() ? "must not be empty" : ""; }

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Tokenizes text for fsdp-train and inspects token files.", "fsdp-data");
  app.require_subcommand(1);

  data::TokenizeOptions tokenize;
  CLI::App* tokenize_command = app.add_subcommand("tokenize", "Turn texts into a token file");
  tokenize_command->add_option("TEXT", tokenize.texts, "Texts, joined in the order given")->required();
  tokenize_command->add_option("--output", tokenize.output, "Token file to write")->required();
  tokenize_command
      ->add_option("--tokenizer", tokenize.tokenizer, "One of: " + util::join(data::tokenizer_names(), ", "))
      ->capture_default_str();
  CLI::Option* validation = tokenize_command
                                ->add_option("--validation-output", tokenize.validation_output,
                                             "Token file for the end of each text")
                                ->check(not_empty);
  tokenize_command
      ->add_option("--validation-fraction", tokenize.validation_fraction,
                   "Share of each text that goes to --validation-output")
      ->capture_default_str()
      ->needs(validation);

  data::InspectOptions inspect;
  bool json = false;
  CLI::App* inspect_command = app.add_subcommand("inspect", "Show what token files hold");
  inspect_command->add_option("FILE", inspect.files, "Token files, read as if joined")->required();
  inspect_command
      ->add_option("--vocab-size", inspect.vocab_size, "Refuse ids that are not below this (exit code 3)")
      ->check(CLI::PositiveNumber);
  inspect_command
      ->add_option("--sequence-length", inspect.sequence_length, "Tokens a sample, for the number of samples")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  inspect_command->add_flag("--json", json, "Print a JSON object");

  data::ConvertOptions convert;
  std::string format, input_format;
  CLI::App* convert_command = app.add_subcommand("convert", "Write token files in another format");
  convert_command->add_option("FILE", convert.inputs, "Token files, joined in the order given")->required();
  convert_command->add_option("--output", convert.output, "Token file to write")->required();
  convert_command->add_option("--format", format, "One of: " + util::join(data::token_format_names(), ", "))
      ->required();
  convert_command->add_option("--document-separator", convert.document_separator,
                              "Id that ends a document, for inputs whose format keeps no documents");
  for (CLI::App* command : {convert_command, inspect_command}) {
    command->add_option("--input-format", input_format,
                        "Read the files in this format, in place of what their content and name tell");
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(util::ErrorKind::kUsage);
  }
  return util::run_guarded([&] {
    if (!input_format.empty()) inspect.format = convert.input_format = data::token_format(input_format);
    if (tokenize_command->parsed()) return run_tokenize(tokenize);
    if (inspect_command->parsed()) return run_inspect(inspect, json);
    convert.format = data::token_format(format);
    return run_convert(convert);
  });
}
