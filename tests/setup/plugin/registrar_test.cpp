#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "base/util/error.h"
#include "data/loading/loader.h"
#include "model/nn/initialize.h"
#include "model/nn/key_value_cache.h"
#include "model/nn/loss.h"
#include "setup/config/load.h"
#include "setup/config/model_description.h"
#include "setup/config/print.h"
#include "setup/plugin/plugin.h"

namespace fsdp::plugin {
namespace {

using util::Error;

constexpr const char* kText =
    "[data]\ntrain = [\"3\"]\n[model]\narchitecture = \"sum\"\nvocab_size = 8\nhidden_size = 4\n";

/// Scores of the sum of all tokens so far; keeps nothing in a key-value cache.
class SumModel final : public nn::Stage {
 public:
  explicit SumModel(const nn::ModelOptions& options)
      : factor_(options.plugin_values.get<int64_t>("sums.factor")) {
    embed_ =
        register_module("embed", torch::nn::Embedding(options.vocab_size, options.hidden_size * factor_));
    head_ = register_module("head", torch::nn::Linear(options.hidden_size * factor_, options.vocab_size));
  }
  std::string type_name() const override { return "sum"; }

 protected:
  at::Tensor compute(const at::Tensor& ids, const nn::StageContext&) override {
    return head_->forward(embed_->forward(ids).cumsum(1));
  }

 private:
  int64_t factor_;
  torch::nn::Embedding embed_ = nullptr;
  torch::nn::Linear head_ = nullptr;
};

/// Sample i counts up from i; entry "3" gives three of them.
class Counting final : public data::Samples {
 public:
  explicit Counting(const data::SamplesRequest& request)
      : length_(request.options.sequence_length), samples_(std::stoll(request.entries.front())) {}
  int64_t num_samples() const override { return samples_; }
  int64_t num_tokens() const override { return samples_ * length_; }
  std::string name() const override { return "counting"; }
  Row read(int64_t sample, int64_t* inputs, int64_t* targets) const override {
    for (int64_t i = 0; i < length_; ++i) {
      inputs[i] = sample + i;
      targets[i] = i == 0 ? data::kIgnoredTarget : sample + i + 1;
    }
    return {};
  }

 private:
  int64_t length_, samples_;
};

/// Registered once per process, as a plug-in is.
class Plugin : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (nn::architectures().find("sum") != nullptr) return;
    Registrar registrar("sums");
    registrar.add_key("factor", int64_t{2}, "width of the sums", config::between(1, 9));
    registrar.add_key("mode", std::string("plain"), "how", config::one_of({"plain", "signed"}));
    registrar.add_key("patterns", std::vector<std::string>{"*"}, "which");
    registrar.add_model(
        "sum",
        {.make = [](const nn::ModelOptions& options) { return std::make_shared<SumModel>(options); },
         .check = nullptr,
         .deviation = [](const std::string& name,
                         const nn::ModelOptions&) { return name == "embed.weight" ? 0.0 : 1.0; }},
        {"factor"});
    registrar.add_loss(
        "first_logit", [](const at::Tensor& logits, const at::Tensor&, const util::PluginValues& values) {
          return logits.select(-1, 0).sum() * static_cast<double>(values.get<int64_t>("sums.factor"));
        });
    registrar.add_objective(
        "margin", {.rows = nn::ObjectiveRows::kPairs,
                   .loss = [](const nn::CompletionScores& scores, const nn::PreferenceOptions& options,
                              const util::PluginValues& values) {
                     const auto [chosen, rejected] = nn::chosen_and_rejected(scores.relative());
                     const auto factor = static_cast<double>(values.get<int64_t>("sums.factor"));
                     return factor * (options.simpo_gamma - chosen + rejected);
                   }});
    registrar.add_schedule("half",
                           [](const optim::ScheduleOptions&, const optim::ScheduleMoment&) { return 0.5; });
    registrar.add_dataset(
        "counting", [](const data::SamplesRequest& request) { return std::make_unique<Counting>(request); });
    registrar.finish();
  }

  static config::Config parse(const std::vector<std::string>& overrides = {}) {
    return config::parse_config(kText, "config.toml", overrides);
  }
  static std::string error_of(const std::vector<std::string>& overrides) {
    try {
      parse(overrides);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(Plugin, HasKeysThatAreReadCheckedAndPrintedAsBuiltInOnesAre) {
  EXPECT_EQ(parse().plugin_values.get<int64_t>("sums.factor"), 2);
  const config::Config config = parse({"sums.factor=3", "sums.mode=signed", "sums.patterns=[\"a\", \"b\"]"});
  EXPECT_EQ(config.model.plugin_values.get<int64_t>("sums.factor"), 3);
  EXPECT_EQ(config.optimizer.plugin_values.get<std::string>("sums.mode"), "signed");
  EXPECT_EQ(config.data.plugin_values.get<std::vector<std::string>>("sums.patterns").size(), 2u);
  const std::string text = config::to_toml(config);
  EXPECT_NE(text.find("[sums]\nfactor = 3\nmode = \"signed\"\npatterns = [\"a\", \"b\"]\n"),
            std::string::npos);
  EXPECT_EQ(config::differing_keys(parse(), config).size(), 3u);
  EXPECT_EQ(config::to_toml(config::parse_config(text, "again.toml")), text);
  EXPECT_NE(config::key_reference().find("width of the sums [>= 1 and <= 9]"), std::string::npos);

  EXPECT_NE(error_of({"sums.factor=10"}).find("sums.factor must be an integer >= 1 and <= 9, but is 10"),
            std::string::npos);
  EXPECT_NE(error_of({"sums.mode=sined"}).find("did you mean \"signed\"?"), std::string::npos);
  EXPECT_NE(error_of({"sums.fator=1"}).find("did you mean sums.factor?"), std::string::npos);
  EXPECT_NE(error_of({"model.architecture=sun"}).find("\"smollm3\", \"sum\""), std::string::npos);
}

TEST_F(Plugin, HasAModelThatIsMadeOnAnyDeviceAndInitializedByItsOwnRule) {
  const config::Config config = parse({"sums.factor=3"});
  const auto meta = nn::make_decoder(config.model, at::kMeta);
  for (const auto& parameter : meta->named_parameters())
    EXPECT_TRUE(parameter.value().is_meta()) << parameter.key();
  EXPECT_EQ(nn::count_parameters(*meta), 8 * 12 + 12 * 8 + 8);
  const auto model = nn::make_decoder(config.model);
  nn::initialize_parameters(*model, config.model, 1);
  EXPECT_EQ(model->named_parameters()["embed.weight"].abs().max().item<float>(), 0);
  EXPECT_GT(model->named_parameters()["head.weight"].std().item<double>(), 0.7);
}

TEST_F(Plugin, HasALossThatSeesTheLogits) {
  const config::Config config = parse({"training.loss=first_logit"});
  auto model = nn::make_decoder(config.model);
  nn::initialize_parameters(*model, config.model, 1);
  const at::Tensor ids = at::zeros({1, 2}, at::kLong);
  const at::Tensor loss = nn::loss_of(*model, ids, ids,
                                      {.function = nn::losses().get(config.training.loss, "training.loss"),
                                       .plugin_values = config.plugin_values});
  EXPECT_EQ(loss.item<double>(), model->forward(ids).select(-1, 0).sum().item<double>() * 2);
  for (const std::string term : {"training.z_loss", "training.label_smoothing"}) {
    EXPECT_NE(error_of({"training.loss=first_logit", term + "=0.1"})
                  .find(term + " matters only when training.loss is cross_entropy and training.objective is "
                               "language_model, but is 0.1"),
              std::string::npos);
    EXPECT_NO_THROW(parse({term + "=0.1"}));
  }
}

TEST_F(Plugin, HasAnObjectiveThatSeesTheScoresOfAnswers) {
  const config::Config config =
      parse({"training.objective=margin", "sums.factor=3", "preference.simpo_gamma=5",
             "preference.cpo_alpha=2", "preference.exchanged_rows=4", "preference.length_normalised=true"});
  EXPECT_EQ(config.data.preference.rows, data::PreferenceRows::kPairs);
  nn::CompletionScores scores;
  scores.log_probs = at::tensor({-1.0, -4.0, -2.0, -9.0}, at::kDouble);
  const at::Tensor found =
      nn::preference_losses(config.training.objective, scores, config.preference, config.plugin_values);
  EXPECT_TRUE(found.equal(at::tensor({3.0 * (5 - 3), 3.0 * (5 - 7)}, at::kDouble))) << found;
  EXPECT_NE(error_of({"training.objective=margin", "training.loss=first_logit"})
                .find("training.loss matters only when training.objective is language_model"),
            std::string::npos);
  EXPECT_NE(error_of({"training.objective=margin", "preference.reference=stored"})
                .find("preference.reference matters only when training.objective has a reference"),
            std::string::npos);
  EXPECT_NE(error_of({"training.objective=margin", "data.dataset=counting"})
                .find("data.dataset must be \"token_files\" with training.objective = \"margin\""),
            std::string::npos);
}

TEST_F(Plugin, MayReadAnyKeyOfItsModelAndSchedule) {
  EXPECT_NO_THROW(parse({"model.rope_theta=5e5", "model.layer_norm_epsilon=1e-6", "lr_scheduler.name=half",
                         "lr_scheduler.hold_steps=3", "lr_scheduler.power=2"}));
}

TEST_F(Plugin, HasAScheduleThatWarmsUpAsOthersDo) {
  const config::Config config =
      parse({"lr_scheduler.name=half", "lr_scheduler.warmup_steps=2", "optimizer.lr=1"});
  EXPECT_EQ(optim::lr_at(config.optimizer, config.lr_scheduler, 1, 9), 0.5);
  EXPECT_EQ(optim::lr_at(config.optimizer, config.lr_scheduler, 2, 9), 1);
  EXPECT_EQ(optim::lr_at(config.optimizer, config.lr_scheduler, 3, 9), 0.5);
}

TEST_F(Plugin, HasADataSetWhoseRowsAreCompared) {
  config::Config config = parse(
      {"data.dataset=counting", "data.sequence_length=4", "data.micro_batch_size=3", "data.shuffle=false"});
  data::TrainLoader loader(config.data, 8, 1, {});
  const data::Batch batch = loader.batch(0, 0);
  EXPECT_EQ(batch.counted, 9);  // of 12, the first of each row is ignored
  EXPECT_EQ(batch.inputs[2][3].item<int64_t>(), 5);
  EXPECT_TRUE(data::counts_vary(config.data));
  const nlohmann::json identity = loader.sets().front().samples->identity();
  ASSERT_EQ(identity.size(), 1u);
  EXPECT_EQ(identity[0]["tokens"], 12);
  EXPECT_EQ(identity, data::TrainLoader(config.data, 8, 1, {}).sets().front().samples->identity());
  EXPECT_THROW(data::TrainLoader(config.data, 6, 1, {}).batch(0, 0), Error);  // token 6 of sample 2
  config.data.documents = "mask";  // these rows do not say where documents begin
  EXPECT_THROW(data::TrainLoader(config.data, 8, 1, {}).batch(0, 0), Error);
}

TEST_F(Plugin, IsDescribedBesideItsWeightsAndReadBack) {
  config::Config config = parse({"sums.factor=5", "model.hidden_size=16"});
  config.run.plugins = {"libsums.so"};
  checkpoint::DescribedModel described;
  described.config = config::model_description(config);
  checkpoint::read_model_config(described);
  EXPECT_EQ(described.options.architecture, "sum");
  EXPECT_EQ(described.plugins, config.run.plugins);
  const nn::ModelOptions model = config::model_of(described);
  EXPECT_EQ(model.hidden_size, 16);
  EXPECT_EQ(model.plugin_values.get<int64_t>("sums.factor"), 5);

  described.options.architecture = "unheard_of";
  try {
    config::model_of(described);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
    EXPECT_NE(std::string(error.what()).find("but is unheard_of of the plug-in libsums.so"),
              std::string::npos);
  }
}

TEST_F(Plugin, GeneratesWithoutAKeyValueCacheOfItsOwn) {
  const at::NoGradGuard no_grad;
  const config::Config config = parse();
  auto model = nn::make_decoder(config.model);
  torch::manual_seed(1);
  for (at::Tensor& parameter : model->parameters()) parameter.set_requires_grad(false).normal_();
  nn::KeyValueCache cache(config.model, 4);
  const at::Tensor ids = at::randint(8, {2, 4}, at::kLong);
  const at::Tensor whole = model->forward(ids);
  // Not bit for bit: libraries may sum the products of other numbers of rows in another order.
  const auto expect_near = [](const at::Tensor& found, const at::Tensor& expected) {
    EXPECT_TRUE(at::allclose(found, expected, 1e-5, 1e-5)) << found << expected;
  };
  expect_near(nn::next_scores(*model, ids.narrow(1, 0, 2), cache), whole.select(1, 1));
  expect_near(nn::next_scores(*model, ids.narrow(1, 2, 1), cache), whole.select(1, 2));
  expect_near(nn::scores(*model, ids.narrow(1, 3, 1), cache), whole.narrow(1, 3, 1));
  EXPECT_THROW(nn::next_scores(*model, ids.narrow(1, 0, 1), cache), Error);
}

TEST_F(Plugin, RefusesNamesThatAreTakenOrNoWords) {
  Registrar other("others");
  EXPECT_THROW(other.add_model("llama", {.make = [](const nn::ModelOptions&) { return nullptr; }}), Error);
  EXPECT_THROW(other.add_loss("cross_entropy", [](const at::Tensor& a, const at::Tensor&,
                                                  const util::PluginValues&) { return a; }),
               Error);
  const nn::PreferenceLoss preference = [](const nn::CompletionScores& scores, const nn::PreferenceOptions&,
                                           const util::PluginValues&) { return scores.log_probs; };
  EXPECT_THROW(other.add_objective("dpo", {.rows = nn::ObjectiveRows::kPairs, .loss = preference}), Error);
  EXPECT_THROW(other.add_schedule(
                   "half", [](const optim::ScheduleOptions&, const optim::ScheduleMoment&) { return 1.0; }),
               Error);
  other.add_key("a", true, "");
  EXPECT_THROW(other.add_key("a", true, ""), Error);
  EXPECT_THROW(other.add_key("A b", true, ""), Error);
  EXPECT_THROW(Registrar("Others!"), Error);
  EXPECT_THROW(Registrar("model").finish(), Error);
}

}  // namespace
}  // namespace fsdp::plugin
