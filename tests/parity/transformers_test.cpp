// Exported weights in Hugging Face's transformers: the logits of LlamaForCausalLM and GPT2LMHeadModel are
// ours. Compared with committed logits (see make_figures) everywhere, and with transformers itself where the
// Python in FSDP_TEST_PYTHON (default: python3) has it.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <tuple>

#include "base/util/error.h"
#include "base/util/file.h"
#include "e2e/programs.h"
#include "model/families/families.h"
#include "model/families/options.h"
#include "state/hugging_face/hugging_face_config.h"
#include "support/build_model.h"
#include "support/safetensors_files.h"
#include "support/source_folder.h"
#include "support/tiny_config.h"
#include "support/tiny_models.h"

namespace fsdp::parity {
namespace {

struct Case {
  std::string name, class_name;
  nn::ModelOptions model;
  std::vector<std::string> export_flags, overrides = {};
};

/// The models of transformers_*.txt.
Case case_of(const std::string& name) {
  Case c{
      .name = name, .class_name = "LlamaForCausalLM", .model = testing::tiny_options(), .export_flags = {}};
  c.model.vocab_size = 40;
  c.model.hidden_size = 32;
  c.model.num_attention_heads = 4;
  c.model.num_key_value_heads = 2;
  c.model.intermediate_size = 48;
  if (name == "llama_tied_split") {
    c.model.tie_word_embeddings = true;
    c.export_flags = {"--max-shard-size", "10KB"};
  }
  if (name == "qwen2") {
    c.class_name = "Qwen2ForCausalLM";
    c.model.qkv_bias = true;
    c.model.tie_word_embeddings = true;
    c.overrides = {"model.qkv_bias=true"};
  }
  if (name == "mistral") {
    c.class_name = "MistralForCausalLM";
    c.model.head_dim = 12;
    c.model.sliding_window = 16;
    c.overrides = {"model.head_dim=12", "model.sliding_window=16"};
  }
  if (name == "llama3") {
    c.model.attention_bias = c.model.mlp_bias = true;
    c.model.rope_type = "llama3";
    c.model.rope_factor = 8;
    c.model.rope_original_length = 8;
    c.overrides = {"model.attention_bias=true", "model.mlp_bias=true", "model.rope_type=llama3",
                   "model.rope_factor=8", "model.rope_original_length=8"};
  }
  if (name == "gpt2") {
    c.class_name = "GPT2LMHeadModel";
    c.model.architecture = "gpt2";
    c.model.num_key_value_heads = 4;
    c.model.intermediate_size = 128;
    c.model.tie_word_embeddings = true;
  }
  return c;
}

at::Tensor logits_of(const std::string& folder, nn::ModelOptions options) {
  options.init_from = folder;
  auto model = testing::build_model(options, 1);
  at::NoGradGuard no_grad;
  return model->forward(testing::token_rows(0, 2, 11, options.vocab_size)).flatten();
}

std::vector<float> numbers_in(const std::string& text) {
  std::vector<float> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != '#') values.push_back(std::stof(line));
  }
  return values;
}

testing::NamedTensors initial_weights(const nn::ModelOptions& model, bool varies_norms = false) {
  testing::NamedTensors weights;
  auto initial = testing::make_initialized(model);
  at::NoGradGuard no_grad;
  for (const auto& parameter : initial->named_parameters()) {
    if (parameter.key() == "lm_head.weight" && model.tie_word_embeddings) continue;
    at::Tensor values = parameter.value().detach().clone();
    // Biases are 0 at first, and norms 0 or 1, which would hide them.
    const bool is_bias = parameter.key().ends_with(".bias");
    if (is_bias || (varies_norms && values.dim() == 1)) {
      values += at::arange(values.numel(), at::kFloat).sin().mul_(0.1);
    }
    weights.emplace_back(parameter.key(), values);
  }
  return weights;
}

void expect_numbers(const at::Tensor& ours, const std::string& text, const std::string& name,
                    double tolerance) {
  std::vector<float> values = numbers_in(text);
  ASSERT_EQ(static_cast<int64_t>(values.size()), ours.numel());
  at::Tensor theirs = at::from_blob(values.data(), {ours.numel()});
  const double difference = (ours - theirs).abs().max().item<double>(),
               largest = theirs.abs().max().item<double>();
  std::cout << name << ": largest difference " << difference << " in values up to " << largest << std::endl;
  EXPECT_GT(largest, 0.1);
  EXPECT_LE(difference, tolerance * largest);
}

void expect_logits(const at::Tensor& ours, const std::string& text, const std::string& name) {
  expect_numbers(ours, text, name, 2e-5);
}

/// The Python with transformers; empty where there is none.
std::string python_with_transformers() {
  const char* chosen = std::getenv("FSDP_TEST_PYTHON");
  const std::string python = chosen == nullptr ? "python3" : chosen;
  const bool has_it = testing::run({"/usr/bin/env", python, "-c", "import transformers"}).exit_code == 0;
  return has_it ? python : "";
}

class Transformers : public ::testing::TestWithParam<const char*> {
 protected:
  /// Runs one step that changes nothing on two processes, and exports what was saved.
  void SetUp() override {
    const nn::ModelOptions& model = case_.model;
    testing::write_token_file(folder_ / "train.bin", 2000, model.vocab_size);
    testing::write_safetensors(folder_ / "initial.safetensors", initial_weights(model));
    auto number = [](const char* key, auto value) { return concat("model.", key, "=", value); };
    std::vector<std::string> overrides = {
        "model.architecture=" + model.architecture,
        "model.init_from=" + (folder_ / "initial.safetensors").string(),
        number("vocab_size", model.vocab_size),
        number("hidden_size", model.hidden_size),
        number("intermediate_size", model.intermediate_size),
        number("num_hidden_layers", model.num_hidden_layers),
        number("num_attention_heads", model.num_attention_heads),
        number("num_key_value_heads", model.num_key_value_heads),
        number("max_position_embeddings", model.max_position_embeddings),
        number("initializer_range", model.initializer_range),
        number("tie_word_embeddings", model.tie_word_embeddings ? "true" : "false"),
        "data.train=[\"" + (folder_ / "train.bin").string() + "\"]",
        "data.sequence_length=16",
        "training.steps=1",
        "optimizer.lr=0",
        "fsdp.min_num_params=1000",
        "checkpoint.save_at_end=true",
        "run.output_dir=" + (folder_ / "out").string()};
    overrides.insert(overrides.end(), case_.overrides.begin(), case_.overrides.end());
    auto result = e2e::launch_training(2, testing::source_folder() + "/tests/parity/llama.toml", overrides);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::vector<std::string> command = {e2e::program("fsdp-ckpt"), "export", (folder_ / "out").string(),
                                        exported()};
    command.insert(command.end(), case_.export_flags.begin(), case_.export_flags.end());
    result = testing::run(command);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }

  std::string exported() const { return (folder_ / "exported").string(); }
  std::string committed() const {
    return testing::source_folder() + "/tests/parity/transformers_" + case_.name + ".txt";
  }

  /// Of the exported folder, read again.
  at::Tensor our_logits() const { return logits_of(exported(), case_.model); }

  void expect_ours(const std::string& text, const std::string& whose) {
    expect_logits(our_logits(), text, concat(case_.name, " and ", whose));
  }

  Case case_ = case_of(GetParam());
  testing::TemporaryFolder folder_;
};

TEST_P(Transformers, TheExportGivesTheLogitsThatTransformersGave) {
  expect_ours(util::read_file(committed()), "the committed logits");
}

TEST_P(Transformers, TheExportLoadsAndGivesTheSameLogits) {
  const std::string python = python_with_transformers();
  if (python.empty()) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has transformers";
  auto result = testing::run(
      {"/usr/bin/env", python, testing::source_folder() + "/tests/parity/transformers_reference.py",
       exported(), "--expect", case_.class_name},
      {.timeout_seconds = 300});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  if (std::getenv("FSDP_TEST_RECORD") != nullptr) std::ofstream(committed()) << result.out;
  expect_ours(result.out, "transformers");
}

INSTANTIATE_TEST_SUITE_P(Models, Transformers,
                         ::testing::Values("llama", "llama_tied_split", "gpt2", "qwen2", "mistral", "llama3"),
                         [](const auto& info) { return std::string(info.param); });

/// Models of the other families, of which no run is made here (RoundTrip makes one).
nn::ModelOptions family_named(const std::string& name) {
  nn::ModelOptions model = testing::family_options(name);
  model.vocab_size = 40;
  model.hidden_size = 32;
  model.num_attention_heads = 4;
  model.num_key_value_heads = name == "gpt_neox" ? 4 : 2;
  return model;
}

class Families : public ::testing::TestWithParam<const char*> {
 protected:
  /// A folder in Hugging Face's layout.
  void SetUp() override {
    std::filesystem::create_directories(path());
    std::ofstream(path() + "/config.json") << checkpoint::hugging_face_config(model_);
    testing::write_safetensors(path() + "/model.safetensors", initial_weights(model_, /*varies_norms=*/true));
  }

  std::string path() const { return (folder_ / "model").string(); }
  std::string committed() const {
    return testing::source_folder() + "/tests/parity/transformers_family_" + GetParam() + ".txt";
  }

  nn::ModelOptions model_ = family_named(GetParam());
  testing::TemporaryFolder folder_;
};

TEST_P(Families, HaveTheLogitsThatTransformersGave) {
  const nn::ModelOptions read = checkpoint::options_from_hugging_face(
      nlohmann::json::parse(util::read_file(path() + "/config.json")), "config.json");
  expect_logits(logits_of(path(), read), util::read_file(committed()), GetParam());
}

TEST_P(Families, HaveTheLogitsOfTransformers) {
  const std::string python = python_with_transformers();
  if (python.empty()) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has transformers";
  auto result = testing::run(
      {"/usr/bin/env", python, testing::source_folder() + "/tests/parity/transformers_reference.py", path()},
      {.timeout_seconds = 300});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  if (std::getenv("FSDP_TEST_RECORD") != nullptr) std::ofstream(committed()) << result.out;
  expect_logits(logits_of(path(), model_), result.out, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Models, Families,
                         ::testing::Values("mistral", "qwen3", "olmo2", "smollm3", "phi3", "gemma2",
                                           "gemma3_text", "gpt_neox", "mixtral", "qwen3_moe", "granite",
                                           "olmo3", "seed_oss", "ernie4_5", "helium", "glm4", "exaone4",
                                           "yarn", "longrope"),
                         [](const auto& info) { return std::string(info.param); });

/// Models that are trained, those with experts with the loss that balances these.
class Trained : public Families {
 protected:
  Trained() {
    if (model_.num_experts > 0) model_.router_aux_loss_coef = 0.5;
  }

  /// Losses of five steps of gradient descent.
  at::Tensor our_losses() const {
    nn::ModelOptions options = model_;
    options.init_from = path();
    auto model = testing::build_model(options, 1);
    const at::Tensor rows = testing::token_rows(0, 2, 12, options.vocab_size);
    std::vector<float> losses;
    for (int step = 0; step < 5; ++step) {
      model->zero_grad();
      const at::Tensor loss = nn::loss_of(*model, rows.narrow(1, 0, 12), rows.narrow(1, 1, 12).contiguous(),
                                          {.router_aux_loss_coef = nn::aux_loss_coef(options)});
      loss.backward();
      losses.push_back(loss.item<float>());
      at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.sub_(parameter.grad(), 0.1);
    }
    return at::tensor(losses);
  }
  std::string committed() const {
    return testing::source_folder() + "/tests/parity/transformers_losses_" + GetParam() + ".txt";
  }
};

TEST_P(Trained, HaveTheLossesThatTransformersGave) {
  expect_numbers(our_losses(), util::read_file(committed()), GetParam(), 1e-6);
}

TEST_P(Trained, HaveTheLossesOfTransformers) {
  const std::string python = python_with_transformers();
  if (python.empty()) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has transformers";
  auto result =
      testing::run({"/usr/bin/env", python,
                    testing::source_folder() + "/tests/parity/transformers_round_trip.py", "train", path()},
                   {.timeout_seconds = 300});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  if (std::getenv("FSDP_TEST_RECORD") != nullptr) std::ofstream(committed()) << result.out;
  expect_numbers(our_losses(), result.out, GetParam(), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Models, Trained,
                         ::testing::Values("mixtral", "qwen3_moe", "granite", "olmo3", "seed_oss", "ernie4_5",
                                           "helium", "glm4", "exaone4", "yarn", "longrope", "dynamic"),
                         [](const auto& info) { return std::string(info.param); });

/// A random model of transformers is imported, gives the same logits, is trained on two processes and
/// exported, and there has the loss that it has here.
class RoundTrip : public ::testing::TestWithParam<const char*> {};

TEST_P(RoundTrip, ComesBackToTransformersAsItWasTrained) {
  const std::string python = python_with_transformers();
  if (python.empty()) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has transformers";
  testing::TemporaryFolder folder;
  auto path = [&](const char* name) { return (folder / name).string(); };
  auto script = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {
        "/usr/bin/env", python, testing::source_folder() + "/tests/parity/transformers_round_trip.py"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    auto result = testing::run(command, {.timeout_seconds = 300});
    if (result.exit_code != 0) throw std::runtime_error(result.err);
    return numbers_in(result.out);
  };
  auto must_run = [](const std::vector<std::string>& command) {
    auto result = testing::run(command);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  };
  std::vector<float> theirs = script({"make", GetParam(), path("theirs")});
  nn::ModelOptions options = checkpoint::options_from_hugging_face(
      nlohmann::json::parse(util::read_file(folder / "theirs/config.json")), "config.json");

  // The import, and the folder itself.
  must_run({e2e::program("fsdp-ckpt"), "import", path("theirs"), path("imported")});
  for (const char* name : {"theirs", "imported"}) {
    at::Tensor ours = logits_of(path(name), options);
    ASSERT_EQ(static_cast<int64_t>(theirs.size()), ours.numel());
    const double difference =
        (ours - at::from_blob(theirs.data(), {ours.numel()})).abs().max().item<double>();
    std::cout << GetParam() << ", " << name << ": logits differ by " << difference << std::endl;
    EXPECT_LE(difference, 1e-4);
  }

  testing::write_token_file(folder / "train.bin", 2000, options.vocab_size);
  testing::write_token_file(folder / "validation.bin", 16 * 9 + 1, options.vocab_size);
  auto section = testing::run({e2e::program("fsdp-ckpt"), "config", path("imported")});
  ASSERT_EQ(section.exit_code, 0) << section.err;
  std::ofstream(folder / "config.toml") << section.out << R"(
[data]
sequence_length = 16
micro_batch_size = 2
[training]
steps = 5
[optimizer]
lr = 1e-2
[fsdp]
min_num_params = 1000
)";
  auto trained = e2e::launch_training(
      2, path("config.toml"),
      {"data.train=[\"" + path("train.bin") + "\"]", "data.validation=[\"" + path("validation.bin") + "\"]",
       "run.output_dir=" + path("out")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const double loss = testing::values_of(path("out") + "/metrics.jsonl", "validation_loss").back();
  must_run({e2e::program("fsdp-ckpt"), "export", path("out"), path("back")});
  const std::vector<float> found = script({"loss", path("back"), path("validation.bin"), "16"});
  ASSERT_EQ(found.size(), 1u);
  std::cout << GetParam() << ": validation loss " << loss << " here, " << found[0] << " there" << std::endl;
  EXPECT_NEAR(found[0], loss, 1e-4);
  const std::vector<float> before = script({"loss", path("theirs"), path("validation.bin"), "16"});
  EXPECT_LT(found[0], before[0] - 0.01) << "training changed nothing";
}

INSTANTIATE_TEST_SUITE_P(Models, RoundTrip,
                         ::testing::Values("llama", "llama_tied", "llama_gqa", "gpt2", "qwen2", "mistral",
                                           "llama3", "mistral_window", "qwen3", "olmo2", "smollm3", "phi3",
                                           "phi3_window", "gemma2", "gemma3_text", "gpt_neox",
                                           "gpt_neox_serial", "mixtral", "qwen3_moe", "granite", "olmo3",
                                           "seed_oss", "ernie4_5", "helium", "glm4", "exaone4",
                                           "exaone4_without_windows", "qwen2_yarn", "qwen3_yarn",
                                           "phi3_longrope", "llama_dynamic"),
                         [](const auto& info) { return std::string(info.param); });

/// Adapters that PEFT has made are read, trained on two processes and exported, and compute there what they
/// do here, merged.
class Peft : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(Peft, ReadsAndMakesTheSameAdapters) {
  const auto& [model, dora] = GetParam();
  const std::string python = python_with_transformers();
  if (python.empty() || testing::run({"/usr/bin/env", python, "-c", "import peft"}).exit_code != 0) {
    GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has transformers and peft";
  }
  testing::TemporaryFolder folder;
  const auto path = [&](const std::string& name) { return (folder / name).string(); };
  const auto numbers_of = [&](const char* script, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {"/usr/bin/env", python, testing::source_folder() + "/tests/parity/" + script});
    const auto result = testing::run(arguments, {.timeout_seconds = 300});
    if (result.exit_code != 0) throw std::runtime_error(result.err);
    return numbers_in(result.out);
  };
  numbers_of("transformers_round_trip.py", {"make", model, path("base")});
  std::vector<float> theirs =
      numbers_of("peft_reference.py", {"make", path("base"), path("made"), dora ? "dora" : "lora"});
  const nn::ModelOptions options = checkpoint::options_from_hugging_face(
      nlohmann::json::parse(util::read_file(folder / "base/config.json")), "config.json");
  testing::write_token_file(folder / "train.bin", 2000, options.vocab_size);
  std::ofstream(folder / "config.toml") << R"(
[data]
sequence_length = 16
micro_batch_size = 2
[lora]
rank = 3
alpha = 7
[fsdp]
min_num_params = 1000
)";
  /// Logits of the merged model after so many steps.
  const auto merged_after = [&](const std::string& name, int steps, const char* rate) {
    const auto trained = e2e::launch_training(
        2, path("config.toml"),
        {"model.init_from=" + path("base"), "lora.init_from=" + path("made"),
         concat("lora.dora=", dora ? "true" : "false"), "data.train=[\"" + path("train.bin") + "\"]",
         concat("training.steps=", steps), concat("optimizer.lr=", rate), "run.output_dir=" + path(name)});
    EXPECT_EQ(trained.exit_code, 0) << trained.err;
    for (const char* kind : {"--merge", "--adapter"}) {
      const auto exported =
          testing::run({e2e::program("fsdp-ckpt"), "export", path(name), path(name + kind), kind});
      EXPECT_EQ(exported.exit_code, 0) << exported.err;
    }
    return logits_of(path(name + "--merge"), options);
  };
  const auto expect_same = [](const at::Tensor& ours, std::vector<float>& values, const char* when) {
    ASSERT_EQ(static_cast<int64_t>(values.size()), ours.numel());
    const double difference =
        (ours - at::from_blob(values.data(), {ours.numel()})).abs().max().item<double>();
    std::cout << when << ": logits differ by " << difference << std::endl;
    EXPECT_LE(difference, 1e-4);
  };
  expect_same(merged_after("read", 1, "0"), theirs, "as made");
  const at::Tensor ours = merged_after("trained", 5, "1e-2");
  std::vector<float> after =
      numbers_of("peft_reference.py", {"logits", path("base"), path("trained--adapter")});
  expect_same(ours, after, "after training");
  EXPECT_GT((ours - at::from_blob(theirs.data(), {ours.numel()})).abs().max().item<double>(), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Models, Peft,
                         ::testing::Combine(::testing::Values("llama_gqa", "gpt2"), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "_dora" : "_lora");
                         });

}  // namespace
}  // namespace fsdp::parity
