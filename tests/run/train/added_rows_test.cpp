// model.vocab_size above that of model.init_from: runs whose model has more tokens than the stored one.

#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "run/train/evaluate.h"
#include "run/train/run_parts.h"
#include "state/convert/hugging_face_model.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/weights/weights.h"
#include "support/build_model.h"
#include "support/checkpoint_contents.h"
#include "support/log_lines.h"
#include "support/safetensors_files.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using testing::values_of;
namespace fs = std::filesystem;
using Tensors = std::map<std::string, at::Tensor>;

constexpr int64_t kAdded = 4;

class AddedRows : public TrainerTest {
 protected:
  /// Writes random weights of config_.model in a type, as base/, and gives config_.model more tokens.
  void add_tokens(at::ScalarType dtype = at::kFloat) {
    stored_.clear();
    testing::NamedTensors tensors;
    for (const auto& parameter : testing::build_model(config_.model, 5)->named_parameters()) {
      const at::Tensor values = parameter.value().detach().to(dtype);
      const bool is_copy = config_.model.tie_word_embeddings && parameter.key() == "lm_head.weight";
      if (!is_copy) tensors.emplace_back(parameter.key(), values);
      stored_[parameter.key()] = values;
    }
    fs::create_directories(folder_ / "base");
    testing::write_safetensors(folder_ / "base/model.safetensors", tensors);
    describe(config_.model.vocab_size);
    stored_rows_ = config_.model.vocab_size;
    config_.model.vocab_size += kAdded;
    config_.model.init_from = folder_ / "base";
  }
  void describe(int64_t vocab_size) {
    nn::ModelOptions options = config_.model;
    options.vocab_size = vocab_size;
    std::ofstream(folder_ / "base/config.json") << checkpoint::hugging_face_config(options).dump();
  }

  /// The stored weights with the mean in place of what they lack, in float32.
  Tensors expected() const {
    Tensors all;
    for (const auto& [name, values] : stored_) {
      at::Tensor whole = values;
      if (values.dim() == 2 && values.size(0) == stored_rows_) {
        const at::Tensor mean = values.to(at::kDouble).mean(0, /*keepdim=*/true).to(values.scalar_type());
        whole = at::cat({values, mean.expand({kAdded, -1})});
      }
      all[name] = whole.to(at::kFloat);
    }
    return all;
  }

  void expect_beginning(int world_size, const std::string& what) {
    const Tensors whole = expected();
    comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
      RunParts parts =
          build_run_parts(config_, comm::Mesh(config_.mesh, testing::borrowed(communicator)), nullptr);
      size_t compared = 0;
      for (const auto& [name, tensor] : shard::full_state_dict(*parts.engine)) {
        EXPECT_TRUE(testing::same_bits(tensor, whole.at(name))) << what << ", " << name;
        ++compared;
      }
      EXPECT_GE(compared, whole.size() - 1) << what;  // a tied head may be left out
    });
  }

  Tensors stored_;
  int64_t stored_rows_ = 0;
};

TEST_F(AddedRows, AreBitwiseTheMeanOfTheStoredOnesHoweverTheModelIsSharded) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (const bool tied : {false, true}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        config_ = testing::tiny_config(folder_);
        config_.model = testing::tiny_options(architecture);
        config_.model.tie_word_embeddings = tied;
        add_tokens(dtype);
        for (const char* layout : {"flat", "per_parameter"}) {
          config_.fsdp.layout = layout;
          for (const int world_size : {1, 2, 3}) {
            for (const bool broadcast : {false, true}) {
              config_.model.init_broadcast = broadcast;
              expect_beginning(world_size, concat(architecture, tied ? " tied " : " ", dtype, " ", layout,
                                                  " on ", world_size, broadcast ? " by broadcast" : ""));
            }
          }
        }
      }
    }
  }
}

TEST_F(AddedRows, AreTheSameIfTheVocabularyIsCutOverRanks) {
  for (const bool tied : {false, true}) {
    config_ = testing::tiny_config(folder_);
    config_.model.num_attention_heads = config_.model.num_key_value_heads = 2;
    config_.model.tie_word_embeddings = tied;
    add_tokens();
    for (const int64_t data : {1, 2}) {
      config_.mesh = {.data = data, .model = 2};
      expect_beginning(static_cast<int>(2 * data),
                       concat("mesh.model = 2 of ", 2 * data, tied ? " tied" : ""));
    }
  }
}

TEST_F(AddedRows, AreReportedOnceAndWithAWarningIfTheyCannotLearn) {
  add_tokens();
  util::set_log_level(util::LogLevel::kInfo);
  for (const int64_t rank : {0, 2}) {
    config_.lora.rank = rank;
    const std::string lines = testing::log_lines([&] {
      comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
        build_run_parts(config_, comm::Mesh(config_.mesh, testing::borrowed(communicator)), nullptr);
      });
    });
    const auto count = [&lines](const std::string& part) {
      int found = 0;
      for (size_t at = lines.find(part); at != lines.npos; at = lines.find(part, at + 1)) ++found;
      return found;
    };
    for (const std::string name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      EXPECT_EQ(count("rows 17 to 20 of " + name + " are the mean of the 17 stored rows"), 1) << lines;
    }
    EXPECT_EQ(count("lora.rank freezes the embedding"), rank > 0 ? 1 : 0) << lines;
  }
}

TEST_F(AddedRows, DoNotHideWeightsOtherThanTheirDescriptionSays) {
  add_tokens();
  describe(config_.model.vocab_size - 1);
  EXPECT_EQ(failure(2, config_, "model.embed_tokens.weight ([17, 12] instead of [21, 12])"),
            ErrorKind::kCheckpoint);
  fs::remove(folder_ / "base/config.json");
  config_.training.steps = 1;
  train(2, config_);  // [model] alone describes them
}

TEST_F(AddedRows, AreTrainedSavedAndExported) {
  add_tokens();
  config_.data.train = config_.data.validation = {folder_ / "more.bin"};
  testing::write_token_file(folder_ / "more.bin", 400, config_.model.vocab_size);
  config_.checkpoint.interval_steps = 6;
  train(2, config_);
  const Tensors begun = expected(), saved = testing::contents_of(folder_ / "out/step-00000006");
  const at::Tensor rows = saved.at("model/model.embed_tokens.weight").narrow(0, 17, kAdded);
  EXPECT_FALSE(at::equal(rows[0], rows[1])) << "they have learnt apart";
  EXPECT_FALSE(at::equal(rows[0], begun.at("model.embed_tokens.weight")[17]));
  checkpoint::export_model(folder_ / "out/step-00000006", folder_ / "exported", {});
  const nlohmann::json config = nlohmann::json::parse(util::read_file(folder_ / "exported/config.json"));
  EXPECT_EQ(config.at("vocab_size"), 17 + kAdded);
  EXPECT_EQ(checkpoint::open_weights(folder_ / "exported").shape("lm_head.weight"),
            (std::vector<int64_t>{17 + kAdded, 12}));
}

TEST_F(AddedRows, BelongToTheBaseOfAdapters) {
  add_tokens(at::kBFloat16);
  config_.data.train = config_.data.validation = {folder_ / "more.bin"};
  testing::write_token_file(folder_ / "more.bin", 400, config_.model.vocab_size);
  config_.checkpoint.interval_steps = 3;
  config_.lora.rank = 2;
  config_.lora.targets = {"*q_proj"};
  train(2, config_);
  const auto losses = values_of(folder_ / "out/metrics.jsonl", "loss");
  const double validation = values_of(folder_ / "out/metrics.jsonl", "validation_loss").back();
  // Merged with the stored base, which has no such rows.
  config::Config whole = config_;
  whole.lora = {};
  EXPECT_NEAR(evaluate(whole, std::make_shared<comm::SingleCommunicator>(), folder_ / "out").validation->loss,
              validation, 1e-3 * validation);
  const auto merged = checkpoint::open_weights(folder_ / "out");
  at::Tensor embedding = at::empty({17 + kAdded, 12});
  merged.read_into("model.embed_tokens.weight", embedding);
  EXPECT_TRUE(testing::same_bits(embedding, expected().at("model.embed_tokens.weight")));
  // Resumed on another number of ranks.
  fs::remove_all(folder_ / "out/step-00000006");
  config_.training.global_batch_size = 4;
  config_.training.gradient_accumulation_steps = 0;
  train(1, config_);
  expect_near(values_of(folder_ / "out/metrics.jsonl", "loss"), losses);
}

}  // namespace
}  // namespace fsdp::train
