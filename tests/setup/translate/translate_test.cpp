#include "setup/translate/translate.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "setup/config/config_text.h"
#include "setup/config/print.h"
#include "support/run_program.h"
#include "support/source_folder.h"

namespace fsdp::config {
namespace {

Translation of(const std::string& name) {
  return translated(testing::source_folder() + "/tests/setup/translate/foreign/" + name);
}

Translation of_text(const std::string& name, const std::string& text) {
  const testing::TemporaryFolder folder;
  return translated(folder.write(name, text));
}

/// Expects the lines, whatever their comments and the spaces before these.
void expect_lines(const Translation& translation, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const size_t at = translation.toml.find("\n" + line + "  ");
    EXPECT_NE(at, std::string::npos) << line << "\nin: " << translation.toml;
  }
}

/// Reads the config as the checker does where the model is there; what it holds of [model] is a stand-in.
Config checked(const Translation& translation, const std::vector<std::string>& model) {
  return parse_config(translation.toml, "c.toml", model);
}
const std::vector<std::string> kNoModel = {"model.init_from=", "model.max_position_embeddings=8192"};

TEST(Translate, KeepsWhatAxolotlsConfigSays) {
  const Translation axolotl = of("axolotl.yml");
  EXPECT_EQ(axolotl.form, "a config of axolotl (YAML)");
  expect_lines(axolotl, {"output_dir = \"./outputs/tiny\"",
                         "seed = 42",
                         "init_from = \"models/Tiny-Llama\"",
                         "rank = 16",
                         "alpha = 32.0",
                         "targets = [\"*q_proj\", \"*v_proj\"]",
                         "quantize = \"nf4\"",
                         "train = [\"data/chats.train.u32\"]",
                         "validation = [\"data/chats.validation.u32\"]",
                         "tokenizer = \"models/Tiny-Llama/tokenizer.json\"",
                         "sequence_length = 512",
                         "micro_batch_size = 3",
                         "documents = \"mask\"",
                         "train_on = \"assistant\"",
                         "epochs = 2.0",
                         "gradient_accumulation_steps = 5",
                         "interval_steps = 25",
                         "patience = 4",
                         "name = \"adamw\"",
                         "lr = 3e-5",
                         "betas = [0.9, 0.98]",
                         "weight_decay = 0.0",
                         "name = \"cosine\"",
                         "warmup_ratio = 0.1",
                         "min_lr_ratio = 0.1",
                         "strategy = \"shard_grad_op\"",
                         "param_storage = \"bfloat16\"",
                         "cpu_offload = true",
                         "param_dtype = \"bfloat16\"",
                         "mode = \"full\""});
  const Config config = checked(axolotl, kNoModel);
  EXPECT_EQ(config.training.gradient_accumulation_steps, 5);
}

TEST(Translate, ListsWhatIsLeftOutWithTheReason) {
  const Translation axolotl = of("axolotl.yml");
  EXPECT_EQ(axolotl.left_out,
            (std::vector<std::string>{"evals_per_epoch", "an_unheard_of_name", "special_tokens"}));
  expect_in(axolotl.toml, "# - an_unheard_of_name: there is no key with this meaning in fsdp-train\n");
  expect_in(axolotl.toml,
            "# - special_tokens: fsdp-data tokenize --chat --add-special-tokens adds the markers");
  expect_in(axolotl.toml, "# - evals_per_epoch: write evaluation.interval_steps, which counts steps");
  expect_in(axolotl.toml, "#   hf download someone/Tiny-Llama --local-dir models/Tiny-Llama\n");
  expect_in(axolotl.toml, "--validation-output data/chats.validation.u32 --validation-fraction 0.03\n");
  expect_in(axolotl.toml, "# - the texts to tokenize are those of datasets: someone/questions\n");
  expect_in(axolotl.toml, "are not paged here, unlike those of paged_adamw_8bit");
  expect_in(axolotl.toml, "state_dtype = \"int8\"");
  expect_in(axolotl.toml, "# Off in the other program, or not needed here: strict");
}

TEST(Translate, KeepsWhatTorchtitansConfigSays) {
  const Translation torchtitan = of("torchtitan.toml");
  EXPECT_EQ(torchtitan.form, "a config of torchtitan (TOML)");
  expect_lines(torchtitan, {"output_dir = \"outputs/big\"",
                            "preset = \"llama3-8b\"",
                            "tokenizer = \"assets/Llama-3-8B\"",
                            "sequence_length = 4096",
                            "micro_batch_size = 2",
                            "steps = 500",
                            "global_batch_size = 64",
                            "max_grad_norm = 0.5",
                            "float8 = \"tensorwise\"",
                            "name = \"adamw\"",
                            "lr = 6e-4",
                            "betas = [0.8, 0.95]",
                            "name = \"wsd\"",
                            "warmup_steps = 50",
                            "decay_steps = 100",
                            "min_lr_ratio = 0.1",
                            "strategy = \"hybrid_shard\"",
                            "mode = \"full\"",
                            "dcn = 2",
                            "data = 4",
                            "model = 2",
                            "interval_steps = 100",
                            "asynchronous = true"});
  EXPECT_EQ(torchtitan.left_out, (std::vector<std::string>{"parallelism.pipeline_parallel_degree",
                                                           "compile.enable", "validation.freq"}));
  checked(torchtitan, {});
}

TEST(Translate, KeepsWhatLlamaFactorysConfigSays) {
  const Translation factory = of("llama_factory.yaml");
  EXPECT_EQ(factory.form, "a config of LLaMA-Factory (YAML)");
  expect_lines(factory, {"init_from = \"models/of-mine/Qwen3\"", "rank = 4", "alpha = 8.0",
                         "targets = [\"*\"]", "quantize = \"int8\"", "sequence_length = 700",
                         "documents = \"split\"", "strategy = \"full_shard\"", "param_dtype = \"float16\"",
                         "interval_steps = 500", "tensorboard = true", "warmup_ratio = 0.1"});
  expect_in(factory.toml, "--validation-fraction 0.1\n");
  EXPECT_EQ(factory.left_out, (std::vector<std::string>{"template"}));
  checked(factory, kNoModel);
}

TEST(Translate, ReadsTrainingArgumentsAsTransformersWritesThem) {
  const char* chosen = std::getenv("FSDP_TEST_PYTHON");
  const std::string python = chosen == nullptr ? "python3" : chosen;
  const testing::TemporaryFolder folder;
  const std::string path = (folder / "arguments.json").string();
  const auto result = testing::run(
      {"/usr/bin/env", python, "-c",
       "import sys\n"
       "from transformers import TrainingArguments\n"
       "a = TrainingArguments(output_dir='mine', per_device_train_batch_size=6, learning_rate=7e-5, max_steps=90,\n"
       "    lr_scheduler_type='cosine_with_min_lr', lr_scheduler_kwargs={'min_lr_rate': 0.25}, warmup_steps=9,\n"
       "    adam_beta2=0.97, save_steps=30, save_total_limit=2, gradient_checkpointing=True, seed=5, optim='lion_8bit',\n"
       "    weight_decay=0.02, eval_strategy='steps', eval_steps=15, logging_steps=3, neftune_noise_alpha=5)\n"
       "open(sys.argv[1], 'w').write(a.to_json_string())\n",
       path},
      {.timeout_seconds = 120});
  if (result.exit_code != 0)
    GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has transformers and torch";
  const Translation arguments = translated(path);
  EXPECT_EQ(arguments.form, "a config of Hugging Face's Trainer (JSON)");
  expect_lines(arguments,
               {"output_dir = \"mine\"", "seed = 5", "micro_batch_size = 6", "steps = 90", "name = \"lion\"",
                "lr = 7e-5", "betas = [0.9, 0.97]", "weight_decay = 0.02", "state_dtype = \"int8\"",
                "name = \"cosine\"", "warmup_steps = 9", "min_lr_ratio = 0.25", "mode = \"full\"",
                "interval_steps = 30", "keep_last = 2", "interval_steps = 15", "interval_steps = 3"});
  EXPECT_EQ(arguments.left_out,
            (std::vector<std::string>{"neftune_noise_alpha", "per_device_eval_batch_size"}));
  checked(arguments, kNoModel);
}

TEST(Translate, ConvertsSingleValues) {
  const std::string base = "base_model: ./m\nsequence_len: 64\n";
  const auto with = [&](const std::string& line) { return of_text("a.yml", base + line + "\n"); };
  expect_lines(with("fsdp: [full_shard, auto_wrap, offload]"),
               {"strategy = \"full_shard\"", "cpu_offload = true"});
  expect_lines(with("fsdp_config:\n  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n"
                    "  fsdp_sharding_strategy: SHARD_GRAD_OP"),
               {"wrap_stages = [\"block\"]", "strategy = \"shard_grad_op\""});
  expect_lines(with("deepspeed: {zero_optimization: {stage: 3, offload_optimizer: {device: cpu}}}"),
               {"strategy = \"full_shard\"", "cpu_offload = true"});
  expect_lines(with("deepspeed: {zero_optimization: {stage: 3, zero_quantized_weights: true, "
                    "zero_quantized_gradients: true, zero_hpz_partition_size: 1}}"),
               {"strategy = \"full_shard\"", "gather_dtype = \"int8\"", "reduce_dtype = \"int4\""});
  expect_lines(with("adapter: lora\nlora_target_linear: true"), {"rank = 8", "targets = [\"*\"]"});
  expect_lines(with("bf16: false\nfp16: true"), {"param_dtype = \"float16\""});
  EXPECT_EQ(with("bf16: false").toml.find("param_dtype"), std::string::npos);
  expect_lines(with("gradient_checkpointing: offload"), {"mode = \"offload\"", "memory_budget = 0.0"});
  expect_lines(with("gradient_checkpointing: true\nactivation_offloading: true"),
               {"mode = \"offload\"", "memory_budget = 0.0"});
  expect_lines(with("activation_offloading: true\ngradient_checkpointing: true"),
               {"mode = \"offload\"", "memory_budget = 0.0"});
  expect_lines(with("optimizer: muon"), {"name = \"muon\"", "momentum = 0.95"});
  expect_lines(with("max_steps: 12\nnum_epochs: 3"), {"steps = 12"});
  EXPECT_EQ(with("max_steps: 12\nnum_epochs: 3").toml.find("\nepochs = "), std::string::npos);
  EXPECT_EQ(with("lora_r: 8").left_out, std::vector<std::string>{"lora_r"});
  EXPECT_EQ(with("adapter: lora\nlora_target_modules: 'layers.[0-3].(q|v)_proj'").left_out,
            std::vector<std::string>{"lora_target_modules"});
  EXPECT_EQ(with("optimizer: shampoo").left_out, std::vector<std::string>{"optimizer"});
  EXPECT_EQ(with("learning_rate: fast").left_out, std::vector<std::string>{"learning_rate"});
  EXPECT_TRUE(with("wandb_project:\nwandb_entity: ''").left_out.empty());
}

TEST(Translate, KeepsAxolotlsPreferences) {
  const std::string base =
      "base_model: ./m\nsequence_len: 512\nmicro_batch_size: 2\nlearning_rate: 1e-5\ntrain_on_inputs: false\n"
      "sample_packing: false\ndatasets:\n  - path: pairs.jsonl\n    type: chatml.intel\n";
  const auto with = [&](const std::string& lines) { return of_text("a.yml", base + lines); };
  const Translation dpo = with("rl: dpo\nrl_beta: 0.2\ndpo_norm_loss: true\nadapter: lora\nlora_r: 4\n");
  expect_lines(dpo, {"objective = \"dpo\"", "beta = 0.2", "length_normalised = true",
                     "sequence_length = 1024", "train = [\"data/preferences.train.u32\"]", "rank = 4"});
  expect_in(dpo.toml, "#   fsdp-data tokenize preferences.jsonl --preference --tokenizer ");
  EXPECT_TRUE(dpo.left_out.empty()) << dpo.toml;
  const Config config = checked(dpo, {"model.hidden_size=256", "model.max_position_embeddings=8192"});
  EXPECT_EQ(config.data.documents, data::DocumentTreatment::kJoin);
  EXPECT_EQ(config.data.train_on, data::TrainOn::kAll);
  expect_lines(with("rl: ipo\n"), {"objective = \"ipo\""});
  expect_lines(with("rl: orpo\norpo_alpha: 0.3\n"), {"objective = \"orpo\"", "beta = 0.3"});
  expect_lines(
      with("rl: kto\nkto_desirable_weight: 0.2\nkto_undesirable_weight: 1.5\n"),
      {"objective = \"kto\"", "desirable_weight = 0.2", "undesirable_weight = 1.5", "exchanged_rows = 2"});
  // Its trainer adds a cross entropy to SimPO unless its weight is 0.
  EXPECT_TRUE(with("rl: simpo\nsimpo_gamma: 1.5\ncpo_alpha: 0\n").left_out.empty());
  const Translation simpo = with("rl: simpo\nsimpo_gamma: 1.5\n");
  expect_lines(simpo, {"objective = \"simpo\"", "simpo_gamma = 1.5"});
  EXPECT_EQ(simpo.left_out, std::vector<std::string>{"cpo_alpha"});
  EXPECT_EQ(with("rl: dpo\nrpo_alpha: 1\n").left_out, std::vector<std::string>{"rpo_alpha"});
}

TEST(Translate, KeepsLlamaFactorysPreferences) {
  const std::string base =
      "model_name_or_path: ./m\nfinetuning_type: full\ntemplate: qwen\ncutoff_len: 700\ndataset: dpo_en_demo\n"
      "per_device_train_batch_size: 2\n";
  const auto with = [&](const std::string& lines) { return of_text("a.yaml", base + lines); };
  const std::vector<std::string> template_only = {"template"};
  const Translation dpo =
      with("stage: dpo\npref_beta: 0.2\npref_loss: sigmoid\npref_ftx: 0.0\nref_model: ./r\n");
  expect_lines(dpo,
               {"objective = \"dpo\"", "beta = 0.2", "reference_model = \"./r\"", "sequence_length = 1400"});
  EXPECT_EQ(dpo.left_out, template_only);
  for (const char* loss : {"hinge", "ipo", "orpo", "simpo"}) {
    const Translation other = with(concat("stage: dpo\npref_loss: ", loss, "\n"));
    expect_lines(other, {concat("objective = \"", loss, "\"")});
    EXPECT_EQ(other.left_out, template_only) << other.toml;
  }
  expect_lines(with("stage: dpo\n"), {"objective = \"dpo\""});
  expect_lines(with("stage: dpo\ndpo_label_smoothing: 0.1\n"), {"label_smoothing = 0.1"});
  expect_lines(with("stage: kto\nkto_chosen_weight: 1.5\nkto_rejected_weight: 0.5\n"),
               {"objective = \"kto\"", "desirable_weight = 1.5", "undesirable_weight = 0.5"});
  EXPECT_EQ(with("stage: dpo\npref_ftx: 0.5\n").left_out, (std::vector<std::string>{"template", "pref_ftx"}));
  expect_in(usage_error_of([&] { with("stage: dpo\npref_loss: kto_pair\n"); }),
            "pref_loss must be a loss of training.objective for a translation, but is kto_pair");
}

TEST(Translate, KeepsTrlsPreferences) {
  const std::string base = "model_name_or_path: ./m\nper_device_train_batch_size: 4\nmax_length: 512\n";
  const auto with = [&](const std::string& lines) { return of_text("a.yaml", base + lines); };
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"loss_type: sigmoid\nbeta: 0.3\n", {"objective = \"dpo\"", "beta = 0.3", "lr = 1e-6"}},
      {"loss_type: [sigmoid]\nprecompute_ref_log_probs: true\n",
       {"objective = \"dpo\"", "reference = \"stored\""}},
      {"loss_type: sigmoid_norm\n", {"objective = \"dpo\"", "length_normalised = true"}},
      {"loss_type: robust\nlabel_smoothing: 0.2\n", {"objective = \"robust\"", "label_smoothing = 0.2"}},
      {"loss_type: exo_pair\n", {"objective = \"exo_pair\"", "label_smoothing = 0.001"}},
      {"loss_type: apo_down\n", {"objective = \"apo_down\""}},
      {"loss_type: kto\n", {"objective = \"kto\"", "exchanged_rows = 4"}},
      {"desirable_weight: 1.5\nundesirable_weight: 0.5\n", {"objective = \"kto\"", "desirable_weight = 1.5"}},
      {"loss_type: sigmoid\ncpo_alpha: 0.5\n", {"objective = \"cpo\"", "cpo_alpha = 0.5"}},
      {"loss_type: simpo\ncpo_alpha: 0.0\nsimpo_gamma: 1.0\n",
       {"objective = \"simpo\"", "simpo_gamma = 1.0"}},
      {"loss_type: orpo\nbeta: 0.2\n", {"objective = \"orpo\"", "beta = 0.2"}}};
  for (const auto& [lines, expected] : cases) {
    SCOPED_TRACE(lines);
    const Translation translation = with(lines);
    expect_lines(translation, expected);
    expect_lines(translation, {"sequence_length = 1024"});
    EXPECT_TRUE(translation.left_out.empty()) << translation.toml;
  }
  const auto refused = [&](const std::string& lines, const std::string& part) {
    expect_in(usage_error_of([&] { with(lines); }), part);
  };
  refused("loss_type: sppo_hard\n", "but is sppo_hard");
  refused("loss_type: [sigmoid, sft]\n", "but is sigmoid with sft");
  refused("loss_type: hinge\ncpo_alpha: 1.0\n", "but is hinge");
  refused("beta: 0.1\n", "beta must come with loss_type for a translation");
  EXPECT_EQ(with("loss_type: sigmoid\nsync_ref_model: true\n").left_out,
            std::vector<std::string>{"sync_ref_model"});
  // Losses of texts are none of preferences.
  EXPECT_EQ(with("loss_type: nll\nlabel_smoothing: 0.1\n").toml.find("objective"), std::string::npos);
  expect_lines(with("loss_type: nll\nlabel_smoothing: 0.1\n"), {"label_smoothing = 0.1"});
}

TEST(Translate, ReadsPreferencesAsTrlWritesThem) {
  const char* chosen = std::getenv("FSDP_TEST_PYTHON");
  const std::string python = chosen == nullptr ? "python3" : chosen;
  const testing::TemporaryFolder folder;
  const auto result = testing::run(
      {"/usr/bin/env", python, "-c",
       "import sys\n"
       "from trl import DPOConfig, KTOConfig\n"
       "from trl.experimental.cpo import CPOConfig\n"
       "common = dict(output_dir='mine', use_cpu=True, per_device_train_batch_size=6, max_length=300, beta=0.3)\n"
       "configs = dict(dpo=DPOConfig(loss_type=['ipo'], precompute_ref_log_probs=True, **common),\n"
       "    kto=KTOConfig(desirable_weight=1.5, **common),\n"
       "    simpo=CPOConfig(loss_type='simpo', cpo_alpha=0.0, simpo_gamma=0.9, **common))\n"
       "for name, config in configs.items():\n"
       "    open(f'{sys.argv[1]}/{name}.json', 'w').write(config.to_json_string())\n",
       folder.path().string()},
      {.timeout_seconds = 120});
  if (result.exit_code != 0) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has trl";
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"dpo", {"objective = \"ipo\"", "reference = \"stored\""}},
      {"kto", {"objective = \"kto\"", "desirable_weight = 1.5", "exchanged_rows = 6"}},
      {"simpo", {"objective = \"simpo\"", "simpo_gamma = 0.9"}}};
  for (const auto& [name, expected] : cases) {
    SCOPED_TRACE(name);
    const Translation translation = translated(folder / (name + ".json"));
    expect_lines(translation, expected);
    expect_lines(translation, {"beta = 0.3", "sequence_length = 600", "micro_batch_size = 6", "lr = 1e-6"});
    EXPECT_EQ(translation.left_out, std::vector<std::string>{"per_device_eval_batch_size"})
        << translation.toml;
    checked(translation, {"model.hidden_size=256", "model.max_position_embeddings=8192"});
  }
}

TEST(Translate, RefusesFilesOfNoKnownForm) {
  const auto error = [](const std::string& name, const std::string& text) {
    return usage_error_of([&] { of_text(name, text); });
  };
  expect_in(error("a.yml", "a: 1\n"),
            "a.yml: expected a YAML of axolotl or LLaMA-Factory, a TOML of torchtitan");
  expect_in(error("a.json", "{\"learning_rate\": "), "a.json: is not valid JSON");
  expect_in(error("a.py", "x = 1\n"), "found a program, as torchtitan's configs are since 2026");
  expect_in(error("a.yml", "base_model: m\nx: &a 1\n"), "a.yml:2: not read here: a value that begins with &");
  expect_in(error("a.yml", "base_model: m\nrl: grpo\n"),
            "rl must be off or a kind of preference tuning for a translation, but is grpo");
  expect_in(error("a.yml", "base_model: m\nreward_model: true\n"), "reward_model must be off or a kind of");
  expect_in(error("a.yml", "template: x\nstage: ppo\n"), "stage must be off or a kind of preference tuning");
}

TEST(Translate, WritesNoTextOfTheFileOutsideOfComments) {
  const Translation translation = of_text(
      "a.yml", "base_model: \"m\\n[run]\\nname = 1\"\n\"x\\n[run]\\ny\": \"\\e[2J\"\nsequence_len: 64\n");
  EXPECT_EQ(translation.toml.find("\n[run]\nname = 1"), std::string::npos) << translation.toml;
  EXPECT_EQ(translation.toml.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace fsdp::config
