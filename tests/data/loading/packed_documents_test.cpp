#include "data/loading/packed_documents.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "data/loading/prefetch.h"
#include "data/preference_fixtures.h"
#include "data/token_fixtures.h"
#include "data/tokens/stored_reference.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

using Ids = std::vector<int64_t>;

Ids ids_of(const at::Tensor& row) {
  const at::Tensor whole = row.contiguous();
  return {whole.const_data_ptr<int64_t>(), whole.const_data_ptr<int64_t>() + whole.numel()};
}

/// Two rows of six, of which the second has one document and an exchanged one.
Batch padded_rows() {
  Batch batch;
  batch.inputs = at::tensor(Ids{10, 11, 12, 20, 21, 0, 30, 31, 40, 41, 0, 0}, at::kLong).view({2, 6});
  batch.targets = at::tensor(Ids{11, 12, 13, kNoTarget, 22, kNoTarget, kNoTarget, 32, kNoTarget, 42,
                                 kNoTarget, kNoTarget},
                             at::kLong)
                      .view({2, 6});
  batch.valid_rows = batch.counted = 2;
  batch.first_row = 6;
  return batch;
}

std::vector<std::vector<ScoredDocument>> documents_of_rows() {
  return {{{.begin = 0, .end = 3, .preferred = true, .reference = -1, .completes = {false, true, true}},
           {.begin = 3, .end = 5, .preferred = false, .reference = -2, .completes = {false, true}}},
          {{.begin = 0, .end = 2, .preferred = true, .reference = -3, .completes = {false, true}},
           {.begin = 2, .end = 4, .preferred = false, .exchanged = true, .completes = {false, true}}}};
}

TEST(PackedDocuments, StandInOneRowWithoutPadding) {
  const Batch packed = packed_documents(padded_rows(), documents_of_rows(), /*exchanges=*/true);
  EXPECT_EQ(packed.inputs.sizes(), (at::IntArrayRef{1, 7}));
  EXPECT_EQ(ids_of(packed.inputs), (Ids{10, 11, 12, 20, 21, 30, 31}));
  EXPECT_EQ(ids_of(packed.targets), (Ids{11, 12, 13, kNoTarget, 22, kNoTarget, 32}));
  EXPECT_EQ(ids_of(packed.scored->of_targets), (Ids{-1, 0, 0, -1, 1, -1, 2}));
  EXPECT_EQ(*packed.document_starts, (std::vector<Ids>{{0, 3, 5}}));
  EXPECT_EQ(packed.row_tokens, (Ids{7}));
  EXPECT_TRUE(packed.scored->preferred.equal(at::tensor({1, 0, 1}).to(at::kBool)));
  EXPECT_TRUE(packed.scored->references.equal(at::tensor(std::vector<double>{-1, -2, -3}, at::kDouble)));
  EXPECT_EQ(packed.preferred_targets, 4) << "the prompt of the first, and both answers";
  EXPECT_EQ(packed.counted, 2);
  EXPECT_EQ(packed.valid_rows, 2);
  EXPECT_EQ(packed.first_row, 6);

  ASSERT_TRUE(packed.exchanged);
  EXPECT_EQ(ids_of(packed.exchanged->inputs), (Ids{40, 41}));
  EXPECT_EQ(ids_of(packed.exchanged->scored->of_targets), (Ids{-1, 0}));
  EXPECT_FALSE(packed.exchanged->scored->references.defined()) << "one of them is unknown";
  EXPECT_FALSE(packed_documents(padded_rows(), documents_of_rows(), /*exchanges=*/false).exchanged);
}

TEST(PackedDocuments, OfRowsThatDoNotCountAreOneTokenWithoutATarget) {
  const Batch packed = packed_documents(padded_rows(), {{}, {}}, /*exchanges=*/true);
  for (const Batch* batch : std::vector<const Batch*>{&packed, packed.exchanged.get()}) {
    EXPECT_EQ(ids_of(batch->inputs), Ids{0});
    EXPECT_EQ(ids_of(batch->targets), Ids{kNoTarget});
    EXPECT_EQ(ids_of(batch->scored->of_targets), Ids{-1});
    EXPECT_EQ(batch->scored->preferred.numel(), 0);
    EXPECT_FALSE(batch->scored->references.defined());
    EXPECT_EQ(*batch->document_starts, (std::vector<Ids>{{0}}));
    EXPECT_EQ(batch->preferred_targets, 0);
  }
}

TEST(PackedDocuments, ArePaddedByADocumentOfItsOwn) {
  Batch packed = packed_documents(padded_rows(), documents_of_rows(), /*exchanges=*/true);
  const auto before = packed.document_starts;
  pad_packed(packed, 4);
  EXPECT_EQ(ids_of(packed.inputs), (Ids{10, 11, 12, 20, 21, 30, 31, 0}));
  EXPECT_EQ(ids_of(packed.targets), (Ids{11, 12, 13, kNoTarget, 22, kNoTarget, 32, kNoTarget}));
  EXPECT_EQ(ids_of(packed.scored->of_targets), (Ids{-1, 0, 0, -1, 1, -1, 2, -1}));
  EXPECT_EQ(*packed.document_starts, (std::vector<Ids>{{0, 3, 5, 7}}));
  EXPECT_EQ(*before, (std::vector<Ids>{{0, 3, 5}})) << "others may have the starts too";
  EXPECT_EQ(packed.row_tokens, (Ids{7})) << "padding is no token of the data";
  EXPECT_EQ(ids_of(packed.exchanged->inputs), (Ids{40, 41, 0, 0}));
  EXPECT_EQ(ids_of(packed.exchanged->scored->of_targets), (Ids{-1, 0, -1, -1}));
  pad_packed(packed, 4);
  EXPECT_EQ(packed.inputs.size(1), 8) << "a multiple is left as it is";
}

class PreferenceLoading : public ::testing::Test {
 protected:
  PreferenceLoading() {
    options_.train = options_.validation = {path_};
    options_.sequence_length = 10;
    options_.micro_batch_size = 2;
    options_.shuffle = false;
    options_.preference.rows = PreferenceRows::kPairs;
  }

  TemporaryFolder folder_;
  const std::string path_ = [this] {
    std::vector<Answer> three = two_pairs();
    three.push_back({{30}, {31, 3}, true});
    three.push_back({{30}, {32, 33, 3}, false});
    return write_answers(folder_, "a.bin", three);
  }();
  DataOptions options_;
};

TEST_F(PreferenceLoading, TheDocumentsOfAllRowsAreOneRow) {
  const TrainLoader loader(options_, 1000, 1, {});
  EXPECT_EQ(loader.num_samples(), 3);
  EXPECT_EQ(loader.notes(), "");
  const Batch batch = loader.batch(0, 0);
  EXPECT_EQ(ids_of(batch.inputs), (Ids{10, 11, 12, 13, 10, 11, 14, 20, 21, 22, 20, 23, 24, 25, 26}));
  EXPECT_EQ(ids_of(batch.scored->of_targets), (Ids{-1, 0, 0, 0, -1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3}));
  EXPECT_EQ(batch.counted, 2);
  EXPECT_EQ(batch.preferred_targets, 6);
  EXPECT_FALSE(batch.exchanged);
  EXPECT_EQ(batch.row_tokens, (Ids{15}));
}

TEST_F(PreferenceLoading, RanksHaveTheirRows) {
  for (int rank = 0; rank < 2; ++rank) {
    options_.micro_batch_size = 1;
    const Batch batch = TrainLoader(options_, 1000, 1, {rank, 2, 1}).batch(0, 0);
    EXPECT_EQ(batch.inputs[0][0].item<int64_t>(), 10 * (rank + 1));
    EXPECT_EQ(batch.counted, 1);
  }
}

TEST_F(PreferenceLoading, AValidationCountsEachSampleOnce) {
  const ValidationLoader loader(options_, 1000, 0, {});
  ASSERT_EQ(loader.num_batches(), 2);
  EXPECT_EQ(loader.batch(0).counted, 2);
  const Batch last = loader.batch(1);
  EXPECT_EQ(last.counted, 1);
  EXPECT_EQ(ids_of(last.inputs), (Ids{30, 31, 30, 32, 33}));
  // A rank without a row of the last batch still has one.
  const Batch none = ValidationLoader(options_, 1000, 0, {.rank = 1, .world_size = 2}).batch(0);
  EXPECT_EQ(none.counted, 1);
  options_.micro_batch_size = 1;
  const ValidationLoader second(options_, 1000, 0, {.rank = 1, .world_size = 2});
  EXPECT_EQ(second.batch(second.num_batches() - 1).counted, 0);
  EXPECT_EQ(ids_of(second.batch(second.num_batches() - 1).inputs), Ids{0});
}

TEST_F(PreferenceLoading, NotesOfAllSetsAreTold) {
  options_.sequence_length = 7;
  const TrainLoader loader(options_, 1000, 1, {});
  EXPECT_EQ(loader.notes(), path_ +
                                ": of 3 samples 0 are left out and 1 documents are cut at "
                                "data.sequence_length = 7");
}

TEST_F(PreferenceLoading, PrefetchedBatchesHaveWhatTheLoaderGives) {
  options_.preference.rows = PreferenceRows::kSingle;
  options_.preference.stored_reference = true;
  const TokenFiles files({path_});
  std::vector<double> numbers;
  for (int i = 0; i < 12; ++i) numbers.push_back(-i);
  write_stored_reference(files, stored_reference_key(files, options_.preference, options_.sequence_length),
                         "m", numbers);
  const TrainLoader loader(options_, 1000, 1, {});
  for (const int64_t depth : {0, 2}) {
    const PrefetchingBatches ahead(loader, {.depth = depth});
    for (int64_t first = 0; first < 6; first += 2) {
      const Batch expected = loader.batch(first, 0), found = ahead.batch(first, 0);
      const std::vector<std::pair<const Batch*, const Batch*>> both = {
          {&expected, &found}, {expected.exchanged.get(), found.exchanged.get()}};
      for (const auto& [one, other] : both) {
        ASSERT_TRUE(one != nullptr && other != nullptr);
        EXPECT_TRUE(one->inputs.equal(other->inputs));
        EXPECT_TRUE(one->targets.equal(other->targets));
        EXPECT_TRUE(one->scored->of_targets.equal(other->scored->of_targets));
        EXPECT_TRUE(one->scored->preferred.equal(other->scored->preferred));
        EXPECT_TRUE(one->scored->references.equal(other->scored->references));
        EXPECT_EQ(*one->document_starts, *other->document_starts);
      }
      EXPECT_FALSE(expected.inputs.equal(expected.exchanged->inputs));
    }
  }
}

}  // namespace
}  // namespace fsdp::data
