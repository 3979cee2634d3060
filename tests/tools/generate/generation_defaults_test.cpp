#include "tools/generate/generation_defaults.h"

#include <gtest/gtest.h>

#include "base/util/error.h"
#include "support/temporary_folder.h"

namespace fsdp::generate {
namespace {

class GenerationDefaultsOf : public ::testing::Test {
 protected:
  GenerationDefaults of(const std::string& json) {
    folder_.write("generation_config.json", json);
    return generation_defaults(model_);
  }
  std::string error_of(const std::string& json) {
    try {
      of(json);
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
      return error.what();
    }
    return "nothing was thrown";
  }

  testing::TemporaryFolder folder_;
  checkpoint::DescribedModel model_ = [this] {
    checkpoint::DescribedModel model;
    model.folder = folder_.path();
    return model;
  }();
};

TEST_F(GenerationDefaultsOf, AreThoseOfTheFile) {
  const GenerationDefaults none = generation_defaults(model_);
  EXPECT_TRUE(none.file.empty() && none.stop_ids.empty() && !none.temperature);
  const GenerationDefaults defaults = of(
      R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": null, "eos_token_id": [128001, 128009]})");
  EXPECT_EQ(defaults.file.filename(), "generation_config.json");
  EXPECT_EQ(defaults.stop_ids, (std::vector<int64_t>{128001, 128009}));
  EXPECT_EQ(defaults.temperature, 0.6);
  EXPECT_EQ(defaults.top_k, 20);
  EXPECT_FALSE(defaults.top_p);
  EXPECT_EQ(of(R"({"eos_token_id": 2})").stop_ids, std::vector<int64_t>{2});
  EXPECT_EQ(of(R"({"do_sample": false, "temperature": 1.0})").temperature, 0);
}

TEST_F(GenerationDefaultsOf, AreUsedWhereTheUserSaysNothing) {
  const GenerationDefaults defaults = of(R"({"temperature": 0.6, "top_p": 0.9})");
  const SamplingOptions sampling = chosen_sampling({.temperature = 1.5}, defaults, {.top_k = 7});
  EXPECT_EQ(sampling.temperature, 1.5);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.top_p, 0.9);
  EXPECT_EQ(defaults_text({.temperature = 1.5}, defaults), "top-p 0.9");
  EXPECT_EQ(defaults_text({}, defaults), "temperature 0.6, top-p 0.9");
}

TEST_F(GenerationDefaultsOf, RefuseWhatIsNoConfig) {
  EXPECT_NE(error_of("[]").find("must be a JSON object"), std::string::npos);
  EXPECT_NE(error_of("{").find("generation_config.json"), std::string::npos);
  EXPECT_NE(error_of(R"({"temperature": "hot"})").find("must have a number as temperature, but has \"hot\""),
            std::string::npos);
  EXPECT_NE(error_of(R"({"top_k": 1.5})").find("must have a number as top_k"), std::string::npos);
  EXPECT_NE(error_of(R"({"top_p": 2})").find("has a value out of range"), std::string::npos);
}

}  // namespace
}  // namespace fsdp::generate
