#include "setup/config/checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "setup/config/config_text.h"

namespace fsdp::config {
namespace {

std::string only_conflict(const Config& config) {
  std::vector<Conflict> conflicts = find_conflicts(config);
  EXPECT_EQ(conflicts.size(), 1u);
  return conflicts.empty() ? "" : conflicts.front().message;
}

std::string world_error(const Config& config, int world_size) {
  return usage_error_of([&] { check_world(config, world_size); });
}

TEST(Conflicts, DefaultsHaveNone) { EXPECT_TRUE(find_conflicts(Config{}).empty()); }

TEST(Conflicts, HeadsDivideTheHiddenSize) {
  Config config;
  config.model.num_attention_heads = config.model.num_key_value_heads = 7;
  EXPECT_EQ(only_conflict(config),
            "model.hidden_size must be a multiple of model.num_attention_heads, but is 256 = 36 "
            "* 7 + 4; change one of the two");
}

TEST(Conflicts, KeyValueHeadsDivideTheHeads) {
  Config config;
  config.model.num_key_value_heads = 3;
  EXPECT_NE(only_conflict(config).find("but 8 = 2 * 3 + 2"), std::string::npos);
  config.model.num_key_value_heads = 16;
  EXPECT_NE(only_conflict(config).find("but 16 > 8"), std::string::npos);
}

TEST(Conflicts, LlamaHeadsHaveAnEvenWidthAndThoseOfGpt2Any) {
  Config config;
  config.model.hidden_size = 24;
  EXPECT_NE(only_conflict(config).find("but is 24 / 8 = 3"), std::string::npos);
  config.model.architecture = "gpt2";
  EXPECT_TRUE(find_conflicts(config).empty());
}

TEST(Conflicts, Float8IsForBfloat16AndSixteens) {
  Config config;
  config.training.float8 = "tensorwise";
  EXPECT_EQ(only_conflict(config),
            "training.float8 requires mixed_precision.param_dtype = \"bfloat16\", in which "
            "everything else is computed, but that is float32; change one of the two");
  config.mixed_precision.param_dtype = "bfloat16";
  EXPECT_TRUE(find_conflicts(config).empty());
  config.data.sequence_length = 250;
  config.data.micro_batch_size = 3;
  EXPECT_NE(only_conflict(config).find(
                "but that is 3 (data.micro_batch_size) * 250 (data.sequence_length) = 750 = 46 * 16 + 14"),
            std::string::npos);
}

TEST(Conflicts, RangesOfTokensAreComputedByOneRankAndWithoutGraphs) {
  Config config;
  config.activation_checkpointing.feed_forward_tokens = 64;
  EXPECT_TRUE(find_conflicts(config).empty());
  for (const auto& change : std::vector<std::function<void(Config&)>>{
           [](Config& changed) { changed.mesh.model = 2; },
           [](Config& changed) { changed.training.cuda_graphs = true; },
           [](Config& changed) { changed.training.reproducible = Reproducible::kWorldSize; }}) {
    Config changed = config;
    change(changed);
    EXPECT_NE(only_conflict(changed).find("activation_checkpointing.feed_forward_tokens"), std::string::npos);
  }
}

TEST(Conflicts, GraphsAreOfWhatIsTheSameInEveryStep) {
  Config config;
  config.training.cuda_graphs = true;
  EXPECT_TRUE(find_conflicts(config).empty());
  const std::vector<std::pair<std::string, std::function<void(Config&)>>> ways = {
      {"activation_checkpointing.mode",
       [](Config& changed) { changed.activation_checkpointing.mode = "full"; }},
      {"mixed_precision.param_dtype", [](Config& changed) { changed.data.documents = "mask"; }},
      {"model.attn_logit_softcapping",
       [](Config& changed) {
         changed.data.documents = "mask";
         changed.mixed_precision.param_dtype = "float16";
         changed.model.attn_logit_softcapping = 50;
       }},
      {"model.hidden_dropout", [](Config& changed) { changed.model.hidden_dropout = 0.1; }},
      {"model.attention_dropout", [](Config& changed) { changed.model.attention_dropout = 0.1; }},
      {"model.embedding_dropout", [](Config& changed) { changed.model.embedding_dropout = 0.1; }},
  };
  for (const auto& [key, change] : ways) {
    Config changed = config;
    change(changed);
    const std::string message = only_conflict(changed);
    EXPECT_EQ(message.find("training.cuda_graphs requires "), 0u) << message;
    EXPECT_NE(message.find(key), std::string::npos) << message;
    EXPECT_NE(message.find("leave "), std::string::npos) << message;
  }
  config.data.documents = "mask";
  config.mixed_precision.param_dtype = "bfloat16";
  EXPECT_TRUE(find_conflicts(config).empty());
}

TEST(Conflicts, ExpertsHaveSizesAndNoFixedNumbersOfTokens) {
  Config config;
  config.model.architecture = "qwen3_moe";
  config.model.num_experts = 8;
  config.model.moe_intermediate_size = 64;
  EXPECT_TRUE(find_conflicts(config).empty());
  const std::vector<std::pair<std::string, std::function<void(Config&)>>> ways = {
      {"model.num_experts must be at least 1 with model.architecture = \"qwen3_moe\", but is 0",
       [](Config& changed) { changed.model.num_experts = 0; }},
      {"model.moe_intermediate_size must be at least 1",
       [](Config& changed) { changed.model.moe_intermediate_size = 0; }},
      {"model.num_experts_per_tok must be at most model.num_experts = 8, but is 9",
       [](Config& changed) { changed.model.num_experts_per_tok = 9; }},
      {"training.cuda_graphs cannot be combined with experts",
       [](Config& changed) { changed.training.cuda_graphs = true; }},
      {"training.float8 cannot be combined with experts",
       [](Config& changed) {
         changed.training.float8 = Float8Recipe::kTensorwise;
         changed.mixed_precision.param_dtype = "bfloat16";
       }},
  };
  for (const auto& [text, change] : ways) {
    Config changed = config;
    change(changed);
    const std::string message = only_conflict(changed);
    EXPECT_EQ(message.find(text), 0u) << message;
  }
}

TEST(Conflicts, AdaptersAreNotCutOverRanksAndNameTheirBase) {
  Config config;
  config.lora.rank = 8;
  EXPECT_TRUE(find_conflicts(config).empty());
  const std::vector<std::pair<std::string, std::function<void(Config&)>>> ways = {
      {"mesh.model", [](Config& changed) { changed.mesh.model = 2; }},
      {"training.cuda_graphs", [](Config& changed) { changed.training.cuda_graphs = true; }},
      {"checkpoint.init_from", [](Config& changed) { changed.checkpoint.init_from = "run"; }},
  };
  for (const auto& [key, change] : ways) {
    Config changed = config;
    change(changed);
    const std::string message = only_conflict(changed);
    EXPECT_EQ(message.find("lora.rank must be 0 with " + key), 0u) << message;
    changed.lora.rank = 0;
    EXPECT_TRUE(find_conflicts(changed).empty()) << key;
  }
}

TEST(Conflicts, SamplesFitThePositions) {
  Config config;
  config.data.sequence_length = 1025;
  EXPECT_EQ(only_conflict(config),
            "data.sequence_length must be at most model.max_position_embeddings = 1024, but is "
            "1025; change one of the two");
}

TEST(Conflicts, TheSeparatorOfDocumentsIsAToken) {
  Config config;
  config.data.document_separator = 256;
  config.data.documents = "mask";
  EXPECT_EQ(only_conflict(config),
            "data.document_separator must be less than model.vocab_size = 256, but is 256, which "
            "occurs in no text; change one of the two");
  config.data.document_separator = 255;
  EXPECT_TRUE(find_conflicts(config).empty());
}

TEST(Conflicts, OnlyTokenFilesKnowTheAssistantsTokens) {
  Config config;
  config.data.train_on = "assistant";
  EXPECT_TRUE(find_conflicts(config).empty());
  config.data.dataset = "rows";
  EXPECT_EQ(
      only_conflict(config),
      "data.train_on requires data.dataset = \"token_files\", whose companions say who wrote the tokens, but "
      "that is \"rows\"; set it to all, and leave targets out in the data set");
}

TEST(Conflicts, BatchesAndRunsStayCountable) {
  Config config;
  config.data.micro_batch_size = 100'000;
  config.model.max_position_embeddings = config.data.sequence_length = 10'001;
  EXPECT_NE(only_conflict(config).find("but is 100000 * 10001;"), std::string::npos);
  config = Config{};
  config.training.steps = 1'000'000'000;
  config.training.gradient_accumulation_steps = 1000;
  EXPECT_NE(only_conflict(config).find("100,000,000,000,000 tokens"), std::string::npos);
}

TEST(Conflicts, GradientsAreClippedByNormOrByValue) {
  Config config;
  config.training.clip_grad_value = 0.5;
  EXPECT_EQ(
      only_conflict(config),
      "training.clip_grad_value must be 0 if training.max_grad_norm is set, but they are 0.5 and 1; leave it "
      "out or set training.max_grad_norm to 0");
  config.training.max_grad_norm = 0;
  EXPECT_TRUE(find_conflicts(config).empty());
}

TEST(Conflicts, TheStagesFitTheRun) {
  Config config;
  config.lr_scheduler.hold_steps = 10;
  config.lr_scheduler.name = "tri_stage";
  EXPECT_NE(only_conflict(config).find("min_lr_ratio must be above 0"), std::string::npos);
  config.lr_scheduler.min_lr_ratio = 0.01;
  config.lr_scheduler.warmup_steps = 50;
  config.lr_scheduler.decay_steps = 140;
  EXPECT_TRUE(find_conflicts(config).empty());
}

TEST(Conflicts, MuonNeedsMomentum) {
  Config config;
  config.optimizer.name = "muon";
  EXPECT_NE(only_conflict(config).find("optimizer.momentum must be above 0"), std::string::npos);
  config.optimizer.momentum = 0.95;
  config.optimizer.nesterov = true;
  EXPECT_TRUE(find_conflicts(config).empty());
}

TEST(Conflicts, AShortTrialNeedsNoOtherSchedule) {
  Config config;
  config.lr_scheduler.name = "wsd";
  config.lr_scheduler.warmup_steps = 700;
  config.lr_scheduler.decay_steps = 1000;
  config.training.steps = 5;
  EXPECT_TRUE(find_conflicts(config).empty());
  config.lr_scheduler.warmup_ratio = 0.03;
  EXPECT_EQ(only_conflict(config),
            "lr_scheduler.warmup_ratio must be 0 if lr_scheduler.warmup_steps is set, but they "
            "are 0.03 and 700; leave one of the two out, or set it to 0");
}

TEST(Conflicts, TheMetricOfTheBestIsOneThatIsReported) {
  Config config;
  config.data.validation = {"validation.bin"};
  config.evaluation.interval_steps = 10;
  config.checkpoint.keep_best = true;
  config.evaluation.best_metric = "validation_perplexity";
  EXPECT_TRUE(find_conflicts(config).empty());
  config.evaluation.best_metric = "validation_accuracy";
  EXPECT_NE(only_conflict(config).find("evaluation.best_metric must be a metric that is reported"),
            std::string::npos);
  config.evaluation.accuracy = true;
  EXPECT_TRUE(find_conflicts(config).empty());
}

TEST(Conflicts, SavesThatFollowEachOtherAreAsynchronous) {
  Config config;
  config.checkpoint.schedule = "continuous";
  EXPECT_EQ(
      only_conflict(config),
      "checkpoint.schedule must be interval or auto without checkpoint.asynchronous, because training would "
      "stand still while one save follows another, but is continuous; change it or set "
      "checkpoint.asynchronous = true");
  config.checkpoint.asynchronous = true;
  EXPECT_TRUE(find_conflicts(config).empty());
}

TEST(Conflicts, AFileForNodeExporterHasItsName) {
  Config config;
  config.logging.metrics_textfile = "node/run.prom";
  EXPECT_TRUE(find_conflicts(config).empty());
  config.logging.metrics_textfile = "run.txt";
  EXPECT_EQ(
      only_conflict(config),
      "logging.metrics_textfile must be a name that ends with .prom, because node_exporter reads no other files, but is "
      "\"run.txt\"; rename it");
}

TEST(Conflicts, TasksAreForRanksThatHaveWholeRowsOfTheirOwn) {
  Config config;
  config.evaluation.tasks = {"t.jsonl"};
  EXPECT_TRUE(find_conflicts(config).empty());
  config.mesh.context = 2;
  EXPECT_NE(only_conflict(config).find("evaluation.tasks must be empty with mesh.context"),
            std::string::npos);
  config.mesh.context = 1;
  config.fsdp.front = Front::kSpmd;
  EXPECT_NE(only_conflict(config).find("evaluation.tasks must be empty with fsdp.front"), std::string::npos);
}

TEST(Conflicts, BatchesByTokensNeedRowsOfDifferentLengthThatFit) {
  Config config;
  config.data.max_tokens = 1024;
  EXPECT_NE(only_conflict(config).find("data.max_tokens requires data.documents = \"split\""),
            std::string::npos);
  config.data.documents = "split";
  config.data.document_separator = 0;
  EXPECT_TRUE(find_conflicts(config).empty());
  config.data.max_tokens = 255;
  EXPECT_NE(only_conflict(config).find("must be at least data.sequence_length = 256"), std::string::npos);
}

TEST(Conflicts, NoMicroStepsNeedAGlobalBatch) {
  Config config;
  config.training.gradient_accumulation_steps = 0;
  EXPECT_NE(only_conflict(config).find("but is 0; set one of the two"), std::string::npos);
  config.training.global_batch_size = 64;
  EXPECT_TRUE(find_conflicts(config).empty());
}

TEST(Conflicts, SequencesThatAreCutHaveOneLengthAndBuiltInAttention) {
  const auto conflict = [](const std::function<void(Config&)>& change) {
    Config config;
    config.mesh.context = 2;
    EXPECT_TRUE(find_conflicts(config).empty());
    change(config);
    return only_conflict(config);
  };
  const auto expect = [](const std::string& found, const std::string& expected) {
    EXPECT_NE(found.find(expected), std::string::npos) << found;
  };
  expect(conflict([](Config& config) { config.model.attention_dropout = 0.1; }),
         "mesh.context must be 1 with dropout of attention weights, which never exist as a whole, but "
         "model.attention_dropout = 0.1; leave one of the two out");
  expect(conflict([](Config& config) { config.training.cuda_graphs = true; }),
         "mesh.context must be 1 with training.cuda_graphs");
  expect(conflict([](Config& config) { config.fsdp.front = "spmd"; }),
         "mesh.context must be 1 with fsdp.front");
  expect(
      conflict([](Config& config) {
        config.data.documents = "split";
        config.data.max_tokens = 512;
      }),
      "mesh.context must be 1 with data.max_tokens, because rows must all have the length that is cut, but that "
      "is 512");
}

TEST(CheckWorld, AsksForSequencesThatDivideIntoChunks) {
  Config config;
  config.mesh = {.dcn = 1, .data = -1, .context = 3};
  EXPECT_EQ(
      world_error(config, 6),
      "data.sequence_length must be a multiple of 2 * mesh.context = 6, because each of 3 processes gets two "
      "chunks of a sequence, but is 256 = 42 * 6 + 4; set it to 252 or 258");
  config.data.sequence_length = 252;
  EXPECT_EQ(check_world(config, 6), (comm::MeshShape{.dcn = 1, .data = 2, .context = 3}));
  config.data.sequence_length = 4;
  EXPECT_NE(world_error(config, 6).find("; set it to 6"), std::string::npos);
}

TEST(CheckWorld, RefusesAttentionThatCutSequencesDoNotKnow) {
  Config config;
  config.mesh = {.dcn = 1, .data = 1, .context = 2};
  config.model.sliding_window = 256;  // as long as a sequence
  check_world(config, 2);
  config.model.sliding_window = 255;
  EXPECT_EQ(
      world_error(config, 2),
      "mesh.context must be 1 with model.sliding_window = 255, which attention over parts of sequences does not "
      "know, but is 2; give the processes to mesh.data");
  config.model.sliding_window = 0;
  config.model.architecture = "gemma2";
  config.model.attn_logit_softcapping = 50;
  EXPECT_NE(world_error(config, 2).find("mesh.context must be 1 with model.attn_logit_softcapping = 50"),
            std::string::npos);
}

TEST(CheckWorld, AsksForTokensOfAProcessThatSuitEightBits) {
  Config config;
  config.mesh = {.dcn = 1, .data = 1, .context = 4};
  config.training.float8 = Float8Recipe::kTensorwise;
  config.mixed_precision.param_dtype = util::FloatType::kBFloat16;
  config.data.sequence_length = 8;
  config.data.micro_batch_size = 6;
  EXPECT_NE(
      world_error(config, 4).find(
          "but that is 6 (data.micro_batch_size) * 8 (data.sequence_length) / 4 (mesh.context) = 12 = 0 * 16 "
          "+ 12; change one of the three"),
      std::string::npos);
}

TEST(CheckWorld, AsksForTheProductOfTheMesh) {
  Config config;
  for (int world : {1, 2, 7}) check_world(config, world);
  config.mesh = {.dcn = 2, .data = -1, .model = 4};
  check_world(config, 16);
  EXPECT_NE(world_error(config, 12).find("12 = 1 x 8 + 4; start a multiple of 8 processes"),
            std::string::npos);
  config.mesh = {.dcn = 2, .data = 3, .model = 1};
  check_world(config, 6);
  EXPECT_NE(world_error(config, 4).find(
                "mesh.dcn 2 x mesh.data 3 x mesh.context 1 x mesh.model 1 = 6, but the run has 4 processes"),
            std::string::npos);
}

TEST(Conflicts, ResultsOfAnyNumberOfRanksExcludeWhatDependsOnIt) {
  Config plain;
  plain.training.reproducible = Reproducible::kWorldSize;
  EXPECT_TRUE(find_conflicts(plain).empty());
  const auto refused = [&](const std::string& key, const std::function<void(Config&)>& change) {
    Config config = plain;
    change(config);
    const std::vector<Conflict> conflicts = find_conflicts(config);
    const auto is_named = [&](const Conflict& conflict) {
      return conflict.keys.front() == key &&
             conflict.message.find("training.reproducible") != std::string::npos;
    };
    EXPECT_TRUE(std::ranges::any_of(conflicts, is_named)) << key;
  };
  refused("model.architecture", [](Config& c) { c.model.architecture = "gpt_neox"; });
  refused("model.architecture", [](Config& c) { c.model.architecture = "gemma2"; });
  refused("model.architecture", [](Config& c) { c.model.architecture = "mixtral"; });
  refused("model.architecture", [](Config& c) { c.model.hidden_act = nn::Activation::kGelu; });
  refused("model.attention_dropout", [](Config& c) { c.model.attention_dropout = 0.1; });
  refused("training.device", [](Config& c) { c.training.device = DeviceChoice::kCuda; });
  refused("training.fused_kernels", [](Config& c) { c.training.fused_kernels = false; });
  refused("training.matmul", [](Config& c) { c.training.matmul = nn::MatmulChoice::kMkl; });
  refused("training.batch_warmup_steps", [](Config& c) { c.training.batch_warmup_steps = 2; });
  refused("training.no_sync", [](Config& c) { c.training.no_sync = true; });
  refused("training.norm_type", [](Config& c) { c.training.norm_type = 1; });
  refused("lora.rank", [](Config& c) { c.lora.rank = 4; });
  refused("evaluation.accuracy", [](Config& c) { c.evaluation.accuracy = true; });
  refused("optimizer.name", [](Config& c) { c.optimizer.name = "lamb"; });
  refused("mixed_precision.param_dtype",
          [](Config& c) { c.mixed_precision.param_dtype = util::FloatType::kFloat16; });
  refused("mixed_precision.reduce_dtype",
          [](Config& c) { c.mixed_precision.reduce_dtype = util::FloatType::kBFloat16; });
  refused("fsdp.hybrid_optimizer",
          [](Config& c) { c.fsdp.hybrid_optimizer = shard::HybridOptimizer::kGlobal; });
  refused("fsdp.gradient_predivide_factor", [](Config& c) { c.fsdp.gradient_predivide_factor = 2; });
  refused("mesh.context", [](Config& c) { c.mesh.context = 2; });
  refused("mesh.model", [](Config& c) { c.mesh.model = 2; });
}

TEST(Conflicts, LocalStepsRequireWholeReplicas) {
  Config plain;
  plain.training.local_steps = 50;
  plain.fsdp.strategy = "hybrid_shard";
  plain.mesh.dcn = 2;
  EXPECT_TRUE(find_conflicts(plain).empty());
  const auto refused = [&](const std::string& key, const std::string& message,
                           const std::function<void(Config&)>& change) {
    Config config = plain;
    change(config);
    const std::vector<Conflict> conflicts = find_conflicts(config);
    ASSERT_EQ(conflicts.size(), 1u) << key;
    EXPECT_EQ(conflicts[0].keys, (std::vector<std::string>{key, "training.local_steps"}));
    expect_in(conflicts[0].message, message);
  };
  refused("mesh.dcn", "mesh.dcn must be the number of replicas, or -1 with training.local_steps = 50",
          [](Config& c) { c.mesh.dcn = 1; });
  refused("fsdp.strategy", "must be \"hybrid_shard\"", [](Config& c) { c.fsdp.strategy = "full_shard"; });
  refused("fsdp.hybrid_optimizer", "must be \"replicated\"",
          [](Config& c) { c.fsdp.hybrid_optimizer = "global"; });
  refused("fsdp.front", "must be \"fully_shard\"", [](Config& c) { c.fsdp.front = "spmd"; });
  refused("fsdp.param_storage", "must be \"float32\"",
          [](Config& c) { c.fsdp.param_storage = c.mixed_precision.param_dtype = "bfloat16"; });
  refused("training.reproducible", "because the result depends on the number of replicas",
          [](Config& c) { c.training.reproducible = Reproducible::kWorldSize; });
  refused("training.objective", "must be one that learns from texts",
          [](Config& c) { c.training.objective = "simpo"; });
  refused("optimizer.ema_decay", "must be 0", [](Config& c) { c.optimizer.ema_decay = 0.9; });
  refused("outer_optimizer.fragments", "must be at most training.local_steps = 50",
          [](Config& c) { c.outer_optimizer.fragments = 51; });
  refused("outer_optimizer.fragment_delay", "must be below training.local_steps = 50",
          [](Config& c) { c.outer_optimizer.fragment_delay = 50; });
}

/// The errors of a config with this objective, whose reference has weights.
std::string objective_error(const std::string& objective, std::vector<std::string> overrides) {
  overrides.push_back("training.objective=" + objective);
  if (objective == "dpo" || objective == "exo_pair" || objective == "kto") {
    overrides.emplace_back("model.init_from=w");
    overrides.emplace_back("model.hidden_size=256");
  }
  return error_of(kTrain, overrides);
}

TEST(PreferenceConflicts, WhatObjectivesOfPreferencesDoNotReadIsRefused) {
  const auto refused = [](const std::string& setting, const std::string& message) {
    expect_in(objective_error("simpo", {setting}),
              message + " with training.objective = \"simpo\"; leave one of the two out");
  };
  refused("data.documents=mask",
          "data.documents has no effect, because answers are read document by document,");
  refused("data.train_on=assistant", "data.train_on has no effect, because answers alone are scored,");
  refused("training.cuda_graphs=true", "training.cuda_graphs needs batches of one shape, and cannot be on");
  refused("fsdp.front=spmd", "fsdp.front must be \"fully_shard\"");
  expect_in(
      objective_error("kto", {"training.reproducible=world_size"}),
      "training.reproducible must be \"run\", because the divergence from the reference is a mean over all "
      "ranks' micro-batches, with training.objective = \"kto\"");
  expect_in(objective_error("simpo", {"data.validation=[\"v\"]", "evaluation.accuracy=true"}),
            "evaluation.accuracy counts tokens of texts, and cannot be on with training.objective");
}

TEST(PreferenceConflicts, ExoNeedsLabelSmoothing) {
  expect_in(objective_error("exo_pair", {}),
            "preference.label_smoothing must be above 0 with training.objective = \"exo_pair\", but is 0");
}

TEST(PreferenceConflicts, AReferenceHasWeights) {
  expect_in(error_of(kTrain, {"training.objective=dpo"}),
            "preference.reference_model must name the weights of the reference, because model.init_from is "
            "empty; set one of the two, or an objective without a reference: orpo, simpo or cpo");
  for (const char* setting : {"preference.reference_model=w", "preference.reference=stored", "lora.rank=4"}) {
    EXPECT_NO_THROW(parse_config(kTrain, "c.toml", {"training.objective=dpo", setting})) << setting;
  }
  for (const char* objective : {"orpo", "simpo", "cpo"}) {
    EXPECT_NO_THROW(parse_config(kTrain, "c.toml", {std::string("training.objective=") + objective}));
  }
}

TEST(PreferenceConflicts, ABaseIsAModelWithoutItsAdapters) {
  expect_in(objective_error("dpo", {"preference.reference=base"}),
            "preference.reference must be \"model\" or \"stored\" without adapters, but is \"base\"");
  // Adapters from a file are a part of the model that training starts from.
  const std::vector<std::string> adapters = {"lora.rank=4", "lora.init_from=adapter"};
  expect_in(objective_error("dpo", adapters), "preference.reference must be given with lora.init_from");
  for (const char* setting :
       {"preference.reference=base", "preference.reference_model=merged", "preference.reference=stored"}) {
    std::vector<std::string> settings = adapters;
    settings.insert(settings.end(),
                    {"training.objective=dpo", "model.init_from=w", "model.hidden_size=256", setting});
    EXPECT_NO_THROW(parse_config(kTrain, "c.toml", settings)) << setting;
  }
}

TEST(PreferenceConflicts, TheReferenceFollowsFromWhatIsGiven) {
  using enum nn::ReferenceSource;
  const auto source = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(),
                     {"training.objective=dpo", "model.init_from=w", "model.hidden_size=256"});
    return reference_source(parse_config(kTrain, "c.toml", overrides));
  };
  EXPECT_EQ(source({}), kModel);
  EXPECT_EQ(source({"lora.rank=4"}), kBase);
  EXPECT_EQ(source({"lora.rank=4", "preference.reference_model=v"}), kModel) << "what is given is used";
  EXPECT_EQ(source({"lora.rank=4", "preference.reference=model"}), kModel);
  EXPECT_EQ(source({"preference.reference=stored"}), kStored);
}

TEST(PreferenceConflicts, TheBestMetricIsOneOfTheObjective) {
  const std::vector<std::string> validates = {"data.validation=[\"v\"]", "evaluation.interval_steps=5",
                                              "evaluation.patience=2"};
  const auto with = [&](const std::string& metric, const std::string& objective) {
    std::vector<std::string> settings = validates;
    settings.insert(settings.end(), {"evaluation.best_metric=" + metric, "training.objective=" + objective,
                                     "model.init_from=w", "model.hidden_size=256"});
    return settings;
  };
  const auto refused = [&](const std::string& metric, const std::string& objective) {
    expect_in(error_of(kTrain, with(metric, objective)),
              concat("evaluation.best_metric must be a metric that validations with training.objective = \"",
                     objective, "\" report, but is ", metric, "; validation_loss is one"));
  };
  refused("validation_rewards/accuracies", "language_model");
  refused("validation_rewards/margins", "kto");
  refused("validation_perplexity", "dpo");
  refused("validation_bits_per_byte", "simpo");
  for (const char* metric :
       {"validation_rewards/accuracies", "validation_rewards/margins", "validation_loss"}) {
    EXPECT_NO_THROW(parse_config(kTrain, "c.toml", with(metric, "dpo"))) << metric;
  }
}

TEST(PreferenceRowsOf, FollowFromTheObjective) {
  const auto rows = [](const std::vector<std::string>& overrides) {
    return parse_config(kTrain, "c.toml", overrides).data.preference;
  };
  EXPECT_FALSE(rows({}).is_on());
  EXPECT_EQ(rows({"training.objective=cpo"}).rows, data::PreferenceRows::kPairs);
  EXPECT_FALSE(rows({"training.objective=cpo"}).prompts_count);
  EXPECT_TRUE(rows({"training.objective=orpo"}).prompts_count) << "its cross entropy has prompts";
  const auto kto =
      rows({"training.objective=kto", "preference.reference=stored", "preference.exchanged_rows=4"});
  EXPECT_EQ(kto.rows, data::PreferenceRows::kSingle);
  EXPECT_TRUE(kto.stored_reference);
  EXPECT_EQ(kto.exchanged_rows, 4);
}

}  // namespace
}  // namespace fsdp::config
