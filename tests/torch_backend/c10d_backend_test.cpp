// What torch.distributed gets of shared memory; ranks are threads. tests/torch_backend has the same from
// Python.

#include "torch_backend/c10d_backend.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "base/util/error.h"

namespace fsdp::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using C10dGroup = c10::intrusive_ptr<c10d::Backend>;
using RedOp = c10d::ReduceOp::RedOpType;
using Tensors = std::vector<at::Tensor>;

struct C10dRanks {
  int size = 3;
  double timeout_seconds = 20;
  std::vector<int> hosts{};  ///< by rank; empty: one
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
};

/// The message of each rank's failure; empty for those that did not fail.
std::vector<std::string> run_c10d_ranks(const C10dRanks& ranks, const std::function<void(C10dGroup&)>& body) {
  std::vector<std::string> failures(static_cast<size_t>(ranks.size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks.size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        HostRanks::Options host;
        if (!ranks.hosts.empty()) {
          host.identity.boot_id += std::to_string(ranks.hosts[static_cast<size_t>(rank)]);
        }
        c10d::DistributedBackendOptions group;
        group.store = ranks.store;
        group.group_rank = rank;
        group.group_size = ranks.size;
        group.timeout = std::chrono::duration<float>(ranks.timeout_seconds);
        group.group_id = "0";
        C10dGroup backend = c10::make_intrusive<C10dBackend>(group, host);
        body(backend);
      } catch (const std::exception& error) {
        failures[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

void expect_all_well(const std::vector<std::string>& failures) {
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

/// Small whole numbers, so that sums are exact in every type.
at::Tensor numbers(int rank, int64_t numel, at::ScalarType dtype) {
  return at::arange(numel, at::kLong).remainder(5).add(rank + 1).to(dtype);
}

at::Tensor reduced_by_hand(const Tensors& parts, RedOp op) {
  at::Tensor result = parts[0].clone();
  for (size_t i = 1; i < parts.size(); ++i) {
    switch (op) {
      case c10d::ReduceOp::PRODUCT:
        result.mul_(parts[i]);
        break;
      case c10d::ReduceOp::MIN:
        result = at::minimum(result, parts[i]);
        break;
      case c10d::ReduceOp::MAX:
        result = at::maximum(result, parts[i]);
        break;
      case c10d::ReduceOp::BAND:
        result.bitwise_and_(parts[i]);
        break;
      case c10d::ReduceOp::BOR:
        result.bitwise_or_(parts[i]);
        break;
      case c10d::ReduceOp::BXOR:
        result.bitwise_xor_(parts[i]);
        break;
      default:
        result.add_(parts[i]);
    }
  }
  if (op == c10d::ReduceOp::AVG) result.div_(static_cast<int64_t>(parts.size()));
  return result;
}

bool combines(at::ScalarType dtype, RedOp op) {
  const bool is_bitwise =
      op == c10d::ReduceOp::BAND || op == c10d::ReduceOp::BOR || op == c10d::ReduceOp::BXOR;
  return at::isFloatingType(dtype) ? !is_bitwise : op != c10d::ReduceOp::AVG;
}

TEST(C10dBackend, ReducesEachTypeByEachOperation) {
  expect_all_well(run_c10d_ranks({}, [](C10dGroup& backend) {
    const int rank = backend->getRank(), size = backend->getSize();
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kInt, at::kByte}) {
      for (int which = c10d::ReduceOp::SUM; which <= c10d::ReduceOp::BXOR; ++which) {
        const auto op = static_cast<RedOp>(which);
        if (!combines(dtype, op)) continue;
        for (int64_t numel : {1, 1000, 70'001}) {
          Tensors whole;
          for (int each = 0; each < size; ++each) whole.push_back(numbers(each, numel * size, dtype));
          const at::Tensor expected = reduced_by_hand(whole, op);
          const at::Tensor own = expected.narrow(0, rank * numel, numel);
          Tensors tensors{whole[static_cast<size_t>(rank)].clone()};
          backend->allreduce(tensors, {.reduceOp = op})->wait();
          EXPECT_TRUE(at::equal(tensors[0], expected)) << dtype << " " << which << " " << numel;

          at::Tensor input = whole[static_cast<size_t>(rank)], output = at::empty({numel}, dtype);
          backend->_reduce_scatter_base(output, input, {.reduceOp = op})->wait();
          EXPECT_TRUE(at::equal(output, own)) << dtype << " " << which << " " << numel;
          Tensors outputs{at::empty({numel}, dtype)};
          std::vector<Tensors> inputs{input.chunk(size)};
          backend->reduce_scatter(outputs, inputs, {.reduceOp = op})->wait();
          EXPECT_TRUE(at::equal(outputs[0], own)) << dtype << " " << which << " " << numel;

          Tensors at_root{input.clone()};
          backend->reduce(at_root, {.reduceOp = op, .rootRank = 1})->wait();
          EXPECT_TRUE(at::equal(at_root[0], rank == 1 ? expected : input)) << dtype << " " << which;
        }
      }
    }
  }));
}

TEST(C10dBackend, MovesTensorsOfEachTypeAndLayout) {
  expect_all_well(run_c10d_ranks({}, [](C10dGroup& backend) {
    const int rank = backend->getRank(), size = backend->getSize();
    for (auto dtype : {at::kFloat, at::kBool, at::kComplexFloat, at::kFloat8_e4m3fn, at::kLong}) {
      for (int64_t rows : {1, 300, 40'001}) {
        const auto of = [&](int64_t each) {
          return at::arange(rows * 6, at::kLong).remainder(7).add(each).to(dtype).view({rows, 6});
        };
        // Every other column: not contiguous.
        const at::Tensor own = of(rank).slice(1, 0, 6, 2);
        const auto expected = [&](int64_t each) {
          return of(each).slice(1, 0, 6, 2).contiguous().view(at::kByte);
        };
        const auto is = [&](const at::Tensor& found, int64_t each) {
          return at::equal(found.contiguous().view(at::kByte), expected(each));
        };
        const auto apart = [&] { return at::zeros({rows, 6}, at::kLong).to(dtype).slice(1, 0, 6, 2); };
        const auto one_each = [&] {
          Tensors tensors;
          for (int each = 0; each < size; ++each) tensors.push_back(apart());
          return tensors;
        };
        Tensors sent{rank == 2 ? own.clone() : apart()};
        backend->broadcast(sent, {.rootRank = 2})->wait();
        EXPECT_TRUE(is(sent[0], 2)) << dtype << " " << rows;

        std::vector<Tensors> lists{one_each()};
        Tensors inputs{own};
        backend->allgather(lists, inputs, {})->wait();
        for (int each = 0; each < size; ++each) {
          EXPECT_TRUE(is(lists[0][static_cast<size_t>(each)], each)) << dtype << " " << rows;
        }
        at::Tensor flat = at::zeros({size * rows, 3}, at::kLong).to(dtype), input = own;
        backend->_allgather_base(flat, input, {})->wait();
        for (int each = 0; each < size; ++each) EXPECT_TRUE(is(flat.narrow(0, each * rows, rows), each));

        std::vector<Tensors> gathered;
        if (rank == 1) gathered.push_back(one_each());
        backend->gather(gathered, inputs, {.rootRank = 1})->wait();
        for (int each = 0; rank == 1 && each < size; ++each) {
          EXPECT_TRUE(is(gathered[0][static_cast<size_t>(each)], each)) << dtype << " " << rows;
        }
        std::vector<Tensors> scattered;
        if (rank == 0) scattered.push_back({of(5).slice(1, 0, 6, 2), of(6).slice(1, 0, 6, 2), own});
        Tensors outputs{apart()};
        backend->scatter(outputs, scattered, {.rootRank = 0})->wait();
        EXPECT_TRUE(is(outputs[0], rank == 2 ? 0 : 5 + rank)) << dtype << " " << rows;
      }
    }
  }));
}

TEST(C10dBackend, SendsToAllWhatEachShallHave) {
  expect_all_well(run_c10d_ranks({}, [](C10dGroup& backend) {
    const int rank = backend->getRank(), size = backend->getSize();
    // Rank r sends (r + 1) * (t + 2) * 50,000 rows to rank t, nothing to itself.
    const auto rows = [](int from, int to) {
      return from == to ? int64_t{0} : int64_t{50'000} * (from + 1) * (to + 2);
    };
    std::vector<int64_t> to_each, of_each;
    Tensors parts;
    for (int each = 0; each < size; ++each) {
      to_each.push_back(rows(rank, each));
      of_each.push_back(rows(each, rank));
      parts.push_back(at::full({rows(rank, each), 2}, 10 * rank + each, at::kShort));
    }
    at::Tensor input = at::cat(parts);
    at::Tensor output = at::zeros({of_each[0] + of_each[1] + of_each[2], 2}, at::kShort);
    backend->alltoall_base(output, input, of_each, to_each, {})->wait();
    const Tensors found = output.split_with_sizes(of_each, 0);
    Tensors received;
    for (int each = 0; each < size; ++each) {
      const at::Tensor& part = found[static_cast<size_t>(each)];
      EXPECT_TRUE(at::equal(part, at::full_like(part, 10 * each + rank))) << each;
      received.push_back(at::zeros_like(part));
    }
    backend->alltoall(received, parts, {})->wait();
    for (size_t each = 0; each < received.size(); ++each) EXPECT_TRUE(at::equal(received[each], found[each]));
    std::vector<int64_t> even;
    at::Tensor mine = at::arange(6 * size, at::kLong).add(100 * rank), got = at::zeros_like(mine);
    backend->alltoall_base(got, mine, even, even, {})->wait();
    for (int each = 0; each < size; ++each) {
      EXPECT_EQ(got[6 * each].item<int64_t>(), 100 * each + 6 * rank);
    }
  }));
}

TEST(C10dBackend, TakesMessagesByTagAndSenderInAnyOrderBesideCollectives) {
  expect_all_well(run_c10d_ranks({}, [](C10dGroup& backend) {
    const int rank = backend->getRank();
    const auto message = [](int tag) { return Tensors{at::full({1 + tag * 10'000}, tag, at::kInt)}; };
    Tensors sum{at::ones({4})};
    if (rank != 0) {
      for (int tag = 0; tag < 50; ++tag) {
        Tensors tensors = message(tag);
        if (rank == 1) backend->send(tensors, 0, tag)->wait();
      }
      Tensors any{at::full({3}, rank)};
      backend->send(any, 0, 1000)->wait();
      backend->allreduce(sum, {})->wait();
      return;
    }
    backend->allreduce(sum, {})->wait();
    EXPECT_EQ(sum[0][0].item<float>(), 3);
    for (int tag = 49; tag >= 0; --tag) {
      Tensors tensors{at::zeros_like(message(tag)[0])};
      backend->recv(tensors, 1, tag)->wait();
      EXPECT_TRUE(at::equal(tensors[0], message(tag)[0])) << tag;
    }
    std::vector<int> senders;
    for (int i = 0; i < 2; ++i) {
      Tensors tensors{at::zeros({3}, at::kLong)};
      const auto work = backend->recvAnysource(tensors, 1000);
      work->wait();
      EXPECT_EQ(tensors[0][2].item<int64_t>(), work->sourceRank());
      senders.push_back(work->sourceRank());
    }
    EXPECT_THAT(senders, ::testing::UnorderedElementsAre(1, 2));
  }));
}

TEST(C10dBackend, RanksMaySendToEachOtherAtOnce) {
  expect_all_well(run_c10d_ranks({.size = 2}, [](C10dGroup& backend) {
    const int rank = backend->getRank();
    for (int round = 0; round < 50; ++round) {
      Tensors theirs{at::zeros({200'000})}, mine{at::full({200'000}, 2 * round + rank, at::kFloat)};
      const auto received = backend->recv(theirs, 1 - rank, 0);
      backend->send(mine, 1 - rank, 0)->wait();
      received->wait();
      EXPECT_TRUE(received->isCompleted());
      EXPECT_TRUE(at::equal(theirs[0], at::full({200'000}, 2 * round + 1 - rank, at::kFloat))) << round;
    }
  }));
}

TEST(C10dBackend, WorksTellTheirFutures) {
  expect_all_well(run_c10d_ranks({}, [](C10dGroup& backend) {
    std::atomic<int> ended = 0;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int i = 0; i < 20; ++i) {
      Tensors tensors{at::full({1 + i * 5000}, i, at::kFloat)};
      works.push_back(backend->allreduce(tensors, {}));
      works.back()->getFuture()->addCallback([&ended, i](c10::ivalue::Future& future) {
        EXPECT_EQ(future.value().toTensorVector()[0][0].item<float>(), 3 * i);
        ++ended;
      });
    }
    Tensors last{at::ones({1})};
    backend->allreduce(last, {.asyncOp = false})->wait();  // behind those that are under way
    EXPECT_EQ(last[0].item<float>(), 3);
    for (const auto& work : works) EXPECT_TRUE(work->wait());
    EXPECT_EQ(ended.load(), 20);
    EXPECT_EQ(works[3]->result()[0].numel(), 15'001);
    backend->shutdown();
    EXPECT_THROW(backend->allreduce(last, {}), util::Error);
  }));
}

// As DDP's hook for PowerSGD does.
TEST(C10dBackend, ACallbackMayWaitForALaterCollective) {
  expect_all_well(run_c10d_ranks({.size = 2}, [](C10dGroup& backend) {
    Tensors first{at::ones({1000})};
    const auto work = backend->allreduce(first, {});
    std::atomic<bool> done = false;
    work->getFuture()->addCallback([&](c10::ivalue::Future&) {
      Tensors second{at::full({1000}, 2, at::kFloat)};
      backend->allreduce(second, {})->getFuture()->waitAndThrow();
      EXPECT_EQ(second[0][0].item<float>(), 4);
      done = true;
    });
    work->wait();
    while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }));
}

TEST(C10dBackend, ReadsTensorsThatItHasAllocatedWhereTheyAre) {
  expect_all_well(run_c10d_ranks({}, [](C10dGroup& backend) {
    const int64_t numel = 100'000;
    EXPECT_TRUE(backend->supportsTensorAlloc(-1));
    at::Tensor input = backend->allocateTensor(numel, at::TensorOptions(at::kInt));
    EXPECT_EQ(input.scalar_type(), at::kInt);
    input.fill_(backend->getRank());
    at::Tensor output = at::empty({3 * numel}, at::kInt);
    backend->_allgather_base(output, input, {})->wait();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(at::equal(output.narrow(0, rank * numel, numel), at::full({numel}, rank, at::kInt)));
    }
  }));
}

TEST(C10dBackend, NamesTheRankThatDoesNotComeInTime) {
  const auto failures = run_c10d_ranks({.timeout_seconds = 20}, [](C10dGroup& backend) {
    Tensors tensors{at::ones({2})};
    if (backend->getRank() == 2) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      return;
    }
    c10d::AllreduceOptions options;
    options.timeout = std::chrono::milliseconds(500);
    backend->allreduce(tensors, options)->wait();
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(failures[static_cast<size_t>(rank)],
                AllOf(HasSubstr("all_reduce of Float[2] (group 0) failed on rank " + std::to_string(rank)),
                      HasSubstr("no result within 0.5 s (the time-out of the process group)"),
                      HasSubstr("no answer from rank 2")));
  }
}

TEST(C10dBackend, NamesTheRankThatIsGone) {
  const auto failures = run_c10d_ranks({}, [](C10dGroup& backend) {
    if (backend->getRank() == 1) return;  // destroys its backend
    Tensors tensors{at::ones({2})};
    if (backend->getRank() == 0) {
      backend->recv(tensors, 1, 7)->wait();
    } else {
      backend->broadcast(tensors, {})->wait();
    }
  });
  EXPECT_THAT(failures[0], AllOf(HasSubstr("recv from rank 1 with tag 7 failed on rank 0 of 3"),
                                 HasSubstr("no answer from rank 1")));
  EXPECT_THAT(failures[2], HasSubstr("a process of the run is gone"));
}

TEST(C10dBackend, FailsOnRanksInDifferentCollectives) {
  const auto failures = run_c10d_ranks({.size = 2}, [](C10dGroup& backend) {
    Tensors tensors{at::ones({backend->getRank() == 0 ? 3 : 4})};
    backend->allreduce(tensors, {})->wait();
  });
  EXPECT_THAT(failures[0],
              HasSubstr("rank 1 is in another collective (all_reduce of Float[4] (group 0), 4 elements) than "
                        "this rank, which is in all_reduce of Float[3] (group 0), 3 elements"));
  EXPECT_THAT(failures[1], HasSubstr("rank 0 is in another collective"));
}

TEST(C10dBackend, RefusesWhatItCannotDoByName) {
  for (const std::string& failure : run_c10d_ranks({.size = 2, .hosts = {0, 1}}, [](C10dGroup&) {})) {
    EXPECT_THAT(failure, AllOf(HasSubstr("requires all ranks of group 0 on one host"),
                               HasSubstr("ranks 0 and 1 are on different hosts; use gloo")));
  }
  for (const std::string& failure : run_c10d_ranks({.size = 2}, [](C10dGroup& backend) {
         Tensors tensors{at::ones({3})};
         c10d::AllreduceOptions options;
         options.reduceOp.op_ = RedOp::PREMUL_SUM;
         backend->allreduce(tensors, options)->wait();
       })) {
    EXPECT_THAT(failure, HasSubstr("BOR and BXOR, but found PREMUL_SUM"));
  }
}

TEST(C10dBackend, AStoreServesOneGroupAfterAnother) {
  C10dRanks ranks;
  for (int i = 0; i < 3; ++i) {
    expect_all_well(run_c10d_ranks(ranks, [](C10dGroup& backend) { backend->barrier({})->wait(); }));
  }
}

TEST(C10dBackend, ServesAGroupOfOne) {
  expect_all_well(run_c10d_ranks({.size = 1}, [](C10dGroup& backend) {
    Tensors tensors{numbers(3, 200'000, at::kFloat)};
    backend->allreduce(tensors, {.reduceOp = RedOp::AVG})->wait();
    EXPECT_TRUE(at::equal(tensors[0], numbers(3, 200'000, at::kFloat)));
    at::Tensor output = at::zeros({200'000});
    backend->_allgather_base(output, tensors[0], {})->wait();
    EXPECT_TRUE(at::equal(output, tensors[0]));
    std::vector<Tensors> lists{{at::zeros({200'000})}};
    backend->allgather(lists, tensors, {})->wait();
    EXPECT_TRUE(at::equal(lists[0][0], tensors[0]));
  }));
}

}  // namespace
}  // namespace fsdp::comm
