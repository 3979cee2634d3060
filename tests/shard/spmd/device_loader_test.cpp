// Batches on their way to a device (support/fake_device.h), and their parts on the ranks of a mesh.

#include "shard/spmd/device_loader.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "shard/spmd/spmd_fully_shard.h"
#include "support/fake_collectives.h"
#include "support/fake_device.h"
#include "support/on_mesh.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using comm::MeshAxis;
using testing::Entry;
using testing::FakeDevice;
using ::testing::HasSubstr;
using testing::on_mesh;
using testing::refusal_of;

using Batch = std::vector<at::Tensor>;

constexpr int64_t kBatchRows = 6;

/// Batch i is filled with i; with `varies`, it has other numbers of rows and columns than its neighbours.
Batch batch_of(int64_t i, bool varies = false) {
  const int64_t rows = varies ? kBatchRows + (i * 5) % 7 : kBatchRows,
                columns = varies ? 3 + (i * 3) % 11 : 3;
  return {at::full({rows, columns}, i, at::kLong), at::full({rows}, static_cast<double>(i), at::kFloat)};
}

/// Counts the batches that it was asked for.
class Source {
 public:
  explicit Source(int64_t batches, bool varies = false) : batches_(batches), varies_(varies) {}

  MpDeviceLoader<>::Source function() {
    return [this]() -> std::optional<Batch> {
      const int64_t i = asked_++;
      if (i == batches_) return std::nullopt;
      return batch_of(i, varies_);
    };
  }
  /// Then the batches before are in pinned memory, because one thread reads them one after another.
  void wait_until_asked_for(int64_t batches) const {
    while (asked_ < batches) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

 private:
  int64_t batches_;
  bool varies_;
  std::atomic<int64_t> asked_ = 0;
};

/// Copies to the device, by the streams on which they are.
std::vector<testing::StreamName> streams_of_copies() {
  std::vector<testing::StreamName> streams;
  for (const Entry& entry : FakeDevice::get().log()) {
    const bool is_copy = entry.kind == Entry::Kind::kOperation && entry.name == "aten::copy_";
    if (is_copy && entry.reads.empty() && !entry.writes.empty()) streams.push_back(entry.stream);
  }
  return streams;
}

TEST(MpDeviceLoader, SendsTheNextBatchBeforeItIsAskedForOnAStreamOfItsOwn) {
  FakeDevice& fake = FakeDevice::get();
  fake.begin();
  constexpr int64_t kBatches = 5;
  Source source(kBatches);
  MpDeviceLoader<> loader(source.function(), fake.device(), {.loader_prefetch_size = 3});
  for (int64_t i = 0; i < kBatches; ++i) {
    if (i > 0) source.wait_until_asked_for(std::min(i + 3, kBatches + 1));
    const auto batch = loader.next();
    const size_t sent = streams_of_copies().size();
    if (i > 0) {
      // Two tensors of each batch, those of the next one among them.
      EXPECT_EQ(sent, 2 * static_cast<size_t>(std::min(i + 2, kBatches))) << "after batch " << i;
    }
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->at(0).device(), fake.device());
    const at::Tensor sum = batch->at(0).sum() + batch->at(1).sum();  // on the stream of computation
    EXPECT_EQ(sum.item<double>(), static_cast<double>(i * kBatchRows * 4));
  }
  EXPECT_FALSE(loader.next());
  EXPECT_FALSE(loader.next());
  const auto streams = streams_of_copies();
  for (const auto& stream : streams) {
    EXPECT_EQ(stream, streams.front());
    EXPECT_NE(stream, FakeDevice::name(fake.current_stream()));
  }
  EXPECT_EQ(fake.report(), "");
}

TEST(MpDeviceLoader, ComputationWaitsForTheCopyAndTheHostForNothing) {
  FakeDevice& fake = FakeDevice::get();
  constexpr int64_t kBatches = 6;
  Source source(kBatches);
  MpDeviceLoader<> loader(source.function(), fake.device(), {});
  fake.set_behind(true);  // looking at an event is no wait either
  fake.begin();
  at::Tensor sum = at::zeros({}, fake.options());
  while (const auto batch = loader.next()) sum += batch->at(0).sum() * batch->at(1).sum();
  int waits = 0;
  for (const Entry& entry : fake.log()) {
    if (entry.kind != Entry::Kind::kWait) continue;
    EXPECT_NE(entry.stream, testing::kHost);
    waits += entry.stream == FakeDevice::name(fake.current_stream());
  }
  EXPECT_EQ(waits, kBatches);
  EXPECT_EQ(fake.report(), "");
  fake.set_behind(false);
}

/// Trains on batches of several sizes with work between them that takes and frees memory.
void compute_on_batches(int64_t batches) {
  FakeDevice& fake = FakeDevice::get();
  Source source(batches, /*varies=*/true);
  MpDeviceLoader<> loader(source.function(), fake.device(), {.device_prefetch_size = 2});
  at::Tensor sum = at::zeros({}, fake.options(at::kLong));
  int64_t i = 0;
  while (const auto batch = loader.next()) {
    const Batch expected = batch_of(i++, /*varies=*/true);
    ASSERT_EQ(batch->at(0).sizes(), expected[0].sizes());
    sum += (batch->at(0) * 2).sum();
    source.wait_until_asked_for(std::min(i + 2, batches));
  }
  EXPECT_EQ(i, batches);
}

TEST(MpDeviceLoader, WritesToASlabWhenItsCopyHasEnded) {
  FakeDevice& fake = FakeDevice::get();
  for (const bool behind : {false, true}) {
    fake.set_behind(behind);
    fake.begin();
    compute_on_batches(30);
    EXPECT_EQ(fake.report(), "") << (behind ? "the device is behind its host" : "");
    fake.set_behind(false);
  }
  // Copies from memory that is not pinned would be over at the call: nothing could disturb them.
  fake.begin();
  fake.set_host_forgets_events(true);
  compute_on_batches(30);
  fake.set_host_forgets_events(false);
  EXPECT_THAT(fake.report(), HasSubstr("the host changed"));
  fake.begin();
}

TEST(MpDeviceLoader, MayEndWithBatchesOnTheirWay) {
  FakeDevice& fake = FakeDevice::get();
  fake.begin();
  Source source(100);
  {
    MpDeviceLoader<> loader(source.function(), fake.device(), {.loader_prefetch_size = 3});
    loader.next();
    source.wait_until_asked_for(4);
    loader.next();  // sends the third
  }
  at::zeros({kBatchRows, 3}, fake.options(at::kLong)).add_(1);  // gets the memory of such a batch
  EXPECT_EQ(fake.report(), "");
}

TEST(MpDeviceLoader, OnTheCpuABatchIsWhatWasRead) {
  for (const size_t ahead : {0, 3}) {
    std::vector<const void*> read;
    MpDeviceLoader<> loader(
        [&read]() -> std::optional<Batch> {
          if (read.size() == 4) return std::nullopt;
          Batch batch = batch_of(static_cast<int64_t>(read.size()));
          read.push_back(batch[0].const_data_ptr());
          return batch;
        },
        at::kCPU, {.loader_prefetch_size = ahead});
    std::vector<Batch> batches;
    while (const auto batch = loader.next()) {
      batches.push_back(*batch);
      EXPECT_FALSE(sharding_of(batch->at(0)));
    }
    ASSERT_EQ(batches.size(), 4U);
    for (size_t i = 0; i < batches.size(); ++i) EXPECT_EQ(batches[i][0].const_data_ptr(), read[i]);
  }
}

struct Described {
  at::Tensor ids;
  std::string source;
  void visit_tensors(auto&& visit) { visit(ids); }
};

TEST(MpDeviceLoader, KeepsWhatIsNoTensorAndThrowsErrorsInTheirPlace) {
  for (const at::Device device : {at::Device(at::kCPU), FakeDevice::get().device()}) {
    int asked = 0;
    MpDeviceLoader<Described> loader(
        [&asked]() -> std::optional<Described> {
          const int i = asked++;
          if (i == 1) throw std::runtime_error("unreadable");
          if (i == 3) return std::nullopt;
          return Described{at::full({2}, i), std::to_string(i)};
        },
        device);
    EXPECT_EQ(loader.next()->source, "0");
    EXPECT_THROW(loader.next(), std::runtime_error);
    const auto last = loader.next();
    EXPECT_EQ(last->source, "2");
    EXPECT_EQ(last->ids.device(), device);
    EXPECT_TRUE(at::equal(last->ids.cpu(), at::full({2}, 2)));
    EXPECT_FALSE(loader.next());
  }
}

// ---- parts of global batches

/// What every rank reads alike: x: [8, 6, 2] float, weights: [8, 6].
Batch global_batch(int64_t i) {
  const at::Tensor x = at::arange(96, at::kFloat).view({8, 6, 2}) + static_cast<double>(i);
  return {x, x.select(2, 0) * 10};
}

MpDeviceLoader<>::Source three_global_batches() {
  return [i = int64_t{0}]() mutable -> std::optional<Batch> {
    if (i == 3) return std::nullopt;
    return global_batch(i++);
  };
}

TEST(MpDeviceLoader, CutsAsMarkShardingDoes) {
  const PartitionSpec whole{}, two{{MeshAxis::kDcn}, {MeshAxis::kData}}, second{{}, {MeshAxis::kData}};
  for (const comm::MeshOptions& shape :
       {comm::MeshOptions{.dcn = 1, .data = 1}, {.dcn = 1, .data = 2}, {.dcn = 2, .data = 2}}) {
    on_mesh(shape, [&](const comm::Mesh& mesh) {
      for (const PartitionSpec& spec : {batch_spec(), whole, two, second}) {
        MpDeviceLoader<> loader(three_global_batches(), at::kCPU, {.input_sharding = {{mesh, spec}}});
        for (int64_t i = 0; i < 3; ++i) {
          const auto batch = loader.next();
          const Batch read = global_batch(i);
          for (size_t tensor = 0; tensor < read.size(); ++tensor) {
            const at::Tensor expected = mark_sharding(read[tensor], mesh, spec);
            const at::Tensor& found = batch->at(tensor);
            EXPECT_TRUE(at::equal(found, expected)) << to_string(spec);
            ASSERT_TRUE(sharding_of(found));
            EXPECT_EQ(sharding_of(found)->spec, spec);
            EXPECT_EQ(sharding_of(found)->global_shape, sharding_of(expected)->global_shape);
            EXPECT_TRUE(at::equal(full_tensor(found, mesh), read[tensor]));
            EXPECT_TRUE(mark_sharding(found, mesh, spec).is_same(found));
          }
        }
      }
    });
  }
}

TEST(MpDeviceLoader, ASpecForEachTensorOrPartsThatTheSourceReads) {
  on_mesh({.dcn = 2, .data = 2}, [](const comm::Mesh& mesh) {
    MpDeviceLoader<> loader(three_global_batches(), at::kCPU,
                            {.input_sharding = {{mesh, batch_spec()}, {mesh, {}}}});
    const auto batch = loader.next();
    EXPECT_EQ(batch->at(0).size(0), 2);
    EXPECT_EQ(batch->at(1).size(0), 8);
    EXPECT_TRUE(sharding_of(batch->at(1))->spec.cut_dimensions().empty());

    MpDeviceLoader<> parts(three_global_batches(), at::kCPU,
                           {.input_sharding = {{mesh, batch_spec(), /*minibatch=*/true}}});
    const auto part = parts.next();
    EXPECT_EQ(part->at(0).size(0), 8);
    EXPECT_EQ(sharding_of(part->at(0))->global_shape, (std::vector<int64_t>{32, 6, 2}));
  });
}

TEST(MpDeviceLoader, RefusesSpecsThatDoNotFit) {
  on_mesh({.dcn = 1, .data = 3}, [](const comm::Mesh& mesh) {
    MpDeviceLoader<> uneven(three_global_batches(), at::kCPU, {.input_sharding = {{mesh, batch_spec()}}});
    EXPECT_THAT(refusal_of([&] { uneven.next(); }).text,
                HasSubstr("MpDeviceLoader: expected dimension 0 of [8, 6, 2] to divide over "));
    MpDeviceLoader<> deep(three_global_batches(), at::kCPU,
                          {.input_sharding = {{mesh, {{}, {}, {MeshAxis::kData}}}}});
    EXPECT_THAT(refusal_of([&] { deep.next(); }).text, HasSubstr("MpDeviceLoader: expected"));
    MpDeviceLoader<> three(three_global_batches(), at::kCPU,
                           {.input_sharding = {{mesh, {}}, {mesh, {}}, {mesh, {}}}});
    EXPECT_THAT(refusal_of([&] { three.next(); }).text,
                HasSubstr("one for each of the 2 tensors of a batch; found 3"));
  });
}

TEST(MpDeviceLoader, FeedsAShardedModelThatDoesNotCutAgain) {
  for (const bool on_device : {false, true}) {
    FakeDevice::get().begin();
    comm::run_ranks_as_threads(4, [&](comm::Communicator& rank) {
      at::set_num_threads(1);
      const auto world = on_device ? testing::on_fake_device(rank) : testing::borrowed(rank);
      const comm::Mesh mesh({.dcn = 2, .data = 2}, world);
      testing::RunPlan plan;
      plan.model.fused_kernels = false;
      auto model = testing::make_model(plan, world->device());
      const auto engine = spmd_fully_shard(*model, mesh);
      const auto rows = [&](int64_t i) { return testing::token_rows(8 * i, 8, 9, plan.model.vocab_size); };
      int64_t read = 0;
      MpDeviceLoader<> loader(
          [&]() -> std::optional<Batch> {
            if (read == 3) return std::nullopt;
            return Batch{rows(read++)};
          },
          world->device(), {.input_sharding = {{mesh, batch_spec()}}});
      for (int64_t i = 0; i < 3; ++i) {
        const auto batch = loader.next();
        const at::NoGradGuard no_grad;
        const at::Tensor found = model->forward(batch->at(0));
        EXPECT_EQ(found.size(0), 2);
        const at::Tensor expected = model->forward(rows(i).to(world->device()));
        EXPECT_TRUE(at::equal(found, expected));
      }
    });
    EXPECT_EQ(FakeDevice::get().report(), "");
  }
}

}  // namespace
}  // namespace fsdp::shard
