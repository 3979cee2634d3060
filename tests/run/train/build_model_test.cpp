#include "support/build_model.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "base/util/error.h"
#include "support/safetensors_files.h"
#include "support/temporary_folder.h"
#include "support/tiny_models.h"

namespace fsdp::train {
namespace {

class BuildModelTest : public ::testing::Test {
 protected:
  /// Writes the weights of a model of these options, tied ones once.
  std::string exported(const nn::ModelOptions& options, uint64_t seed) {
    auto model = testing::build_model(options, seed);
    testing::NamedTensors tensors;
    for (const auto& parameter : model->named_parameters()) {
      if (options.tie_word_embeddings && parameter.key() == "lm_head.weight") continue;
      tensors.emplace_back(parameter.key(), parameter.value().detach());
    }
    std::string path = folder_ / "weights.safetensors";
    testing::write_safetensors(path, tensors);
    return path;
  }

  std::string failure(const nn::ModelOptions& options) {
    try {
      testing::build_model(options, 1);
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
      return error.what();
    }
    ADD_FAILURE() << "expected an error";
    return "";
  }

  testing::TemporaryFolder folder_;
};

TEST_F(BuildModelTest, TakesEveryWeightFromTheFile) {
  for (bool tied : {false, true}) {
    auto options = testing::tiny_options();
    options.tie_word_embeddings = tied;
    auto original = testing::build_model(options, 5);
    options.init_from = exported(options, 5);
    auto loaded = testing::build_model(options, 6);
    for (const auto& parameter : original->named_parameters()) {
      EXPECT_TRUE(at::equal(parameter.value(), loaded->named_parameters()[parameter.key()]))
          << parameter.key();
    }
  }
}

TEST_F(BuildModelTest, TakesTheWeightsOfACheckpoint) {
  auto options = testing::tiny_options("gpt2");
  auto original = testing::build_model(options, 5);
  testing::NamedTensors tensors;
  for (const auto& parameter : original->named_parameters()) {
    tensors.emplace_back(concat("model/", parameter.key()), parameter.value().detach());
  }
  options.init_from = testing::save_checkpoint(folder_ / "run", tensors, 3).string();
  auto loaded = testing::build_model(options, 6);
  for (const auto& parameter : original->named_parameters()) {
    EXPECT_TRUE(at::equal(parameter.value(), loaded->named_parameters()[parameter.key()])) << parameter.key();
  }
}

TEST_F(BuildModelTest, ListsEverythingThatDoesNotFitAtOnce) {
  auto options = testing::tiny_options();
  std::string path = exported(options, 5);
  options.init_from = path;
  options.num_hidden_layers = 4;
  options.vocab_size = 15;
  std::string text = failure(options);
  EXPECT_NE(text.find("missing: model.layers.3."), std::string::npos) << text;
  EXPECT_NE(text.find("model.layers.3.self_attn.q_proj.weight"), std::string::npos) << text;
  EXPECT_NE(text.find("lm_head.weight ([17, 12] instead of [15, 12])"), std::string::npos) << text;
}

TEST_F(BuildModelTest, NamesAFileThatIsNotThere) {
  auto options = testing::tiny_options();
  options.init_from = folder_ / "none.safetensors";
  EXPECT_NE(failure(options).find("none.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace fsdp::train
