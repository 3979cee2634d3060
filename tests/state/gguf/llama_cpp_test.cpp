// GGUF files in llama.cpp: it gives our logits and our tokens. Runs where the Python in FSDP_TEST_PYTHON
// (default: python3) has llama-cpp-python and gguf; gguf reads every file before llama.cpp does.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/tokenizers/tokenizer.h"
#include "state/gguf/forms.h"
#include "state/gguf/gguf_fixtures.h"
#include "state/gguf_export/adapter.h"
#include "state/gguf_export/export.h"
#include "state/weights/gguf_layout.h"

namespace fsdp::gguf {
namespace {

using namespace fsdp::testing;

class LlamaCpp : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (python_.empty()) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has gguf and llama_cpp";
  }
  void write(const nn::ModelOptions& options) {
    options_ = options;
    model_ = gguf_model(options);
    stored_ = write_model(root_ / "hf", options, weights_of(*model_));
  }
  void export_as(TensorType type) {
    export_model(stored_, {.output = file(), .type = type, .overwrite = true});
  }
  at::Tensor our_logits() const {
    at::NoGradGuard no_grad;
    const at::Tensor rows = token_rows(0, 2, 47, options_.vocab_size);
    return model_->forward(rows).flatten();
  }
  at::Tensor their_logits(const std::vector<std::string>& adapter = {}) const {
    std::vector<std::string> arguments = {"logits", file()};
    arguments.insert(arguments.end(), adapter.begin(), adapter.end());
    return numbers_of(llama_cpp(python_, arguments));
  }
  /// Gives our model the values that the file has after rounding.
  void take_values_of_file() {
    at::NoGradGuard no_grad;
    const Reader reader(file());
    const GgufForm& form = form_of(stored_.config, options_, "config.json");
    for (const auto& parameter : model_->named_parameters()) {
      const auto theirs = their_tensor(form, parameter.key());
      if (!theirs || !reader.tensors().contains(theirs->name)) continue;  // a tied head
      at::Tensor values = dequantised(reader, theirs->name);
      if (theirs->stored == Stored::kStacked) values = values[theirs->expert];
      parameter.value().copy_(to_ours(values, theirs->stored, options_));
    }
  }
  /// Root of the mean square of the difference, relative to that of ours.
  static double relative_difference(const at::Tensor& ours, const at::Tensor& theirs) {
    EXPECT_EQ(ours.numel(), theirs.numel());
    return ((ours - theirs).norm() / ours.norm()).item<double>();
  }
  /// Its GELU is a table in float16, and that of GPT-NeoX the approximation by tanh.
  static double f32_tolerance() {
    const std::string name = GetParam();
    return name.starts_with("gpt") || name.starts_with("gemma") ? 1e-3 : 1e-5;
  }
  std::string file() const { return (root_ / "model.gguf").string(); }

  const std::string python_ = python_with_llama_cpp();
  TemporaryFolder root_;
  nn::ModelOptions options_;
  std::shared_ptr<nn::Stage> model_;
  checkpoint::StoredModel stored_;
};

TEST_P(LlamaCpp, GivesTheLogitsOfTheModel) {
  write(gguf_options(GetParam()));
  const double plain = f32_tolerance();
  // Rounded inputs of routers choose another expert for some token.
  const double quantised = options_.num_experts > 0 ? 0.2 : 8e-2;
  // It rounds the inputs of products too: to the type of the matrix, for quantised ones to 8 bits.
  for (const auto& [type, tolerance] : {std::pair(TensorType::kF32, plain),
                                        {TensorType::kF16, 5e-3},
                                        {TensorType::kBF16, 2e-2},
                                        {TensorType::kQ8_0, quantised},
                                        {TensorType::kQ4_0, quantised}}) {
    export_as(type);
    const at::Tensor theirs = their_logits();
    const double before = relative_difference(our_logits(), theirs);
    if (type != TensorType::kF32) take_values_of_file();
    const double difference = relative_difference(our_logits(), theirs);
    std::cout << GetParam() << " " << util::name_of(type) << ": differs by " << before
              << " relative to the logits, from our model with the file's values by " << difference
              << std::endl;
    EXPECT_LE(difference, tolerance) << util::name_of(type);
  }
}

TEST_P(LlamaCpp, AddsAnAdapter) {
  write(gguf_options(GetParam()));
  export_as(TensorType::kF32);
  const at::Tensor without = our_logits();
  at::NoGradGuard no_grad;
  at::manual_seed(3);
  std::vector<AdapterTensors> adapters;
  constexpr int64_t kRank = 4;
  constexpr double kAlpha = 8;
  for (const auto& parameter : model_->named_parameters()) {
    const std::string& name = parameter.key();
    at::Tensor weight = parameter.value();
    const bool in_block = name.find(".0.") != name.npos || name.find(".1.") != name.npos;
    if (weight.dim() != 2 || !in_block) continue;
    const bool transposed = options_.architecture == "gpt2";
    const at::Tensor map = transposed ? weight.t() : weight;
    adapters.push_back(
        {name, at::randn({kRank, map.size(1)}).mul_(0.1), at::randn({map.size(0), kRank}).mul_(0.1)});
    map.add_(at::matmul(adapters.back().b, adapters.back().a), kAlpha / kRank);
  }
  ASSERT_GE(adapters.size(), 8U);
  write_adapter({.output = root_ / "adapter.gguf",
                 .model_config = stored_.config,
                 .where = "config.json",
                 .alpha = kAlpha},
                adapters);
  const at::Tensor theirs = their_logits({(root_ / "adapter.gguf").string()});
  const double difference = relative_difference(our_logits(), theirs);
  std::cout << GetParam() << ": with an adapter logits differ by " << difference << " from the merged model's"
            << std::endl;
  EXPECT_LE(difference, f32_tolerance());
  EXPECT_GT(relative_difference(without, theirs), 0.05);
}

INSTANTIATE_TEST_SUITE_P(Models, LlamaCpp, ::testing::ValuesIn(kGgufModels),
                         [](const auto& info) { return info.param; });

/// Of the tokenizers whose ids PyPI's tokenizers gave (tests/data/bpe/make_families.py).
class LlamaCppTokenizer : public LlamaCpp {};

TEST_P(LlamaCppTokenizer, GivesTheTokensOfTheTokenizer) {
  const std::string families = source_folder() + "/tests/data/bpe/families/";
  const std::string name = GetParam() == "bytes" ? "bytes" : families + GetParam() + ".json";
  const auto tokenizer = data::make_tokenizer(name);
  nn::ModelOptions options = gguf_options("llama");
  options.vocab_size = (tokenizer->vocab_size() + 31) / 32 * 32;
  write(options);
  export_model(stored_, {.output = file(), .tokenizer = name});
  // None begins with a blank: llama.cpp puts one before it, which tokenizers with a Metaspace do not.
  const std::vector<std::string> texts = {"The quick brown fox, 12345 times: I've seen it's THEY'LL!",
                                          "two  blanks\n\nand\tlines \n",
                                          "Gr\xc3\xbc\xc3\x9f"
                                          "e aus K\xc3\xb6ln \xe6\x88\x91\xe6\x83\xb3 \xf0\x9f\x9a\x80",
                                          "def f(x):\n    return x**2 + 3.14\n"};
  std::vector<std::string> arguments = {"tokens", file()};
  arguments.insert(arguments.end(), texts.begin(), texts.end());
  std::istringstream lines(llama_cpp(python_, arguments));
  for (const std::string& text : texts) {
    std::vector<int64_t> ours;
    tokenizer->encode(text, ours);
    std::string line, expected;
    std::getline(lines, line);
    for (const int64_t id : ours) expected += (expected.empty() ? "" : " ") + std::to_string(id);
    EXPECT_EQ(line, expected) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LlamaCppTokenizer,
                         ::testing::Values("gpt2", "llama3", "qwen2", "llama2", "mistral", "bytes"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fsdp::gguf
