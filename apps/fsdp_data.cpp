// fsdp-data: tokenizes text, and converts, inspects and decodes token files. Results go to stdout, messages
// to stderr.

#include <CLI/CLI.hpp>

#include "base/cli/program.h"
#include "base/cli/usage_error.h"
#include "base/util/error.h"
#include "data/tokens/lost_pages.h"
#include "data_commands.h"

int main(int argc, char** argv) {
  CLI::App app("Tokenizes text for fsdp-train, and converts, inspects and decodes token files.", "fsdp-data");
  app.require_subcommand(1);
  const fsdp::cli::Page page{
      .name = "fsdp-data",
      .summary = "tokenize text for fsdp-train, and convert, inspect and decode token files",
      .examples = {{"bytes as tokens, with a validation part",
                    "fsdp-data tokenize book.txt --output train.bin --validation-output validation.bin"},
                   {"documents as JSON lines, with GPT-2's tokenizer",
                    "fsdp-data tokenize 'web/*.jsonl' --tokenizer gpt2/ --output train.bin"},
                   {"all tables and compressed JSON lines of a folder",
                    "fsdp-data tokenize dataset/ --text-column content --skip-bad 100 --tokenizer "
                    "llama3/tokenizer.json --output train.u32"},
                   {"conversations, with the chat template of the tokenizer",
                    "fsdp-data tokenize chats.jsonl --chat --tokenizer Qwen3-0.6B/ --output chats.u32"},
                   {"a tokenizer of your own",
                    "fsdp-data train-tokenizer book.txt --vocab-size 8000 --output book.model"},
                   {"the contents of a file", "fsdp-data inspect train.bin --tokenizer gpt2/"},
                   {"", "fsdp-data convert corpus.bin --format llm.c-u16 --output corpus.llmc.bin"},
                   {"", "fsdp-data decode train.bin --tokenizer gpt2/ --count 100"}},
      .words = {}};
  fsdp::apps::Command run;
  fsdp::apps::add_tokenize(app, run);
  fsdp::apps::add_train_tokenizer(app, run);
  fsdp::apps::add_inspect(app, run);
  fsdp::apps::add_convert(app, run);
  fsdp::apps::add_decode(app, run);
  if (const auto code = fsdp::cli::parse(app, page, argc, argv)) return *code;
  fsdp::data::exit_at_lost_pages();
  return fsdp::util::run_guarded([&run] {
    return fsdp::cli::run_command(
        [&run] {
          run();
          return 0;
        },
        {{"model_type", "--type"}});
  });
}
