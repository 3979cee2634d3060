// Batches with the likeliest tokens of a teacher that are stored beside the data.

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "data/loading/loader.h"
#include "data/loading/prefetch.h"
#include "data/stored_teacher_fixtures.h"
#include "data/token_fixtures.h"
#include "data/tokens/sample_reader.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

constexpr int64_t kTeacherLength = 4, kTeacherTokens = 3, kTeacherVocabulary = 256;

DataOptions teacher_options(const std::string& path) {
  DataOptions options;
  options.train = {path};
  options.validation = {path};
  options.sequence_length = kTeacherLength;
  options.micro_batch_size = 2;
  options.document_separator = 99;
  options.teacher = {.top_k = kTeacherTokens};
  return options;
}

void store_records(const DataOptions& options) {
  DataOptions without = options;
  without.teacher = {};
  const SampleReader reader(options.train, without, kTeacherVocabulary);
  store_teacher(reader.files(), options, reader.num_samples(), reader.document_separator());
}

/// Row `row` of the batch has the teacher's records of this sample for its first `length` tokens.
void expect_teacher_records(const Batch& batch, int64_t row, int64_t sample, int64_t length) {
  ASSERT_EQ(batch.teacher_ids.sizes(), (at::IntArrayRef{batch.inputs.size(0), length, kTeacherTokens}));
  ASSERT_EQ(batch.teacher_log_probs.sizes(), batch.teacher_ids.sizes());
  EXPECT_EQ(batch.teacher_ids.scalar_type(), at::kLong);
  EXPECT_EQ(batch.teacher_log_probs.scalar_type(), at::kFloat);
  for (int64_t place = 0; place < length; ++place) {
    for (int64_t j = 0; j < kTeacherTokens; ++j) {
      const TeacherRecord record = teacher_record(sample, place, j);
      EXPECT_EQ(batch.teacher_ids[row][place][j].item<int64_t>(), record.id) << sample << " " << place;
      EXPECT_EQ(batch.teacher_log_probs[row][place][j].item<float>(), record.log_prob);
    }
  }
}

TEST(StoredTeacherBatches, HaveTheRecordsOfTheirSamplesInAnyOrder) {
  TemporaryFolder folder;
  const DataOptions options = teacher_options(write_tokens(folder, "a", counting(4 * 12 + 1)));
  store_records(options);
  for (int rank = 0; rank < 2; ++rank) {
    const TrainLoader loader(options, kTeacherVocabulary, 1, {rank, 2, 1});
    for (int64_t first : {0, 4, 8, 12}) {
      const Batch batch = loader.batch(first, 0);
      for (int64_t row = 0; row < 2; ++row) {
        expect_teacher_records(batch, row, batch.inputs[row][0].item<int64_t>() / kTeacherLength,
                               kTeacherLength);
      }
    }
  }
}

TEST(StoredTeacherBatches, OfSeveralSetsHaveEachSetsOwn) {
  TemporaryFolder folder;
  DataOptions options = teacher_options(write_tokens(folder, "a", counting(21)));
  options.train.push_back(write_tokens(folder, "b", counting(41)));
  options.train_weights = {1, 1};
  for (const std::string& path : options.train) {
    DataOptions one = options;
    one.train = {path};
    store_records(one);
  }
  const TrainLoader loader(options, kTeacherVocabulary, 1, {});
  int64_t beyond_the_first = 0;
  for (int64_t first = 0; first < 20; first += 2) {
    const Batch batch = loader.batch(first, 0);
    for (int64_t row = 0; row < 2; ++row) {
      const int64_t sample = batch.inputs[row][0].item<int64_t>() / kTeacherLength;
      expect_teacher_records(batch, row, sample, kTeacherLength);
      beyond_the_first += sample >= 5 ? 1 : 0;
    }
  }
  EXPECT_GT(beyond_the_first, 0);
}

TEST(StoredTeacherBatches, OfShortRowsHaveTheirFirstRecords) {
  TemporaryFolder folder;
  // Documents of 3, 3, 5, 2 and 5 tokens.
  DataOptions options = teacher_options(
      write_tokens(folder, "a", {1, 2, 99, 3, 4, 99, 5, 6, 7, 8, 99, 9, 99, 10, 11, 12, 13, 99}));
  options.documents = DocumentTreatment::kSplit;
  options.max_tokens = 8;
  options.shuffle = false;
  store_records(options);
  const TrainLoader loader(options, kTeacherVocabulary, 1, {});
  const SampleReader reader(options.train, options, kTeacherVocabulary);
  int64_t rows = 0, short_rows = 0;
  for (int64_t position = 0; position < 3; ++position) {
    const Batch batch = loader.batch(position, 0);
    const int64_t length = batch.inputs.size(1);
    for (int64_t row = 0; row < batch.inputs.size(0); ++row, ++rows) {
      int64_t sample = 0;
      std::vector<int64_t> inputs(kTeacherLength), targets(kTeacherLength);
      for (; sample < reader.num_samples(); ++sample) {
        reader.read(sample, inputs.data(), targets.data());
        if (inputs[0] == batch.inputs[row][0].item<int64_t>()) break;
      }
      expect_teacher_records(batch, row, sample, length);
      short_rows += length < kTeacherLength ? 1 : 0;
    }
  }
  EXPECT_GE(rows, 5);
  EXPECT_GT(short_rows, 0);
}

TEST(StoredTeacherBatches, HaveZerosInRowsThatPadAValidation) {
  TemporaryFolder folder;
  const DataOptions options = teacher_options(write_tokens(folder, "a", counting(21)));
  store_records(options);
  const ValidationLoader loader(options, kTeacherVocabulary, 0, {});
  ASSERT_EQ(loader.num_batches(), 3);
  const Batch last = loader.batch(2);
  ASSERT_EQ(last.valid_rows, 1);
  expect_teacher_records(last, 0, 4, kTeacherLength);
  EXPECT_TRUE(last.teacher_ids[1].eq(0).all().item<bool>());
  EXPECT_TRUE(last.teacher_log_probs[1].eq(0).all().item<bool>());
}

TEST(StoredTeacherBatches, ArePrefetchedWithTheirRecords) {
  TemporaryFolder folder;
  const DataOptions options = teacher_options(write_tokens(folder, "a", counting(4 * 50 + 1)));
  store_records(options);
  const TrainLoader loader(options, kTeacherVocabulary, 1, {0, 2, 3});
  for (int64_t depth : {0, 2}) {
    const PrefetchingBatches ahead(loader, {.depth = depth});
    for (int64_t first : {0, 12, 24, 0}) {
      for (int64_t micro = 0; micro < 3; ++micro) {
        const Batch expected = loader.batch(first, micro), found = ahead.batch(first, micro);
        EXPECT_TRUE(found.teacher_ids.equal(expected.teacher_ids)) << first << " " << micro;
        EXPECT_TRUE(found.teacher_log_probs.equal(expected.teacher_log_probs));
      }
    }
  }
}

TEST(StoredTeacherBatches, BringTheRecordsToTheDevice) {
  TemporaryFolder folder;
  const DataOptions options = teacher_options(write_tokens(folder, "a", counting(21)));
  store_records(options);
  Batch batch = TrainLoader(options, kTeacherVocabulary, 1, {}).batch(0, 0);
  const std::vector<at::Tensor*> tensors = batch.device_tensors();
  EXPECT_NE(std::ranges::find(tensors, &batch.teacher_ids), tensors.end());
  EXPECT_NE(std::ranges::find(tensors, &batch.teacher_log_probs), tensors.end());
  DataOptions without = options;
  without.teacher = {};
  Batch plain = TrainLoader(without, kTeacherVocabulary, 1, {}).batch(0, 0);
  EXPECT_FALSE(plain.teacher_ids.defined());
  EXPECT_EQ(plain.device_tensors().size(), 2U);
}

}  // namespace
}  // namespace fsdp::data
