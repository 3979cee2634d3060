// fsdp-data: tokenizes text, and converts, inspects and decodes token files. Results go to stdout, messages
// to stderr.

#include <CLI/CLI.hpp>

#include "data_commands.h"
#include "util/error.h"

int main(int argc, char** argv) {
  CLI::App app("Tokenizes text for fsdp-train, and converts, inspects and decodes token files.", "fsdp-data");
  app.require_subcommand(1);
  app.footer(R"(Examples:
  fsdp-data tokenize book.txt --output train.bin --validation-output validation.bin
  fsdp-data tokenize 'web/*.jsonl' --tokenizer gpt2/ --output train.bin
  zcat dump.jsonl.gz | fsdp-data tokenize - --json-lines --tokenizer llama3/tokenizer.json --output train.u32
  fsdp-data train-tokenizer book.txt --vocab-size 8000 --output book.model
  fsdp-data inspect train.bin --tokenizer gpt2/
  fsdp-data convert corpus.bin --format llm.c-u16 --output corpus.llmc.bin
  fsdp-data decode train.bin --tokenizer gpt2/ --count 100)");

  fsdp::apps::Command run;
  fsdp::apps::add_tokenize(app, run);
  fsdp::apps::add_train_tokenizer(app, run);
  fsdp::apps::add_inspect(app, run);
  fsdp::apps::add_convert(app, run);
  fsdp::apps::add_decode(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(fsdp::util::ErrorKind::kUsage);
  }
  return fsdp::util::run_guarded([&run] {
    run();
    return 0;
  });
}
