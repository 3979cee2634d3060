#include "config/presets.h"

#include "util/error.h"
#include "util/text.h"

namespace fsdp::config {
namespace {

using Values = std::vector<PresetValue>;

Values operator+(Values values, const Values& more) {
  values.insert(values.end(), more.begin(), more.end());
  return values;
}

Values run_named(const std::string& name) {
  return {{"run.name", util::concat("\"", name, "\"")},
          {"run.output_dir", util::concat("\"checkpoints/", name, "\""),
           "checkpoints, metrics.jsonl and the resolved config"}};
}

/// A llama of 124 million parameters with the tokens of GPT-2.
Values middle_model() {
  return {{"model.architecture", "\"llama\""},
          {"model.vocab_size", "50304", "GPT-2's 50257 tokens, rounded up to a multiple of 64"},
          {"model.hidden_size", "768"},
          {"model.intermediate_size", "2048"},
          {"model.num_hidden_layers", "12"},
          {"model.num_attention_heads", "12"},
          {"model.max_position_embeddings", "1024"},
          {"model.tie_word_embeddings", "true"},
          {"data.train", "[\"data/web.train.bin\"]"},
          {"data.validation", "[\"data/web.validation.bin\"]"},
          {"data.tokenizer", "\"gpt2/tokenizer.json\"", "the path that fsdp-data tokenize was given"},
          {"data.sequence_length", "1024"}};
}

constexpr const char* kMakeData = R"(Make the token files first:

  fsdp-data tokenize 'web/*.jsonl' --tokenizer gpt2/tokenizer.json --output data/web.train.bin \
      --validation-output data/web.validation.bin --validation-fraction 0.001)";

/// Settings of a run of several days beside its model.
Values long_run(const std::string& micro_batch_size, const std::string& accumulation) {
  return {{"data.micro_batch_size", micro_batch_size},
          {"training.steps", "20_000"},
          {"training.gradient_accumulation_steps", accumulation,
           "tokens a step: ranks x this x micro_batch_size x sequence_length; half a million is usual"},
          {"training.skip_nonfinite", "true", "one bad batch does not end a long run"},
          {"evaluation.interval_steps", "500"},
          {"evaluation.max_samples", "512"},
          {"optimizer.name", "\"adamw\""},
          {"optimizer.lr", "6e-4"},
          {"optimizer.betas", "[0.9, 0.95]"},
          {"optimizer.weight_decay", "0.1"},
          {"optimizer.no_decay", "[\"*norm*\"]", "weights of norms are not drawn towards zero"},
          {"lr_scheduler.name", "\"cosine\""},
          {"lr_scheduler.warmup_steps", "700"},
          {"lr_scheduler.min_lr_ratio", "0.1"},
          {"checkpoint.interval_steps", "500", "what a failure can cost, in steps"},
          {"checkpoint.keep_last", "3"},
          {"checkpoint.keep_best", "true"},
          {"checkpoint.asynchronous", "true"},
          {"logging.interval_steps", "10"}};
}

/// A block of middle_model() has 7.1 million parameters.
PresetValue unit_of_a_block() {
  return {
      "fsdp.min_num_params", "5_000_000",
      "a block has 7.1 million parameters and becomes a unit; its feed-forward has 4.7 and stays inside it"};
}

}  // namespace

const std::vector<Preset>& all_presets() {
  static const std::vector<Preset> presets = {
      {.name = "quickstart",
       .about = "a small llama on bytes, some minutes on two CPU cores",
       .text =
           R"(A small llama on Shakespeare: bytes as tokens, 3.3 million parameters, some minutes on two CPU cores.

  fsdp-launch --nproc-per-node 2 -- fsdp-train configs/quickstart.toml)",
       .values =
           run_named("quickstart") +
           Values{{"run.seed", "1234", "the same seed gives the same weights and the same order of samples"},
                  {"model.architecture", "\"llama\""},
                  {"model.vocab_size", "256", "a token is a byte"},
                  {"model.hidden_size", "256"},
                  {"model.intermediate_size", "688"},
                  {"model.num_hidden_layers", "4"},
                  {"model.num_attention_heads", "8"},
                  {"model.max_position_embeddings", "256"},
                  {"data.train", "[\"data/shakespeare.train.bin\"]"},
                  {"data.validation", "[\"data/shakespeare.validation.bin\"]"},
                  {"data.tokenizer", "\"bytes\""},
                  {"data.sequence_length", "256"},
                  {"data.micro_batch_size", "4", "samples of a process in a step: 2 processes see 8"},
                  {"training.steps", "600"},
                  {"training.max_grad_norm", "1.0", "larger gradients are scaled down to this norm"},
                  {"evaluation.max_samples", "128", "enough for a steady figure, and quick"},
                  {"optimizer.name", "\"adamw\""},
                  {"optimizer.lr", "1e-3"},
                  {"optimizer.betas", "[0.9, 0.95]"},
                  {"optimizer.weight_decay", "0.1"},
                  {"lr_scheduler.name", "\"cosine\"", "up for 20 steps, then down to a tenth along a cosine"},
                  {"lr_scheduler.warmup_steps", "20"},
                  {"lr_scheduler.min_lr_ratio", "0.1"},
                  {"fsdp.min_num_params", "600_000",
                   "parts of the model with at least so many parameters of their own become units, which "
                   "are gathered, used and freed one after another. A block here has 790 thousand and "
                   "becomes one; its feed-forward has 528 thousand and stays inside it. The embedding, the "
                   "head and the last norm belong to the unit around everything"},
                  {"checkpoint.interval_steps", "200"},
                  {"checkpoint.keep_last", "3"},
                  {"logging.interval_steps", "20"}}},
      {.name = "pretrain",
       .about = "a model of 124 million parameters from the beginning",
       .text = std::string("Pre-training: a llama of 124 million parameters on texts of "
                           "one's own, from random weights.\n\n") +
               kMakeData +
               "\n\nThen train, one process for each core or GPU of this machine:\n\n"
               "  fsdp-launch --nproc-per-node auto -- fsdp-train configs/pretrain.toml",
       .values = run_named("pretrain") + middle_model() + long_run("4", "16") + Values{unit_of_a_block()}},
      {.name = "finetune",
       .about = "a model of Hugging Face, trained further on texts of one's own",
       .text =
           R"(Fine-tuning: SmolLM2-135M, whose folder of Hugging Face (config.json, tokenizer.json, model.safetensors) lies
in models/SmolLM2-135M. `fsdp-train init finetune --from FOLDER` writes this for another model.

  fsdp-data tokenize notes/*.txt --tokenizer models/SmolLM2-135M/tokenizer.json --output data/notes.train.bin \
      --validation-output data/notes.validation.bin --validation-fraction 0.05
  fsdp-launch --nproc-per-node auto -- fsdp-train configs/finetune.toml
  fsdp-ckpt export checkpoints/finetune/best finetuned)",
       .values =
           run_named("finetune") +
           Values{
               {"model.architecture", "\"llama\""},
               {"model.vocab_size", "49152"},
               {"model.hidden_size", "576"},
               {"model.intermediate_size", "1536"},
               {"model.num_hidden_layers", "30"},
               {"model.num_attention_heads", "9"},
               {"model.num_key_value_heads", "3"},
               {"model.max_position_embeddings", "8192"},
               {"model.rope_theta", "100000.0"},
               {"model.rms_norm_eps", "1e-5"},
               {"model.tie_word_embeddings", "true"},
               {"model.init_from", "\"models/SmolLM2-135M\"", "the weights to begin with"},
               {"data.train", "[\"data/notes.train.bin\"]"},
               {"data.validation", "[\"data/notes.validation.bin\"]"},
               {"data.tokenizer", "\"models/SmolLM2-135M/tokenizer.json\""},
               {"data.sequence_length", "1024"},
               {"data.micro_batch_size", "2"},
               {"training.steps", "1_000"},
               {"training.gradient_accumulation_steps", "4"},
               {"evaluation.interval_steps", "50"},
               {"evaluation.max_samples", "256"},
               {"evaluation.patience", "3",
                "small sets are soon learned by heart: the run ends when that begins"},
               {"optimizer.name", "\"adamw\""},
               {"optimizer.lr", "2e-5", "a tenth of pre-training's or less, so that little is forgotten"},
               {"optimizer.weight_decay", "0.01"},
               {"lr_scheduler.name", "\"linear\""},
               {"lr_scheduler.warmup_steps", "50"},
               {"fsdp.min_num_params", "3_000_000", "a block has 3.5 million parameters and becomes a unit"},
               {"checkpoint.interval_steps", "100"},
               {"checkpoint.keep_last", "2"},
               {"checkpoint.keep_best", "true"},
               {"logging.interval_steps", "10"}}},
      {.name = "low-memory",
       .about = "as little memory a rank as there can be, for more communication and compute",
       .text =
           std::string("Little memory: the model of pretrain.toml with all that saves memory, for more "
                       "communication and compute.\n`fsdp-plan configs/low-memory.toml --world-size 8` "
                       "says what a rank needs; docs/memory.md has the table of what can be\nchanged.\n\n") +
           kMakeData + "\n\n  fsdp-launch --nproc-per-node auto -- fsdp-train configs/low-memory.toml",
       .values =
           run_named("low-memory") + middle_model() + long_run("1", "64") +
           Values{{"fsdp.strategy", "\"full_shard\""},
                  {"fsdp.min_num_params", "2_000_000",
                   "small units need small buffers: the feed-forward of a block (4.7 million parameters) "
                   "and the rest of it (2.4) become units of their own"},
                  {"fsdp.reshard_root_after_forward", "true"},
                  {"fsdp.reshard_last_after_forward", "true"},
                  {"fsdp.forward_prefetch", "\"none\"", "one gathered unit at a time"},
                  {"fsdp.backward_prefetch", "\"none\""},
                  {"mixed_precision.param_dtype", "\"bfloat16\"",
                   "gathered parameters and activations take half the memory; master weights stay float32"},
                  {"activation_checkpointing.mode", "\"full\""},
                  // A copy of the shards while they are written would be memory too.
                  {"checkpoint.asynchronous", "false"}}},
      {.name = "offload",
       .about = "shards, gradients and optimizer in host memory",
       .text =
           std::string("Offload: master weights, gradients and optimizer state lie in host memory, and the "
                       "optimizer computes there;\na device holds gathered units and activations only. On "
                       "the CPU, where both are one, it changes little.\n\n") +
           kMakeData + "\n\n  fsdp-launch --nproc-per-node auto -- fsdp-train configs/offload.toml",
       .values = run_named("offload") + middle_model() + long_run("4", "16") +
                 Values{unit_of_a_block(), {"fsdp.cpu_offload", "true"}, {"fsdp.move_grads_to_cpu", "true"}}},
      {.name = "multi-node",
       .about = "several nodes, sharded over all of them",
       .text =
           std::string(
               R"(Several nodes: the model of pretrain.toml, sharded over all ranks of all nodes. The nodes need the data at the
same path and share run.output_dir. On each node, with its own --node-rank:

  fsdp-launch --nnodes 4 --node-rank 0 --master-addr HOST0 --nproc-per-node 8 --max-restarts 3 -- \
      fsdp-train configs/multi-node.toml

or `sbatch --nodes 4 scripts/launch_slurm.sbatch fsdp-train configs/multi-node.toml`.

)") + kMakeData,
       .values =
           run_named("multi-node") + middle_model() + long_run("4", "4") +
           Values{
               unit_of_a_block(),
               {"mesh.data", "-1"},
               {"comm.timeout_seconds", "300.0", "nodes differ in how long they take to start and to read"},
               {"checkpoint.resume", "\"auto\"", "what starts again goes on from the newest checkpoint"}}},
      {.name = "hsdp",
       .about = "sharded inside groups of processes, replicated over them",
       .text =
           std::string(
               R"(Hybrid sharding: parameters are sharded inside each of mesh.dcn groups of processes, usually a node each, and
replicated over the groups. Only the shards' gradients cross the slow network between them. On each of two nodes:

  fsdp-launch --nnodes 2 --node-rank 0 --master-addr HOST0 --nproc-per-node 8 -- fsdp-train configs/hsdp.toml

)") + kMakeData,
       .values = run_named("hsdp") + middle_model() + long_run("4", "4") +
                 Values{unit_of_a_block(),
                        {"fsdp.strategy", "\"hybrid_shard\""},
                        {"fsdp.replica_check_interval", "1_000"},
                        {"mesh.dcn", "2", "groups, each with a whole model"},
                        {"mesh.data", "-1"},
                        {"comm.timeout_seconds", "300.0",
                         "nodes differ in how long they take to start and to read"}}}};
  return presets;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : all_presets()) names.push_back(preset.name);
  return names;
}

const Preset& find_preset(std::string_view name) {
  for (const Preset& preset : all_presets()) {
    if (preset.name == name) return preset;
  }
  util::fail(util::ErrorKind::kUsage, "expected a preset, one of ", util::join(preset_names(), ", "),
             "; found \"", util::printable(name), "\"");
}

}  // namespace fsdp::config
