#include "shard/engine/parameter_source.h"

#include <gtest/gtest.h>

#include <mutex>

#include "base/tensor/rectangle_view.h"
#include "base/util/error.h"
#include "comm/api/communicator.h"
#include "model/nn/layers.h"
#include "model/nn/parameter.h"
#include "shard/engine/fully_shard.h"
#include "support/counting_allocator.h"
#include "support/nested_models.h"
#include "support/shard_setups.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

/// Returns a model's values and records the requests.
class ValuesOf final : public ParameterSource {
 public:
  explicit ValuesOf(nn::Stage& model) : model_(model) {}

  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override {
    asked.push_back(parameter.name);
    numel += out.numel();
    EXPECT_TRUE(parameter.tensor.is_meta());
    EXPECT_EQ(out.numel(), util::numel_of(parts));
    EXPECT_TRUE(out.is_contiguous());
    at::NoGradGuard no_grad;
    const at::Tensor whole = model_.named_parameters()[parameter.name].detach();
    util::for_each_part(parts, out, [&](const util::Rectangle& part, const at::Tensor& values) {
      values.view({part.height(), part.length()}).copy_(util::rectangle_view(whole, part));
    });
  }

  std::vector<std::string> asked;
  int64_t numel = 0;

 private:
  nn::Stage& model_;
};

nn::ModelOptions options_of(const std::string& architecture, bool tied) {
  auto options = testing::tiny_options(architecture);
  options.tie_word_embeddings = tied;
  return options;
}

void expect_equal_models(const FullStateDict& a, const FullStateDict& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name) << what;
    EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << what << ", " << a[i].name;
  }
}

std::vector<testing::ShardSetup> both_layouts(const std::vector<testing::ShardSetup>& setups) {
  std::vector<testing::ShardSetup> all = setups;
  for (const testing::ShardSetup& setup : setups) {
    all.push_back({setup.name + ", per_parameter", setup.options});
    all.back().options.layout = "per_parameter";
  }
  return all;
}

class FromTheMetaDevice : public ::testing::TestWithParam<int> {};

TEST_P(FromTheMetaDevice, ShardsAreThoseOfAModelWithValues) {
  comm::run_ranks_as_threads(GetParam(), [](comm::Communicator& communicator) {
    at::set_num_threads(1);
    for (const char* architecture : {"llama", "gpt2"}) {
      for (bool tied : {false, true}) {
        for (auto [name, options] : both_layouts(testing::shard_setups())) {
          auto model = options_of(architecture, tied);
          // The patterns of the setups are those of another model.
          if (!options.replicated_parameters.empty()) {
            options.replicated_parameters = {model.architecture == "llama" ? "*layernorm*" : "*ln_*"};
          }
          if (model.architecture == "llama") options.mixed_precision.keep_float32.clear();
          std::string what = concat(architecture, tied ? ", tied, " : ", ", name);
          SCOPED_TRACE(what);
          auto eager = testing::make_initialized(model), values = testing::make_initialized(model);
          auto deferred = nn::make_decoder(model, at::kMeta);
          ValuesOf source(*values);
          auto of_eager = fully_shard(*eager, options, testing::borrowed(communicator));
          auto of_deferred =
              fully_shard(*deferred, options, testing::borrowed(communicator), nullptr, {&source, at::kCPU});
          ASSERT_EQ(of_deferred->units().size(), of_eager->units().size());
          for (size_t i = 0; i < of_eager->units().size(); ++i) {
            EXPECT_TRUE(at::equal(of_deferred->units()[i]->storage().shard(),
                                  of_eager->units()[i]->storage().shard()));
          }
          for (const auto& parameter : deferred->named_parameters()) {
            EXPECT_TRUE(parameter.value().is_cpu()) << parameter.key();
            EXPECT_TRUE(parameter.value().is_leaf() && parameter.value().requires_grad()) << parameter.key();
          }
          expect_equal_models(full_state_dict(*of_deferred), full_state_dict(*of_eager), what);
        }
      }
    }
  });
}

TEST_P(FromTheMetaDevice, TrainsLikeAModelWithValues) {
  comm::run_ranks_as_threads(GetParam(), [](comm::Communicator& communicator) {
    at::set_num_threads(1);
    for (const char* architecture : {"llama", "gpt2"}) {
      for (const char* dtype : {"float32", "bfloat16"}) {
        for (const char* layout : {"flat", "per_parameter"}) {
          testing::RunPlan plan;
          plan.shard.layout = layout;
          plan.model = options_of(architecture, true);
          plan.shard.min_num_params = 1;
          plan.shard.mixed_precision.param_dtype = dtype;
          plan.global_rows = 24;
          auto values = testing::make_initialized(plan.model);
          ValuesOf source(*values);
          auto train = [&](nn::Stage& model, const Materialize& materialize) {
            auto engine =
                fully_shard(model, plan.shard, testing::borrowed(communicator), nullptr, materialize);
            std::vector<double> losses;
            for (int64_t step = 0; step < 3; ++step) {
              engine->zero_gradients();
              losses.push_back(testing::accumulate_gradients(model, *engine, plan, step));
              testing::sgd_on_shards(*engine, 0.5);
            }
            return std::pair(losses, full_state_dict(*engine));
          };
          auto eager = testing::make_initialized(plan.model);
          auto deferred = nn::make_decoder(plan.model, at::kMeta);
          auto [eager_losses, eager_weights] = train(*eager, {});
          auto [losses, weights] = train(*deferred, {&source, at::kCPU});
          EXPECT_EQ(losses, eager_losses);
          EXPECT_LT(losses.back(), losses.front());
          expect_equal_models(weights, eager_weights, concat(architecture, ", ", dtype, ", ", layout));
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, FromTheMetaDevice, ::testing::Values(1, 2, 3, 8));

TEST(ParameterSource, IsAskedOnEveryRankForEveryParameterOnceInOneOrder) {
  std::mutex mutex;
  std::vector<std::vector<std::string>> asked(8);
  int64_t numel = 0;
  auto options = options_of("llama", true);
  comm::run_ranks_as_threads(8, [&](comm::Communicator& communicator) {
    auto values = testing::make_initialized(options);
    auto model = nn::make_decoder(options, at::kMeta);
    ValuesOf source(*values);
    ShardOptions shard;
    shard.min_num_params = 1;
    fully_shard(*model, shard, testing::borrowed(communicator), nullptr, {&source, at::kCPU});
    std::lock_guard lock(mutex);
    asked[static_cast<size_t>(communicator.rank())] = source.asked;
    numel += source.numel;
  });
  for (const auto& names : asked) EXPECT_EQ(names, asked.front());
  auto model = nn::make_decoder(options, at::kMeta);
  EXPECT_EQ(std::set<std::string>(asked[0].begin(), asked[0].end()).size(), asked[0].size());
  EXPECT_EQ(asked[0].size(), model->named_parameters().size() - 1);  // the head is tied
  EXPECT_EQ(numel, nn::count_parameters(*model)) << "no element is read twice";
}

TEST(ParameterSource, NothingIsAllocatedButTheShards) {
  auto options = testing::tiny_options();
  options.vocab_size = 1000;
  options.hidden_size = 64;
  options.intermediate_size = 256;
  options.num_hidden_layers = 16;
  struct Zeros final : ParameterSource {
    void read(const NamedParameter&, const std::vector<util::Rectangle>&, const at::Tensor& out) override {
      out.zero_();
    }
  } zeros;
  comm::SingleCommunicator single;
  for (const char* layout : {"flat", "per_parameter"}) {
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      // Threads share the allocator, so one rank of eight is made at a time, as its own process would be.
      for (int rank = 0; rank < 8; ++rank) {
        auto model = nn::make_decoder(options, at::kMeta);
        auto pool = std::make_shared<BufferPool>(testing::borrowed(single));
        ShardOptions shard;
        shard.min_num_params = 10'000;
        testing::CountingAllocator::Scope tensors;
        int64_t shard_bytes = 0;
        std::vector<std::unique_ptr<UnitStorage>> storages;
        for (const UnitPlan& plan : plan_units(*model, shard)) {
          StorageOptions storage;
          storage.layout = layout;
          storage.param_dtype = dtype;
          storages.push_back(std::make_unique<UnitStorage>(plan.parameters, ShardPlace{rank, 8}, storage,
                                                           pool, Materialize{&zeros, at::kCPU}));
          shard_bytes += static_cast<int64_t>(storages.back()->shard().nbytes());
        }
        EXPECT_GT(storages.size(), 16u);
        EXPECT_LE(tensors.peak_bytes(), shard_bytes) << layout << ", rank " << rank;
        EXPECT_LT(7 * shard_bytes, 4 * nn::count_parameters(*model));
      }
    }
  }
}

std::string failure(nn::Stage& model, const Materialize& materialize = {}) {
  comm::SingleCommunicator single;
  try {
    fully_shard(model, {}, testing::borrowed(single), nullptr, materialize);
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ParameterSource, AParameterWithoutValuesAndSourceIsNamed) {
  auto model = nn::make_decoder(testing::tiny_options(), at::kMeta);
  std::string text = failure(*model);
  EXPECT_NE(text.find("parameter model.embed_tokens.weight"), std::string::npos) << text;
  EXPECT_NE(text.find("ParameterSource"), std::string::npos) << text;
}

/// One parameter has values, the other and the buffer lie on `device`.
class MixedStage final : public nn::Stage {
 public:
  explicit MixedStage(at::Device buffers) {
    register_parameter("real", at::full({3}, 2.0f));
    register_parameter("deferred", at::empty({5}, at::TensorOptions().device(at::kMeta)));
    register_buffer("table", at::ones({2}, at::TensorOptions().device(buffers)));
  }
  std::string type_name() const override { return "mixed"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const nn::StageContext&) override {
    return x * named_parameters()["real"].sum() + named_parameters()["deferred"].sum();
  }
};

struct Threes final : ParameterSource {
  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>&,
            const at::Tensor& out) override {
    EXPECT_EQ(parameter.name, "deferred");
    out.fill_(3);
  }
};

TEST(ParameterSource, ParametersWithValuesKeepThem) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    MixedStage stage(at::kCPU);
    Threes source;
    auto engine = fully_shard(stage, {}, testing::borrowed(communicator), nullptr, {&source, at::kCPU});
    EXPECT_EQ(stage.forward(at::ones({1})).item<float>(), 6 + 15);
  });
}

TEST(ParameterSource, ABufferWithoutValuesIsNamed) {
  MixedStage stage(at::kMeta);
  Threes source;
  std::string text = failure(stage, {&source, at::kCPU});
  EXPECT_NE(text.find("buffer table"), std::string::npos) << text;
}

TEST(ParameterSource, GradientsOfAModelThatRanOnTheMetaDeviceBeforeAreRight) {
  comm::SingleCommunicator single;
  std::shared_ptr<nn::Linear> linear;
  {
    nn::ParameterDevice on_meta(at::kMeta);
    linear = std::make_shared<nn::Linear>(3, 2);
  }
  nn::StageAdaptor<nn::Linear> stage(linear);
  // Shapes only; the graph of it is still there while the model is sharded.
  at::Tensor shape = stage.forward(at::ones({1, 3}, at::TensorOptions().device(at::kMeta)));
  EXPECT_TRUE(shape.requires_grad());
  struct Halves final : ParameterSource {
    void read(const NamedParameter&, const std::vector<util::Rectangle>&, const at::Tensor& out) override {
      out.fill_(0.5);
    }
  } source;
  auto engine = fully_shard(stage, {}, testing::borrowed(single), nullptr, {&source, at::kCPU});
  at::Tensor y = stage.forward(at::full({1, 3}, 2.0f));
  EXPECT_TRUE(at::equal(y, at::full({1, 2}, 3.0f)));
  y.sum().backward();
  EXPECT_TRUE(at::equal(engine->units()[0]->storage().shard_gradient(), at::full({6}, 2.0f)));
}

}  // namespace
}  // namespace fsdp::shard
