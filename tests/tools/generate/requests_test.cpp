#include "tools/generate/requests.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <string>

#include "base/util/error.h"
#include "support/tiny_models.h"

namespace fsdp::generate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::make_initialized;
using testing::tiny_options;

std::vector<Request> requests_in(const std::string& text, bool generates = false) {
  std::istringstream from(text);
  return read_requests(from, "r.jsonl", generates);
}

std::string refusal_of_requests(const std::string& text, bool generates = false) {
  try {
    requests_in(text, generates);
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(Requests, AreContinuationsAndTexts) {
  const auto found =
      requests_in("{\"context\": \"a\", \"continuation\": \" b\", \"id\": [7]}\r\n\n{\"text\": \"c\"}\n");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].kind, Request::Kind::kContinuation);
  EXPECT_EQ(found[0].context, "a");
  EXPECT_EQ(found[0].text, " b");
  EXPECT_EQ(found[0].id.dump(), "[7]");
  EXPECT_EQ(found[1].kind, Request::Kind::kText);
  EXPECT_EQ(found[1].text, "c");
  EXPECT_TRUE(found[1].id.is_null());
}

TEST(Requests, AreTextsUntilAString) {
  const auto found = requests_in(R"({"context": "a", "until": "\n"})"
                                 "\n"
                                 R"({"context": "", "until": ["x", "yy"], "max_new_tokens": 3})",
                                 /*generates=*/true);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_THAT(found[0].until, ElementsAre("\n"));
  EXPECT_THAT(found[1].until, ElementsAre("x", "yy"));
  EXPECT_EQ(found[1].max_new_tokens, 3);
}

TEST(Requests, ThatAreNoSuchObjectsAreRefusedWithTheirLine) {
  const auto expect = [](const std::string& line, const std::string& found, bool generates = false) {
    const std::string good =
        generates ? R"({"context": "a", "until": []})" : R"({"context": "a", "continuation": "b"})";
    EXPECT_THAT(refusal_of_requests(good + "\n" + line, generates),
                ::testing::AllOf(HasSubstr("r.jsonl, line 2: expected {"), HasSubstr("found " + found)));
  };
  expect("[1]", "a value of type array");
  expect(R"({"context": "a"})", "no continuation");
  expect(R"({"continuation": "a"})", "no context");
  expect(R"({"context": 1, "continuation": "a"})", "context of type number");
  expect(R"({"context": "a", "continuation": ""})", "nothing that could be scored");
  expect(R"({"context": "a", "continuation": "b", "until": ["c"]})", "the key until");
  expect(R"({"context": "a"})", "no until", true);
  expect(R"({"context": "a", "until": [""]})", "until with something other than texts", true);
  expect(R"({"context": "a", "until": [], "max_new_tokens": 0})", "max_new_tokens = 0", true);
  EXPECT_NE(refusal_of_requests("{"), "");
  EXPECT_NE(refusal_of_requests(std::string(100'000, '[')), "");
}

TEST(Requests, AreTokenizedAsTheHarnessDoes) {
  const auto tokenizer = data::make_tokenizer("bytes");
  const auto encoded = [&](const std::string& context, const std::string& continuation) {
    return encode_request(*tokenizer, {.context = context, .text = continuation});
  };
  EXPECT_THAT(encoded("ab", " c").continuation, ElementsAre(' ', 'c'));
  EXPECT_THAT(encoded("ab ", "c").context, ElementsAre('a', 'b')) << "spaces belong to the continuation";
  EXPECT_THAT(encoded("ab ", "c").continuation, ElementsAre(' ', 'c'));
  EXPECT_THAT(encoded("", "c").context, ElementsAre('\n')) << "what precedes a new text";
  EXPECT_THAT(encoded(" ", "c").continuation, ElementsAre(' ', 'c'));
  EXPECT_THAT(encode_request(*tokenizer, {.context = "", .text = "c"}, 7).context, ElementsAre(7));
  const auto text = encode_request(*tokenizer, {.kind = Request::Kind::kText, .text = "ab"});
  EXPECT_THAT(text.context, ElementsAre('\n'));
  EXPECT_THAT(text.continuation, ElementsAre('a', 'b'));
}

class RequestScores : public ::testing::Test {
 protected:
  /// The log-probability of ids[at] after `before` of the tokens before it, and whether it is the largest.
  std::pair<double, bool> of_token(const std::vector<int64_t>& ids, size_t at, size_t before) {
    at::NoGradGuard no_grad;
    const std::vector<int64_t> context(ids.begin() + static_cast<int64_t>(at - before),
                                       ids.begin() + static_cast<int64_t>(at));
    const at::Tensor scores =
        model_->forward(at::tensor(context, at::kLong).unsqueeze(0))[0][-1].to(at::kDouble).log_softmax(0);
    return {scores[ids[at]].item<double>(), scores.argmax().item<int64_t>() == ids[at]};
  }
  std::vector<int64_t> tokens(int64_t count, int64_t seed) const {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back((i * i * seed + 3 * i + seed) % options_.vocab_size);
    return ids;
  }
  std::vector<RequestScore> scores_of(const std::vector<EncodedRequest>& requests, int64_t at_once) {
    return score_requests(*model_, options_, requests, {.tokens_at_once = at_once}).value();
  }

  nn::ModelOptions options_ = tiny_options("llama");
  std::shared_ptr<nn::Stage> model_ = make_initialized(options_);
};

TEST_F(RequestScores, AreThoseOfTheTokensOneByOneInBatchesOfAnySize) {
  std::vector<EncodedRequest> requests;
  for (int64_t i = 1; i <= 9; ++i)
    requests.push_back({tokens(1 + i * 5 % 11, i), tokens(1 + i % 3, 2 * i + 1)});
  requests.push_back({tokens(3, 2), {}});
  // One whose tokens are the likeliest.
  std::vector<int64_t> greedy = tokens(4, 5);
  for (int i = 0; i < 3; ++i) {
    at::NoGradGuard no_grad;
    greedy.push_back(
        model_->forward(at::tensor(greedy, at::kLong).unsqueeze(0))[0][-1].argmax().item<int64_t>());
  }
  requests.push_back({{greedy.begin(), greedy.begin() + 4}, {greedy.begin() + 4, greedy.end()}});
  for (int64_t at_once : {1, 20, 10'000}) {
    const auto found = scores_of(requests, at_once);
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int64_t> all = requests[i].context;
      all.insert(all.end(), requests[i].continuation.begin(), requests[i].continuation.end());
      double expected = 0;
      bool is_greedy = true;
      for (size_t at = requests[i].context.size(); at < all.size(); ++at) {
        const auto [log_prob, is_most] = of_token(all, at, at);
        expected += log_prob;
        is_greedy = is_greedy && is_most;
      }
      EXPECT_NEAR(found[i].log_likelihood, expected, 1e-4) << i;
      EXPECT_EQ(found[i].is_greedy, is_greedy) << i;
      EXPECT_EQ(found[i].tokens, std::ssize(requests[i].continuation));
    }
    EXPECT_TRUE(found.back().is_greedy);
  }
}

TEST_F(RequestScores, AreTheSameWithoutFusedKernels) {
  const std::vector<EncodedRequest> requests{{tokens(5, 1), tokens(4, 3)}, {tokens(2, 4), tokens(3, 5)}};
  const auto fused = scores_of(requests, 100);
  nn::ModelOptions options = options_;
  options.fused_kernels = false;
  model_ = make_initialized(options);
  const auto composed = scores_of(requests, 100);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_NEAR(composed[i].log_likelihood, fused[i].log_likelihood, 1e-4);
    EXPECT_EQ(composed[i].is_greedy, fused[i].is_greedy);
  }
}

TEST_F(RequestScores, OfWhatIsTooLongUseTheLastTokensAndScoreEachOnce) {
  options_.max_position_embeddings = 16;
  const EncodedRequest long_context{tokens(40, 3), tokens(4, 7)}, long_text{tokens(1, 3), tokens(37, 5)};
  const auto found = scores_of({long_context, long_text}, 10'000);
  std::vector<int64_t> all = long_context.context;
  all.insert(all.end(), long_context.continuation.begin(), long_context.continuation.end());
  double expected = 0;
  // The row has the last 17 tokens, of which the model sees 16.
  for (size_t at = 40; at < 44; ++at) expected += of_token(all, at, at - (44 - 17)).first;
  EXPECT_NEAR(found[0].log_likelihood, expected, 1e-4);
  EXPECT_EQ(found[1].tokens, 37);
  all = long_text.context;
  all.insert(all.end(), long_text.continuation.begin(), long_text.continuation.end());
  expected = 0;
  for (size_t at = 1; at < 38; ++at) {
    // Rows end behind tokens 16, 32 and 37.
    const size_t end = at < 17 ? 17 : at < 33 ? 33 : 38;
    expected += of_token(all, at, at - (end - 17)).first;
  }
  EXPECT_NEAR(found[1].log_likelihood, expected, 1e-3);
}

TEST_F(RequestScores, StopWhenAsked) {
  int batches = 0;
  const auto found =
      score_requests(*model_, options_, {{tokens(3, 1), tokens(2, 1)}, {tokens(5, 1), tokens(2, 1)}},
                     {.tokens_at_once = 1, .stop_requested = [&] { return batches++ > 0; }});
  EXPECT_FALSE(found.has_value());
  EXPECT_EQ(batches, 2);
}

TEST_F(RequestScores, OfSeveralSharesAddUp) {
  options_.max_position_embeddings = 16;
  std::vector<EncodedRequest> requests;
  for (int64_t i = 1; i <= 5; ++i) requests.push_back({tokens(i, i), tokens(1 + i % 3, 2 * i + 1)});
  requests.push_back({tokens(1, 3), tokens(37, 5)});  // of several rows
  const auto all = scores_of(requests, 20);
  std::vector<RequestScore> sums(requests.size());
  for (int share = 0; share < 3; ++share) {
    const auto found =
        score_requests(*model_, options_, requests,
                       {.tokens_at_once = 20, .length_multiple = 4, .share = share, .shares = 3});
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i].log_likelihood += (*found)[i].log_likelihood;
      sums[i].tokens += (*found)[i].tokens;
      sums[i].is_greedy = sums[i].is_greedy && (*found)[i].is_greedy;
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_NEAR(sums[i].log_likelihood, all[i].log_likelihood, 1e-4);
    EXPECT_EQ(sums[i].tokens, all[i].tokens);
    EXPECT_EQ(sums[i].is_greedy, all[i].is_greedy);
  }
}

TEST_F(RequestScores, RefuseTokensOutsideTheVocabulary) {
  EXPECT_THROW(scores_of({{{0}, {options_.vocab_size}}}, 10), util::Error);
}

}  // namespace
}  // namespace fsdp::generate
