#include "run/train/initial_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <set>

#include "base/tensor/rectangle_view.h"
#include "comm/api/communicator.h"
#include "model/nn/decoder.h"
#include "run/train/run_parts.h"
#include "shard/engine/engine_sizes.h"
#include "shard/engine/fully_shard.h"
#include "state/hugging_face/hugging_face_config.h"
#include "support/build_model.h"
#include "support/counting_allocator.h"
#include "support/safetensors_files.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"

namespace fsdp::train {
namespace {

using ::testing::AllOf;
using testing::borrowed;
using testing::error_of;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// Counts the bytes that are read from a file; fails at a tensor if told to.
class WatchedSource final : public checkpoint::TensorSource {
 public:
  explicit WatchedSource(const fs::path& path) : inner_(path) {}
  const fs::path& path() const override { return inner_.path(); }
  std::vector<checkpoint::TensorInfo> infos() const override { return inner_.infos(); }
  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override {
    if (name == bad_tensor) fail(ErrorKind::kIo, "cannot read ", name, ": a bad block");
    bytes += (end - begin) * static_cast<int64_t>(c10::elementSize(inner_.entry(name).dtype));
    inner_.read(name, begin, end, out);
  }
  mutable int64_t bytes = 0;
  std::string bad_tensor;

 private:
  checkpoint::SafetensorsReader inner_;
};

class InitialWeights : public ::testing::Test {
 protected:
  /// Writes the weights of a model; what `change` returns for a tensor is stored, nothing where it is
  /// undefined.
  template <typename Change>
  fs::path exported(const nn::ModelOptions& options, const Change& change) {
    auto model = testing::build_model(options, 5);
    testing::NamedTensors tensors;
    std::set<const void*> seen;
    for (const auto& parameter : model->named_parameters()) {
      if (!seen.insert(parameter.value().unsafeGetTensorImpl()).second) continue;
      at::Tensor stored = change(parameter.key(), parameter.value().detach().clone());
      if (stored.defined()) tensors.emplace_back(parameter.key(), stored);
    }
    testing::write_safetensors(folder_ / "weights.safetensors", tensors);
    return folder_ / "weights.safetensors";
  }
  fs::path exported(const nn::ModelOptions& options) {
    return exported(options, [](const std::string&, const at::Tensor& tensor) { return tensor; });
  }

  /// Every parameter of a run's model before the first step.
  std::map<std::string, at::Tensor> beginning(int world_size, const config::Config& config) {
    std::map<std::string, at::Tensor> weights;
    comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
      RunParts parts = build_run_parts(config, comm::Mesh(config.mesh, borrowed(communicator)), nullptr);
      for (auto& [name, tensor] : shard::full_state_dict(*parts.engine, {.rank0_only = true})) {
        weights[name] = tensor;
      }
    });
    return weights;
  }

  void expect_values_of(nn::Stage& model, const std::map<std::string, at::Tensor>& weights,
                        const std::string& what) {
    EXPECT_EQ(weights.size(), model.named_parameters().size()) << what;
    for (const auto& [name, tensor] : weights) {
      EXPECT_TRUE(testing::same_bits(tensor, model.named_parameters()[name].detach()))
          << what << ", " << name;
    }
  }

  testing::TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
};

TEST_F(InitialWeights, AreBitwiseThoseOfAWholeModelAtAnyNumberOfRanks) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (bool tied : {false, true}) {
      config_.model = testing::tiny_options(architecture);
      config_.model.tie_word_embeddings = tied;
      for (bool stored : {false, true}) {
        config_.model.init_from = stored ? exported(config_.model).string() : "";
        auto whole = testing::build_model(config_.model, static_cast<uint64_t>(config_.run.seed));
        for (const char* layout : {"flat", "per_parameter"}) {
          config_.fsdp.layout = layout;
          for (int world_size : {1, 2, 3, 8}) {
            for (bool broadcast : {false, true}) {
              config_.model.init_broadcast = broadcast;
              expect_values_of(*whole, beginning(world_size, config_),
                               concat(architecture, tied ? " tied" : "", stored ? " stored" : "", " ", layout,
                                      " on ", world_size, broadcast ? " by broadcast" : ""));
            }
          }
        }
        config_.model.init_from.clear();
      }
    }
  }
}

// As of a parameter that is cut twice: the end of a row, whole rows and the beginning of a row of some
// columns.
TEST_F(InitialWeights, OfRectanglesAreThoseOfTheWholeWhateverTheOthersHold) {
  const std::string path = exported(config_.model).string();
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  auto model = nn::make_decoder(config_.model, at::kMeta);
  const shard::NamedParameter parameter{name, model->named_parameters()[name]};
  const int64_t rows = parameter.tensor.size(0), columns = parameter.tensor.size(1), half = columns / 2;
  const std::vector<std::vector<util::Rectangle>> of_ranks = {
      {{1, half, rows, 0, 1}, {0, half, rows, 1, rows - 2}, {0, 2, rows, rows - 2, rows - 1}},
      {{half, columns, rows, 2, 5}},
      {{0, 0, rows}}};
  for (const char* from : {"random", "stored", "broadcast"}) {
    const bool is_random = from == std::string("random");
    config_.model.init_from = is_random ? "" : path;
    const at::Tensor whole = testing::build_model(config_.model, 9)->named_parameters()[name].detach();
    comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
      const auto& parts = of_ranks[static_cast<size_t>(communicator.rank())];
      auto source = is_random ? random_weights(config_.model, 9)
                              : stored_weights(config_.model, checkpoint::open_weights(path));
      if (from == std::string("broadcast")) {
        source = broadcast_weights(std::move(source), borrowed(communicator));
      }
      const at::Tensor out = at::full({util::numel_of(parts)}, -3.0);
      source->read(parameter, parts, out);
      util::for_each_part(parts, out, [&](const util::Rectangle& part, const at::Tensor& values) {
        EXPECT_TRUE(at::equal(values, util::rectangle_view(whole, part).flatten()))
            << from << " on rank " << communicator.rank() << ", rows from " << part.row_begin;
      });
    });
  }
}

TEST_F(InitialWeights, ReportHowManyBytesOfTheModelWereReadOrDrawn) {
  const fs::path stored = exported(config_.model);
  for (const std::string words : {"drawing weights", "reading weights"}) {
    if (words == "reading weights") config_.model.init_from = stored;
    std::mutex mutex;
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      int64_t last = 0, whole = 0;
      KnownParts known;
      known.progress = [&](std::string_view phase, int64_t done, int64_t total) {
        const std::lock_guard lock(mutex);
        EXPECT_EQ(phase, words);
        EXPECT_GT(done, last);
        last = done, whole = total;
      };
      RunParts parts =
          build_run_parts(config_, comm::Mesh(config_.mesh, borrowed(communicator)), nullptr, known);
      const std::lock_guard lock(mutex);
      EXPECT_EQ(last, whole);
      EXPECT_EQ(whole, 4 * shard::parameter_count(*parts.engine, *parts.model));
    });
  }
}

TEST_F(InitialWeights, OfALowerPrecisionAreConverted) {
  fs::path path = exported(config_.model, [](const std::string& name, const at::Tensor& tensor) {
    return tensor.to(name.find("mlp") != std::string::npos ? at::kHalf : at::kBFloat16);
  });
  config_.model.init_from = path.string();
  auto whole = testing::build_model(config_.model, 1);
  EXPECT_FALSE(at::equal(
      whole->named_parameters()["lm_head.weight"],
      testing::build_model(testing::tiny_config(folder_).model, 5)->named_parameters()["lm_head.weight"]));
  expect_values_of(*whole, beginning(3, config_), "bfloat16 and float16");
}

TEST_F(InitialWeights, AreReadOnceInAllAndByTheirOwnersOnly) {
  fs::path path = exported(config_.model);
  int64_t all_bytes = 4 * nn::count_parameters(*nn::make_decoder(config_.model, at::kMeta));
  std::mutex mutex;
  std::vector<int64_t> bytes;
  comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
    auto model = nn::make_decoder(config_.model, at::kMeta);
    auto file = std::make_shared<WatchedSource>(path);
    checkpoint::Weights weights;
    weights.add(file);
    auto source = stored_weights(config_.model, std::move(weights));
    EXPECT_EQ(file->bytes, 0);
    auto engine =
        shard::fully_shard(*model, config_.fsdp, borrowed(communicator), nullptr, {source.get(), at::kCPU});
    EXPECT_LE(file->bytes, engine->shard_bytes());
    EXPECT_GE(file->bytes, engine->shard_bytes() - 4 * 4 * static_cast<int64_t>(engine->units().size()));
    std::lock_guard lock(mutex);
    bytes.push_back(file->bytes);
  });
  EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}), all_bytes);
}

TEST_F(InitialWeights, WithBroadcastAreReadByTheFirstRankOnly) {
  config_.model.init_from = exported(config_.model).string();
  config_.model.init_broadcast = true;
  auto whole = testing::build_model(config_.model, 1);
  comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
    config::Config config = config_;
    if (communicator.rank() != 0) config.model.init_from = folder_ / "not there";
    RunParts parts = build_run_parts(config, comm::Mesh(config.mesh, borrowed(communicator)), nullptr);
    for (const auto& [name, tensor] : shard::full_state_dict(*parts.engine)) {
      EXPECT_TRUE(at::equal(tensor, whole->named_parameters()[name])) << name;
    }
  });
}

TEST_F(InitialWeights, ThatDoNotFitAreListedAtOnceOnEveryRank) {
  config_.model.init_from = exported(config_.model, [](const std::string& name, const at::Tensor& tensor) {
                              if (name == "model.norm.weight") return at::Tensor();
                              if (name == "lm_head.weight") return at::zeros({3, 2});
                              if (name == "model.layers.0.input_layernorm.weight")
                                return tensor.to(at::kLong);
                              return tensor;
                            }).string();
  for (bool broadcast : {false, true}) {
    config_.model.init_broadcast = broadcast;
    std::mutex mutex;
    std::vector<std::string> texts;
    comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
      auto [kind, text] = error_of(
          [&] { build_run_parts(config_, comm::Mesh(config_.mesh, borrowed(communicator)), nullptr); });
      EXPECT_EQ(kind, ErrorKind::kCheckpoint);
      communicator.barrier({.unit = "after the error"});
      std::lock_guard lock(mutex);
      texts.push_back(text);
    });
    EXPECT_THAT(
        texts.front(),
        AllOf(HasSubstr("weights.safetensors do not match [model]"), HasSubstr("missing: model.norm.weight"),
              HasSubstr("lm_head.weight ([3, 2] instead of [17, 12])"),
              HasSubstr("model.layers.0.input_layernorm.weight (not of a floating-point type)")));
    EXPECT_EQ(texts[1], texts[0]);
    EXPECT_EQ(texts[2], texts[0]);
    EXPECT_EQ(texts.front().find("(on rank 0)") != std::string::npos, broadcast) << texts.front();
  }
}

TEST_F(InitialWeights, WithTensorsThatNothingUsesAreRefusedUnlessThoseAreNamed) {
  const auto write = [&](const testing::NamedTensors& more) {
    testing::NamedTensors tensors = more;
    for (const auto& parameter : testing::build_model(testing::tiny_options(), 5)->named_parameters()) {
      tensors.emplace_back(parameter.key(), parameter.value().detach().clone());
    }
    testing::write_safetensors(folder_ / "more.safetensors", tensors);
  };
  config_.model.init_from = folder_ / "more.safetensors";
  // What carries no information is always left out.
  write({{"model.layers.0.self_attn.rotary_emb.inv_freq", at::ones({3})}});
  const auto whole = beginning(2, config_);
  write({{"model.layers.0.self_attn.q_norm.weight", at::ones({3})}, {"score.weight", at::ones({2, 12})}});
  auto [kind, text] = error_of([&] { testing::build_model(config_.model, 1); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, AllOf(HasSubstr("unexpected: model.layers.0.self_attn.q_norm.weight, score.weight"),
                          HasSubstr("model.init_unused")));
  config_.model.init_unused = {"score.*"};
  EXPECT_THAT(error_of([&] { testing::build_model(config_.model, 1); }).second,
              AllOf(HasSubstr("q_norm"), ::testing::Not(HasSubstr("score"))));
  config_.model.init_unused.push_back("*.q_norm.weight");
  expect_values_of(*testing::build_model(config_.model, 1), whole, "with unused tensors");
}

TEST_F(InitialWeights, MayLackThePrefixOfTheLanguageModelAndHaveMasks) {
  config_.model = testing::tiny_options("gpt2");
  config_.model.tie_word_embeddings = true;
  auto model = testing::build_model(config_.model, 5);
  testing::NamedTensors tensors = {{"h.0.attn.bias", at::ones({1, 1, 4, 4})}};
  for (const auto& parameter : model->named_parameters()) {
    const std::string prefix = "transformer.";
    if (!parameter.key().starts_with(prefix)) continue;
    tensors.emplace_back(parameter.key().substr(prefix.size()), parameter.value().detach().clone());
  }
  testing::write_safetensors(folder_ / "gpt2.safetensors", tensors);
  config_.model.init_from = folder_ / "gpt2.safetensors";
  expect_values_of(*model, beginning(2, config_), "names as the hub's gpt2 has them");
}

TEST_F(InitialWeights, OfAnotherModelByTheirConfigAreRefusedThoughAllNamesAndShapesAreTheSame) {
  fs::create_directories(folder_ / "hf");
  fs::rename(exported(config_.model), folder_ / "hf/model.safetensors");
  config_.model.init_from = folder_ / "hf";
  const auto with_config = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = checkpoint::hugging_face_config(config_.model);
    change(json);
    std::ofstream(folder_ / "hf/config.json") << json.dump();
    return error_of([&] { beginning(2, config_); });
  };
  EXPECT_EQ(with_config([](auto& json) { json["model_type"] = "qwen2_moe"; }).first, ErrorKind::kCheckpoint);
  EXPECT_THAT(with_config([](auto& json) { json["model_type"] = "qwen2_moe"; }).second,
              HasSubstr("qwen2_moe"));
  EXPECT_THAT(with_config([](auto& json) { json["rope_theta"] = 7500.5; }).second,
              AllOf(HasSubstr("model.rope_theta must be 7500.5"), HasSubstr("but is 10000.0")));
  EXPECT_THAT(with_config([](auto& json) {
                json["rope_scaling"] = {{"rope_type", "llama3"},
                                        {"factor", 8.0},
                                        {"low_freq_factor", 1.0},
                                        {"high_freq_factor", 4.0},
                                        {"original_max_position_embeddings", 8}};
              }).second,
              HasSubstr("model.rope_type must be \"llama3\""));
  std::ofstream(folder_ / "hf/config.json") << checkpoint::hugging_face_config(config_.model).dump();
  EXPECT_FALSE(beginning(2, config_).empty());
}

TEST_F(InitialWeights, ThatCannotBeReadHalfwayEndEveryRankAlike) {
  fs::path path = exported(config_.model);
  for (bool broadcast : {false, true}) {
    std::mutex mutex;
    std::set<std::string> texts;
    comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
      auto model = nn::make_decoder(config_.model, at::kMeta);
      std::unique_ptr<shard::ParameterSource> source;
      if (!broadcast || communicator.rank() == 0) {
        auto file = std::make_shared<WatchedSource>(path);
        file->bad_tensor = "model.layers.1.mlp.up_proj.weight";
        checkpoint::Weights weights;
        weights.add(file);
        source = stored_weights(config_.model, std::move(weights));
      }
      if (broadcast) source = broadcast_weights(std::move(source), borrowed(communicator));
      auto [kind, text] = error_of([&] {
        comm::agree(communicator, "sharding", [&] {
          shard::fully_shard(*model, config_.fsdp, borrowed(communicator), nullptr, {source.get(), at::kCPU});
        });
      });
      EXPECT_EQ(kind, ErrorKind::kIo);
      EXPECT_THAT(text, HasSubstr("cannot read model.layers.1.mlp.up_proj.weight: a bad block"));
      communicator.barrier({.unit = "after the error"});
      std::lock_guard lock(mutex);
      texts.insert(text);
    });
    EXPECT_EQ(texts.size(), 1u);
  }
}

TEST_F(InitialWeights, TakeNoMoreMemoryThanTheShardsAndOneParameter) {
  nn::ModelOptions options;
  options.hidden_size = 64;
  options.intermediate_size = 256;
  options.num_hidden_layers = 16;
  const std::string path = exported(options).string();
  shard::ShardOptions units;
  units.min_num_params = 10'000;
  comm::SingleCommunicator single;
  for (const char* layout : {"flat", "per_parameter"}) {
    for (const char* from : {"random", "stored", "broadcast"}) {
      // Threads share the allocator, so one rank of eight is made at a time, as its own process would be.
      for (int rank = 0; rank < 8; ++rank) {
        auto model = nn::make_decoder(options, at::kMeta);
        auto source = from == std::string("random") ? random_weights(options, 1)
                                                    : stored_weights(options, checkpoint::open_weights(path));
        if (from == std::string("broadcast")) source = broadcast_weights(std::move(source), borrowed(single));
        auto pool = std::make_shared<shard::BufferPool>(borrowed(single));
        testing::CountingAllocator::Scope tensors;
        int64_t shard_bytes = 0, largest_bytes = 0;
        std::vector<std::unique_ptr<shard::UnitStorage>> storages;
        for (const shard::UnitPlan& plan : shard::plan_units(*model, units)) {
          for (const auto& parameter : plan.parameters) {
            largest_bytes = std::max(largest_bytes, 4 * parameter.tensor.numel());
          }
          shard::StorageOptions storage;
          storage.layout = layout;
          storages.push_back(
              std::make_unique<shard::UnitStorage>(plan.parameters, shard::ShardPlace{rank, 8}, storage, pool,
                                                   shard::Materialize{source.get(), at::kCPU}));
          shard_bytes += static_cast<int64_t>(storages.back()->shard().nbytes());
        }
        std::string what = concat(layout, ", ", from, ", rank ", rank);
        if (from == std::string("stored") && layout == std::string("per_parameter")) {
          // Columns of a few bytes are read by rows, in slices.
          largest_bytes = std::max(largest_bytes, checkpoint::Weights::kSliceBytes);
        }
        // Beside them the states of random generators and the flag of a broadcast.
        EXPECT_LE(tensors.peak_bytes(), shard_bytes + largest_bytes + 8192) << what;
        EXPECT_LE(tensors.live_bytes(),
                  shard_bytes + (from == std::string("stored") ? checkpoint::Weights::kSliceBytes : 0))
            << what;
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::train
