// fsdp-ckpt: looks at, checks, compares and converts checkpoints.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "base/cli/printable_stream.h"
#include "base/cli/program.h"
#include "base/cli/usage_error.h"
#include "base/util/error.h"
#include "ckpt_commands.h"

int main(int argc, char** argv) {
  using namespace fsdp;
  const cli::PrintableStream printable(std::cout);  // names in checkpoints may come from anyone
  return util::run_guarded([&] {
    CLI::App app("Inspects, verifies, compares and converts checkpoints.", "fsdp-ckpt");
    app.require_subcommand(1);
    const auto commands = apps::add_ckpt_commands(app);
    const cli::Page page{
        .name = "fsdp-ckpt",
        .summary = "inspect, verify, compare and convert checkpoints",
        .examples = {{"the newest checkpoint of a run as one file of weights",
                      "fsdp-ckpt consolidate checkpoints/run weights.safetensors"},
                     {"for transformers' from_pretrained, in bfloat16",
                      "fsdp-ckpt export checkpoints/run exported --dtype bfloat16"},
                     {"the adapters of a run with lora.rank, for PEFT",
                      "fsdp-ckpt export checkpoints/run adapter --adapter"},
                     {"for llama.cpp, in 8 bits, with the tokenizer",
                      "fsdp-ckpt export checkpoints/run model.gguf --format gguf --type q8_0"},
                     {"a Hugging Face model as a checkpoint of weights",
                      "fsdp-ckpt import models/llama checkpoints/llama"},
                     {"for torch.distributed.checkpoint.load(), with the optimizer's state",
                      "fsdp-ckpt export checkpoints/run fsdp2 --format dcp"},
                     {"and a run of PyTorch's FSDP2, to resume it here",
                      "fsdp-ckpt import fsdp2 checkpoints/run/step-00000100 --config config.json"},
                     {"the [model] section of a config that fine-tunes it",
                      "fsdp-ckpt config models/llama >> finetune.toml"},
                     {"the tensors of a checkpoint", "fsdp-ckpt inspect checkpoints/run"},
                     {"check every hash", "fsdp-ckpt verify checkpoints/run/step-00000200"},
                     {"the mean of the last five checkpoints of a run",
                      "fsdp-ckpt average checkpoints/run --last 5 --output averaged"},
                     {"where two differ",
                      "fsdp-ckpt diff checkpoints/run checkpoints/other --tolerance 1e-5"}},
        .words = {}};
    if (const auto code = cli::parse(app, page, argc, argv)) return *code;
    auto chosen = std::find_if(commands.begin(), commands.end(),
                               [](const apps::CkptCommand& command) { return command.parser->parsed(); });
    FSDP_CHECK(chosen != commands.end());
    const int code = cli::run_command(chosen->run, {{"overwrite", "--force"},
                                                    {"full", "--format full"},
                                                    {"adapter", "--adapter"},
                                                    {"merge", "--merge"},
                                                    {"saturate", "--saturate"},
                                                    {"max_file_bytes", "--max-shard-size"},
                                                    {"config", "--config"},
                                                    {"samples_seen", "--samples-seen"},
                                                    {"last", "--last"}});
    // A result that could not be printed (a full disk behind a redirection) is a failure.
    if (!std::cout.flush()) util::fail(util::ErrorKind::kIo, "cannot write to standard output");
    return code;
  });
}
