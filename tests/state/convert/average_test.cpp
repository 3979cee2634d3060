#include "state/convert/average.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "state/checkpoint/load.h"
#include "state/description/described_model.h"
#include "state/weights/weights.h"
#include "support/checkpoint_contents.h"
#include "support/checkpoint_fixtures.h"
#include "support/safetensors_files.h"
#include "support/source_folder.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Average : public ::testing::Test {
 protected:
  fs::path path(const std::string& name) { return root_.path() / name; }

  fs::path file(const std::string& name, const NamedTensors& tensors) {
    write_safetensors(path(name), tensors);
    return path(name);
  }

  /// The mean of files with one tensor each.
  at::Tensor mean_of(const std::vector<at::Tensor>& values) {
    AverageRequest request{.inputs = {}, .output = path("mean.safetensors")};
    for (size_t i = 0; i < values.size(); ++i) {
      request.inputs.push_back(file("in" + std::to_string(i) + ".safetensors", {{"w", values[i]}}));
    }
    fs::remove(request.output);
    average(request);
    const Weights weights = open_weights(request.output);
    at::Tensor mean = at::empty(weights.shape("w"), at::TensorOptions().dtype(weights.dtype("w")));
    weights.read_into("w", mean);
    return mean;
  }

  std::string refusal_of(const std::vector<fs::path>& inputs, ErrorKind kind = ErrorKind::kCheckpoint) {
    try {
      average({.inputs = inputs, .output = path("refused.safetensors")});
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_FALSE(fs::exists(path("refused.safetensors")));
      return error.what();
    }
    ADD_FAILURE() << "was averaged";
    return "";
  }

  TemporaryFolder root_;
};

TEST_F(Average, OfShardedCheckpointsIsTheMeanOfTheirWeights) {
  at::Tensor a = at::rand({13, 7}), b = at::rand({13, 7}), c = at::rand({13, 7});
  const auto tensors = [](const at::Tensor& w) {
    return NamedTensors{
        {"model/w", w}, {"optimizer/exp_avg/w", w}, {"optimizer/step", at::ones({1}, at::kLong)}};
  };
  const std::vector<fs::path> inputs = {save_checkpoint(path("a"), tensors(a), 1, 300),
                                        save_checkpoint(path("b"), tensors(b), 2, 200),
                                        save_checkpoint(path("c"), tensors(c), 3, 100)};
  const AverageResult result = average({.inputs = inputs, .output = path("mean")});
  EXPECT_EQ(result.tensors, 1);
  EXPECT_EQ(result.bytes, 13 * 7 * 4);
  const auto contents = contents_of(path("mean"));
  ASSERT_EQ(contents.size(), 1u) << "optimizer state has no place in it";
  const at::Tensor expected = ((a.to(at::kDouble) + b + c) / 3).to(at::kFloat);
  EXPECT_TRUE(same_bits(contents.at("model/w"), expected));
  const Manifest manifest = read_manifest(path("mean"));
  EXPECT_EQ(manifest.contents, Contents::kWeights);
  EXPECT_EQ(manifest.step, 300) << "of the first input";
  EXPECT_EQ(manifest.model, read_manifest(inputs[0]).model);
}

TEST_F(Average, KeepsTheFilesOfTheFirstInputsModel) {
  const fs::path run = path("run"), hugging_face = path("hf");
  const fs::path checkpoint = save_checkpoint(run, {{"model/w", at::ones({2})}}, 1);
  fs::create_directory(run / kModelFilesName);
  std::ofstream(run / kModelFilesName / "tokenizer.json") << "of the run";
  fs::create_directory(hugging_face);
  write_safetensors(hugging_face / "model.safetensors", {{"w", at::ones({2})}});
  std::ofstream(hugging_face / "config.json") << R"({"hidden_size": 2})";
  std::ofstream(hugging_face / "tokenizer.json") << "of the folder";
  const auto tokenizer_of = [](const fs::path& output) {
    return util::read_file(output / kModelFilesName / "tokenizer.json");
  };
  average({.inputs = {checkpoint, hugging_face}, .output = path("a")});
  EXPECT_EQ(tokenizer_of(path("a")), "of the run");
  average({.inputs = {hugging_face, checkpoint}, .output = path("b")});
  EXPECT_EQ(tokenizer_of(path("b")), "of the folder");
  EXPECT_EQ(read_manifest(path("b")).model, nlohmann::json({{"hidden_size", 2}}));
}

/// The tensors of mergekit_merges.py.
at::Tensor merged_numbers(int64_t seed) {
  const at::Tensor i = at::arange(24 * 40);
  return (((i * 7919 + seed * 104729 + i.div(7, "floor") * seed) % 2003 - 1001).to(at::kFloat) / 1024)
      .view({24, 40});
}

TEST_F(Average, MergesAsMergekitDoes) {
  const at::Tensor base = merged_numbers(1);
  std::vector<at::Tensor> tuned;
  std::vector<fs::path> files;
  for (int64_t seed : {2, 3, 4}) {
    tuned.push_back(base + merged_numbers(seed) / 8);
    files.push_back(file("tuned" + std::to_string(seed) + ".safetensors", {{"w", tuned.back()}}));
  }
  const fs::path base_file = file("base.safetensors", {{"w", base}}),
                 farther = file("farther.safetensors", {{"w", tuned[0] * 2 - base}}),
                 parallel = file("parallel.safetensors", {{"w", 2 * base}});
  const MergeOptions slerp{.method = MergeMethod::kSlerp, .t = 0.3},
      sums{.method = MergeMethod::kTaskArithmetic, .weights = {0.5, 0.25, -0.5}, .lambda = 0.75},
      means{.method = MergeMethod::kTaskArithmetic, .weights = {0.5, 0.25, 0.5}, .normalize = true},
      ties{.method = MergeMethod::kTies, .density = 0.3},
      weighted{.method = MergeMethod::kTies, .weights = {0.5, 0.25, 0.75}, .density = 0.6, .lambda = 1.5},
      ties_of_sums{
          .method = MergeMethod::kTies, .weights = {0.5, 0.25, 0.75}, .density = 0.2, .normalize = false};
  std::map<std::string, AverageRequest> requests;
  requests["slerp"] = {.inputs = {base_file, farther}, .merge = slerp};
  requests["slerp_of_parallels"] = {.inputs = {base_file, parallel}, .merge = slerp};
  for (const auto& [name, options] : {std::pair{"task_arithmetic", sums},
                                      {"task_arithmetic_normalized", means},
                                      {"ties", ties},
                                      {"ties_weighted", weighted},
                                      {"ties_of_sums", ties_of_sums}}) {
    requests[name] = {.inputs = files, .merge = options, .base = base_file};
  }
  std::ifstream vectors(source_folder() + "/tests/state/convert/mergekit_merges.txt");
  std::string line;
  size_t compared = 0;
  for (; std::getline(vectors, line); ++compared) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    AverageRequest request = requests.at(name);
    request.output = path(name + ".safetensors");
    average(request);
    at::Tensor merged = at::empty({24, 40});
    open_weights(request.output).read_into("w", merged);
    const std::vector<double> theirs(std::istream_iterator<double>(words), {});
    const at::Tensor ours = merged.flatten().slice(0, 0, merged.numel(), 13).to(at::kDouble);
    ASSERT_EQ(ours.numel(), std::ssize(theirs)) << name;
    EXPECT_LT((ours - at::tensor(theirs, at::kDouble)).abs().max().item<double>(), 3e-7) << name;
  }
  EXPECT_EQ(compared, requests.size());
}

TEST_F(Average, OfPiecesOfTensorsIsThatOfWholeOnes) {
  // The norms of slerp, and the elements that ties uses, are those of a tensor of several pieces.
  const int64_t numel = 2 * Merge::kElementsAtOnce + 5;
  const at::Tensor base = at::zeros({numel}), a = at::ones({numel}), b = at::ones({numel});
  a.narrow(0, 3, 4).fill_(5);
  b.narrow(0, numel - 2, 2).fill_(-7);
  const fs::path first = file("a.safetensors", {{"w", a}}), second = file("b.safetensors", {{"w", b}});
  average({.inputs = {first, second},
           .output = path("ties.safetensors"),
           .merge = {.method = MergeMethod::kTies, .density = 4.0 / static_cast<double>(numel)},
           .base = file("base.safetensors", {{"w", base}})});
  at::Tensor merged = at::empty({numel});
  open_weights(path("ties.safetensors")).read_into("w", merged);
  // Of the second, all elements are as large as its fourth-largest.
  const at::Tensor expected = b.clone();
  expected.narrow(0, 3, 4).fill_(3);
  EXPECT_TRUE(same_bits(merged, expected));
}

TEST_F(Average, RefusesOptionsThatAMethodDoesNotHave) {
  const auto a = file("a.safetensors", {{"w", at::rand({2})}}),
             b = file("b.safetensors", {{"w", at::rand({2})}});
  const auto refusal = [&](const MergeOptions& merge, const std::vector<fs::path>& inputs, bool has_base) {
    AverageRequest request{.inputs = inputs, .output = path("refused.safetensors"), .merge = merge};
    if (has_base) request.base = a;
    try {
      average(request);
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return std::string(error.what());
    }
    return std::string();
  };
  const auto method = [](MergeMethod method) { return MergeOptions{.method = method}; };
  EXPECT_THAT(refusal(method(MergeMethod::kSlerp), {a, b, a}, false),
              HasSubstr("expected two models; found 3"));
  EXPECT_THAT(
      refusal(method(MergeMethod::kTies), {a, b}, false),
      HasSubstr("base: expected the model from which the others were tuned with method ties; found none"));
  EXPECT_THAT(refusal({}, {a, b}, true), HasSubstr("base: expected none with method linear; found one"));
  EXPECT_THAT(refusal({.t = 0.5}, {a, b}, false), HasSubstr("t: expected method slerp"));
  EXPECT_THAT(refusal({.density = 0.5}, {a, b}, false), HasSubstr("density: expected method ties"));
  EXPECT_THAT(refusal({.weights = {1, 2, 3}}, {a, b}, false), HasSubstr("one for each of 2 models; found 3"));
  EXPECT_THAT(refusal({.weights = {1, -1}}, {a, b}, false),
              HasSubstr("whose sum is not 0; found a sum of 0"));
  EXPECT_THAT(refusal({.method = MergeMethod::kTies, .density = 1.5}, {a, b}, true),
              HasSubstr("density: expected a number from 0 to 1; found 1.5"));
  EXPECT_EQ(refusal({.weights = {3, -1}}, {a, b}, false), "");
}

TEST_F(Average, TakesFilesAndCheckpointsTogether) {
  const at::Tensor w = at::rand({5});
  const fs::path checkpoint = save_checkpoint(path("a"), {{"model/w", w}}, 2);
  const fs::path other = file("b.safetensors", {{"w", w + 1}});
  average({.inputs = {checkpoint, other}, .output = path("mean.safetensors")});
  at::Tensor mean = at::empty({5});
  open_weights(path("mean.safetensors")).read_into("w", mean);
  EXPECT_TRUE(at::allclose(mean, w + 0.5));
}

TEST_F(Average, IsSummedInDoublePrecisionAndRoundedOnce) {
  const at::Tensor mean = mean_of({at::full({1}, 1e8f), at::full({1}, 1.0f), at::full({1}, -1e8f)});
  EXPECT_EQ(mean.item<float>(), static_cast<float>(1.0 / 3.0)) << "a sum in fp32 is 0";
}

TEST_F(Average, KeepsTheTypeOfItsInputs) {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor a = at::rand({50}).to(dtype), b = at::rand({50}).to(dtype);
    const at::Tensor expected = ((a.to(at::kDouble) + b.to(at::kDouble)) / 2).to(dtype);
    EXPECT_TRUE(same_bits(mean_of({a, b}), expected)) << dtype;
  }
}

TEST_F(Average, CoversTensorsOfSeveralSlices) {
  const at::Tensor a = at::arange(5'000'003, at::kInt).to(at::kFloat);
  EXPECT_TRUE(same_bits(mean_of({a, a + 2}), a + 1));
}

TEST_F(Average, IntegersMustBeEqual) {
  const at::Tensor counts = at::arange(7);
  EXPECT_TRUE(same_bits(mean_of({counts, counts.clone()}), counts));
  const auto a = file("a.safetensors", {{"w", counts}}), b = file("b.safetensors", {{"w", counts + 1}});
  EXPECT_THAT(refusal_of({a, b}),
              AllOf(HasSubstr("b.safetensors"), HasSubstr("only floating-point tensors")));
}

TEST_F(Average, NamesShapesAndTypesMustAgree) {
  const at::Tensor w = at::rand({2, 3});
  const auto a = file("a.safetensors", {{"w", w}, {"v", w}});
  const auto fewer = file("fewer.safetensors", {{"w", w}});
  EXPECT_THAT(refusal_of({a, fewer}),
              AllOf(HasSubstr("fewer.safetensors: expected"), HasSubstr("found no v;")));
  EXPECT_THAT(refusal_of({fewer, a}), HasSubstr("found v, which is not among them"));
  const auto turned = file("turned.safetensors", {{"w", w.t().contiguous()}, {"v", w}});
  EXPECT_THAT(refusal_of({a, turned}), HasSubstr("found w of the shape [3, 2] instead of [2, 3]"));
  const auto half = file("half.safetensors", {{"w", w}, {"v", w.to(at::kHalf)}});
  EXPECT_THAT(refusal_of({a, half}), HasSubstr("found v of the type float16 instead of float32"));
  EXPECT_THAT(refusal_of({a}, ErrorKind::kUsage), HasSubstr("expected at least two"));
}

TEST_F(Average, OverwritesNothing) {
  const auto a = file("a.safetensors", {{"w", at::rand({2})}});
  try {
    average({.inputs = {a, a}, .output = a});
    ADD_FAILURE();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
  }
}

TEST_F(Average, RefusesADamagedShard) {
  const fs::path a = save_checkpoint(path("a"), {{"model/w", at::rand({50})}}, 2);
  const fs::path b = save_checkpoint(path("b"), {{"model/w", at::rand({50})}}, 2);
  const fs::path shard = b / read_manifest(b).files.at(1).name;
  flip_byte(shard, static_cast<int64_t>(fs::file_size(shard)) - 3);
  EXPECT_THAT(refusal_of({a, b}), HasSubstr(shard.filename().string()));
}

TEST_F(Average, FindsTheLastCheckpointsOfARun) {
  for (int64_t step : {100, 200, 300}) save_checkpoint(path("run"), {{"model/w", at::rand({3})}}, 1, step);
  fs::create_directory(path("run") / "step-00000400");  // not complete
  const auto last = last_checkpoints(path("run"), 2);
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[0].filename(), "step-00000200");
  EXPECT_EQ(last[1].filename(), "step-00000300");
  EXPECT_THROW(last_checkpoints(path("run"), 4), util::Error);
}

}  // namespace
}  // namespace fsdp::checkpoint
