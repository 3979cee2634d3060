// Collectives run beside the caller in the order of issue, over threads, shared memory and gloo.

#include "comm/api/stream_communicator.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/tensor/storage.h"
#include "base/util/error.h"
#include "comm/api/communicator.h"
#include "comm/threads/thread_communicator.h"
#include "support/connected_ranks.h"

namespace fsdp::comm {
namespace {

using util::Error;

struct QueueSetting {
  std::string backend;
  int world_size;
};

class QueuedCollectives : public ::testing::TestWithParam<QueueSetting> {
 protected:
  void run(const std::function<void(Communicator&)>& body) {
    const QueueSetting& setting = GetParam();
    if (setting.backend == "threads") {
      run_ranks_as_threads(setting.world_size, body);
    } else {
      testing::run_ranks_over(setting.backend, {.world_size = setting.world_size},
                              [&](std::shared_ptr<Communicator>& communicator) { body(*communicator); });
    }
  }
};

TEST_P(QueuedCollectives, RunBesideTheirCaller) {
  std::promise<void> promise;
  std::shared_future<void> issued = promise.get_future().share();
  run([&](Communicator& communicator) {
    int world = communicator.world_size();
    at::Tensor mine = at::full({2}, communicator.rank(), at::kFloat), all = at::empty({2 * world});
    // Rank 0 would never come to tell the others if its collective were complete at the call.
    if (communicator.rank() > 0) issued.wait();
    auto work = communicator.all_gather(all, mine, {.unit = "test"});
    if (communicator.rank() == 0) promise.set_value();
    work->wait();
    EXPECT_TRUE(at::equal(all, at::arange(world).repeat_interleave(2).to(at::kFloat)));
    communicator.barrier({.unit = "end"});
  });
}

TEST_P(QueuedCollectives, CountTheTimeThatTheirCallersWaitForOthers) {
  std::vector<double> waited(static_cast<size_t>(GetParam().world_size));
  run([&](Communicator& communicator) {
    const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); };
    auto copy = communicator.duplicate("copy");
    communicator.barrier({.unit = "begin"});
    const double before = *communicator.waited_seconds();
    // Rank 0 is late, by itself and by what it has queued; the others wait, in this group and in its copy.
    for (Communicator* each : {&communicator, copy.get()}) {
      if (communicator.rank() == 0) sleep();
      if (communicator.rank() == 0) each->enqueue(sleep)->wait();
      each->barrier({.unit = "late"});
    }
    waited[static_cast<size_t>(communicator.rank())] = *communicator.waited_seconds() - before;
    EXPECT_EQ(copy->waited_seconds(), communicator.waited_seconds());
    communicator.barrier({.unit = "end"});
  });
  for (size_t rank = 1; rank < waited.size(); ++rank) EXPECT_GT(waited[rank], 0.2 + waited[0]) << rank;
}

TEST_P(QueuedCollectives, MayUseMemoryThatAnEarlierTaskRestores) {
  run([](Communicator& communicator) {
    int world = communicator.world_size();
    for (auto dtype : {at::kFloat, at::kBFloat16}) {
      at::Tensor shard = at::full({3}, communicator.rank() + 1, dtype), gradient = at::empty({3}, dtype);
      at::Tensor all = communicator.allocate(3 * world, dtype);
      at::Tensor own_part = all.narrow(0, 3 * communicator.rank(), 3);
      auto bytes = static_cast<int64_t>(all.nbytes());
      util::free_storage(all);
      std::promise<void> issued;
      communicator.enqueue([all, own_part, shard, bytes, future = issued.get_future().share()] {
        future.wait();
        util::restore_storage(all, bytes);
        own_part.copy_(shard);
      });
      communicator.all_gather(all, own_part, {.unit = "in place"});
      communicator.all_reduce(all, ReduceOp::kSum, {.unit = "test"});
      auto reduced = communicator.reduce_scatter(gradient, all, {.unit = "test"});
      at::Tensor copy = at::empty({3}, dtype);
      communicator.broadcast(all, 0, {.unit = "test"});
      auto freed = communicator.enqueue([copy, all] {
        copy.copy_(all.narrow(0, 0, 3));
        util::free_storage(all);
      });
      EXPECT_TRUE(util::storage_is_free(all)) << "all of this was issued before the first task ran";
      issued.set_value();
      reduced->wait();
      freed->wait();
      EXPECT_TRUE(at::equal(copy, at::full({3}, world, dtype)));
      EXPECT_TRUE(at::equal(gradient, at::full({3}, (communicator.rank() + 1) * world * world, dtype)));
    }
    communicator.barrier({.unit = "end"});
  });
}

TEST_P(QueuedCollectives, RunInTheOrderOfIssueWithTheTasks) {
  run([](Communicator& communicator) {
    int world = communicator.world_size();
    at::Tensor value = at::ones({1}, at::kDouble);
    std::unique_ptr<Work> last;
    double expected = 1;
    for (int i = 0; i < 50; ++i) {
      communicator.all_reduce(value, ReduceOp::kSum, {.unit = "test"});
      last = communicator.enqueue([value] { value.sub_(value / 2 - 1); });
      expected = expected * world / 2 + 1;
    }
    last->wait();
    EXPECT_DOUBLE_EQ(value.item<double>(), expected);
    communicator.barrier({.unit = "end"});
  });
}

TEST_P(QueuedCollectives, KeepAliveWhatTheyUseWhenNobodyWaits) {
  run([](Communicator& communicator) {
    int world = communicator.world_size();
    at::Tensor all = at::empty({1000 * world});
    std::promise<void> dropped;
    communicator.enqueue([future = dropped.get_future().share()] { future.wait(); });
    {
      at::Tensor mine = at::full({1000}, communicator.rank() + 1, at::kFloat);
      std::string unit = "a text that lives until the end of this scope", pass = "forward";
      communicator.all_gather(all, mine, {.unit = unit, .pass = pass.c_str()});
    }
    dropped.set_value();
    communicator.barrier({.unit = "end"});
    EXPECT_TRUE(at::equal(all, at::arange(1, world + 1).repeat_interleave(1000).to(at::kFloat)));
  });
}

TEST_P(QueuedCollectives, ThrowTheErrorOfTheTaskThatFailedBeforeThem) {
  run([](Communicator& communicator) {
    at::Tensor value = at::ones({1});
    auto task = communicator.enqueue([] { fail(ErrorKind::kData, "no memory for a unit"); });
    auto work = communicator.all_reduce(value, ReduceOp::kSum, {.unit = "test"});
    for (Work* each : {task.get(), work.get()}) {
      try {
        each->wait();
        ADD_FAILURE() << "expected an error";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kData);
        EXPECT_STREQ(error.what(), "no memory for a unit");
      }
    }
    EXPECT_THROW(communicator.barrier({.unit = "end"}), Error);
  });
}

TEST_P(QueuedCollectives, RefuseTensorsThatDoNotFitAtTheCall) {
  run([](Communicator& communicator) {
    at::Tensor two = at::ones({2}), odd = at::ones({2 * communicator.world_size() + 1});
    EXPECT_THROW(communicator.all_gather(odd, two, {.unit = "test"}), Error);
    EXPECT_THROW(communicator.reduce_scatter(two, odd, {.unit = "test"}), Error);
    EXPECT_THROW(communicator.broadcast(two, communicator.world_size(), {.unit = "test"}), Error);
    EXPECT_THROW(communicator.shift(odd, two, {.unit = "test"}), Error);
    communicator.barrier({.unit = "still usable"});
  });
}

INSTANTIATE_TEST_SUITE_P(All, QueuedCollectives,
                         ::testing::Values(QueueSetting{"threads", 2}, QueueSetting{"threads", 3},
                                           QueueSetting{"gloo", 2}, QueueSetting{"gloo", 3},
                                           QueueSetting{"shm", 2}, QueueSetting{"shm", 3}),
                         [](const auto& info) {
                           return info.param.backend + std::to_string(info.param.world_size);
                         });

TEST(QueuedCommunicator, HasNoThreadInAWorldOfOne) {
  std::shared_ptr<Communicator> single = std::make_shared<SingleCommunicator>();
  EXPECT_EQ(make_queued_communicator(single), single);
}

TEST(QueuedCommunicator, OfThreadsEndsWhenARankThrowsWhileCollectivesArePending) {
  for (int thrower : {0, 1, 2}) {
    EXPECT_THROW(run_ranks_as_threads(3,
                                      [&](Communicator& communicator) {
                                        at::Tensor value = at::ones({1});
                                        if (communicator.rank() == thrower) {
                                          communicator.broadcast(value, 0, {.unit = "others never come"});
                                          throw std::logic_error("gave up");
                                        }
                                        if (communicator.rank() == (thrower + 1) % 3) {
                                          communicator.barrier({.unit = "waits in the call"});
                                        }
                                        communicator.all_reduce(value, ReduceOp::kSum, {.unit = "dropped"});
                                      }),
                 std::logic_error);
  }
}

TEST(QueuedCommunicator, OfThreadsFinishesTheCollectivesOfARankThatEnds) {
  std::promise<void> promise;
  std::shared_future<void> ended = promise.get_future().share();
  run_ranks_as_threads(2, [&](Communicator& communicator) {
    at::Tensor value = at::ones({1});
    if (communicator.rank() == 1) ended.wait();
    auto work = communicator.all_reduce(value, ReduceOp::kSum, {.unit = "test"});
    if (communicator.rank() == 0) {
      promise.set_value();
      return;
    }
    work->wait();
    EXPECT_EQ(value.item<float>(), 2);
  });
}

class QueuedDestruction : public ::testing::TestWithParam<std::string> {};

TEST_P(QueuedDestruction, DoesNotHangAtItsEndOnAPeerThatDoesNotCome) {
  std::promise<void> promise;
  std::shared_future<void> destroyed = promise.get_future().share();
  testing::run_ranks_over(
      "direct_" + GetParam(), {.timeout_seconds = 300}, [&](std::shared_ptr<Communicator>& direct) {
        at::Tensor value = at::ones({1});
        if (direct->rank() == 0) {
          auto queued = make_queued_communicator(direct);
          std::promise<void> begun;
          auto work = queued->enqueue([&begun, inner = std::exchange(direct, nullptr), value] {
            begun.set_value();
            inner->all_reduce(value, ReduceOp::kSum, {.unit = "test"})->wait();
          });
          begun.get_future().wait();
          queued.reset();
          promise.set_value();
          work->wait();  // it was left behind, not ended
        } else {
          destroyed.wait();
          direct->all_reduce(value, ReduceOp::kSum, {.unit = "test"})->wait();
        }
        EXPECT_EQ(value.item<float>(), 2);
      });
}

INSTANTIATE_TEST_SUITE_P(All, QueuedDestruction, ::testing::Values("gloo", "shm"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fsdp::comm
