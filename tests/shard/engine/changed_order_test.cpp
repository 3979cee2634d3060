// Forwards that use different units, or the same in another order.

#include <gtest/gtest.h>

#include <mutex>

#include "base/util/error.h"
#include "base/util/log.h"
#include "support/chain_run.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using testing::every_matrix;
using testing::identical;
using Order = std::vector<size_t>;

/// Captures the log within its scope.
class LogCapture {
 public:
  LogCapture() {
    util::set_log_sink([this](util::LogLevel level, std::string_view line) {
      std::lock_guard lock(mutex_);
      if (level >= util::LogLevel::kWarning) lines_.emplace_back(line);
    });
  }
  ~LogCapture() { util::set_log_sink({}); }
  std::vector<std::string> lines() {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// By rank: the error of a forward in which each rank has another order; empty for none.
std::vector<std::string> errors_of(const std::vector<Order>& orders) {
  std::vector<std::string> errors(orders.size());
  comm::run_ranks_as_threads(static_cast<int>(orders.size()), [&](comm::Communicator& communicator) {
    size_t rank = static_cast<size_t>(communicator.rank());
    ChainRun run(communicator, every_matrix("explicit", "pre"));
    run.chain.order = orders[rank];
    try {
      run.step();
    } catch (const comm::AgreedError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      errors[rank] = error.what();
      run.engine->reset();
      EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
    }
  });
  return errors;
}

void expect_all_contain(const std::vector<std::string>& errors, const std::vector<std::string>& parts) {
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors.front());
    for (const std::string& part : parts) EXPECT_NE(error.find(part), std::string::npos) << error;
  }
}

TEST(ExplicitOrder, DifferentOnOneRankIsTheSameErrorOnAllRanks) {
  expect_all_contain(errors_of({{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 2, 1, 3}}),
                     {"unit layers.1 on rank 0", "unit layers.2 on rank 2", "place 3 "});
  expect_all_contain(errors_of({{1, 0}, {0, 1}}), {"unit layers.1 on rank 0", "unit layers.0 on rank 1"});
}

TEST(ExplicitOrder, AShorterForwardOnOneRankIsTheSameErrorOnAllRanks) {
  expect_all_contain(errors_of({{0, 1, 2}, {0, 1}}),
                     {"unit layers.2 on rank 0", "the end of forward on rank 1", "place 4 "});
  expect_all_contain(errors_of({{0}, {0, 3}}), {"the end of forward on rank 0", "unit layers.3 on rank 1"});
}

TEST(ExplicitOrder, AfterTheErrorTheSameOrderTrains) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainRun run(communicator, every_matrix("explicit", "pre"));
    if (communicator.rank() == 1) run.chain.order = {1, 0, 2, 3};
    EXPECT_THROW(run.step(), comm::AgreedError);
    run.engine->reset();
    run.chain.order = {};
    ChainRun other(communicator, every_matrix());
    EXPECT_TRUE(identical(run.gradients_of_a_step(), other.gradients_of_a_step()));
  });
}

TEST(ExplicitOrder, IsComparedInTheFirstForwardOnly) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainRun run(communicator, every_matrix("explicit"));
    auto checks = [&] {
      int64_t checks = 0;
      for (const auto& call : run.calls.calls()) checks += call.unit == "execution order";
      return checks;
    };
    run.step();
    EXPECT_EQ(checks(), 6);  // root, four matrices, the end
    run.calls.clear();
    run.step();
    EXPECT_EQ(checks(), 0);
  });
}

/// Gradients of one step in each of the orders; after each step no memory may be live.
std::vector<std::vector<at::Tensor>> gradients_in_orders(comm::Communicator& communicator,
                                                         const ShardOptions& options,
                                                         const std::vector<Order>& orders) {
  ChainRun run(communicator, options);
  std::vector<std::vector<at::Tensor>> gradients;
  for (const Order& order : orders) {
    run.chain.order = order;
    gradients.push_back(run.gradients_of_a_step());
    EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
    for (const auto& unit : run.engine->units()) EXPECT_EQ(unit->state(), Unit::State::kSharded);
  }
  return gradients;
}

TEST(ChangedOrder, IsToldOnceAndTrainsRight) {
  const std::vector<Order> orders = {{0, 1, 2, 3}, {0, 2, 1, 3}, {3, 2, 1, 0}, {0, 1, 2, 3}, {0, 1, 2, 3}};
  LogCapture log;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    auto expected = gradients_in_orders(communicator, every_matrix(), orders);
    for (bool limit : {true, false}) {
      for (const char* prefetch : {"implicit", "explicit"}) {
        for (const char* backward : {"none", "pre", "post"}) {
          if (!limit && *backward == 'n') continue;
          ShardOptions options = every_matrix(prefetch, backward);
          options.limit_all_gathers = limit;
          auto actual = gradients_in_orders(communicator, options, orders);
          for (size_t i = 0; i < orders.size(); ++i) {
            EXPECT_TRUE(identical(actual[i], expected[i])) << prefetch << backward << limit << i;
          }
        }
      }
    }
  });
  // One per engine with explicit prefetch, from rank 0.
  EXPECT_EQ(log.lines().size(), 5u);
  for (const std::string& line : log.lines()) {
    EXPECT_NE(line.find("unit layers.2 comes where unit layers.1 came"), std::string::npos) << line;
  }
}

TEST(ChangedOrder, APassMayStopEarlyOrGoOnFurther) {
  const std::vector<Order> orders = {{0, 1, 2, 3}, {0, 1}, {0, 1, 2, 3}, {0}, {0, 1, 2, 3, 3, 2}};
  LogCapture log;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    auto expected = gradients_in_orders(communicator, every_matrix(), orders);
    ShardOptions options = every_matrix("explicit", "pre");
    options.limit_all_gathers = false;
    auto actual = gradients_in_orders(communicator, options, orders);
    for (size_t i = 0; i < orders.size(); ++i) EXPECT_TRUE(identical(actual[i], expected[i])) << i;
  });
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_NE(log.lines()[0].find("the end of forward comes where unit layers.2 came"), std::string::npos);
}

TEST(ChangedOrder, IsNoConcernOfImplicitPrefetch) {
  LogCapture log;
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    gradients_in_orders(communicator, every_matrix("implicit"), {{0, 1, 2, 3}, {3, 1}, {2, 2}});
  });
  EXPECT_TRUE(log.lines().empty());
}

/// Matrices that are gathered when each of `order` computes, and when forward has ended.
std::vector<int64_t> gathered_in(comm::Communicator& communicator, const ShardOptions& options,
                                 const Order& order) {
  ChainRun run(communicator, options);
  run.step();
  std::vector<int64_t> gathered;
  const auto note = [&] {
    run.calls.enqueue([] {})->wait();  // what was issued has been done
    gathered.push_back((run.engine->unsharded_memory().live_parameters - 4 * 4) / (16 * 4));
  };
  for (size_t i = 0; i < 4; ++i) run.chain.layer(i).probe = [&](const at::Tensor&) { note(); };
  run.chain.order = order;
  at::Tensor loss = run.chain.forward(run.input()).sum();
  note();
  loss.backward();
  return gathered;
}

TEST(ChangedOrder, WhatWasGatheredInVainIsNeverAThirdUnit) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    for (const char* prefetch : {"implicit", "explicit"}) {
      for (const Order& order : {Order{3, 0, 2, 1}, {0, 2, 3}, {1, 1, 3, 0}}) {
        const std::vector<int64_t> gathered = gathered_in(communicator, every_matrix(prefetch), order);
        for (int64_t matrices : gathered) EXPECT_LE(matrices, 2) << prefetch;
        EXPECT_EQ(gathered.back(), 1) << prefetch;  // with which backward begins
      }
    }
  });
}

TEST(ChangedOrder, WithoutLimitWhatWasGatheredInVainStaysUntilForwardEnds) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ShardOptions options = every_matrix("implicit");
    options.limit_all_gathers = false;
    EXPECT_EQ(gathered_in(communicator, options, {3, 0}), (std::vector<int64_t>{4, 3, 1}));
  });
}

// Rank 0 has seen the end of a forward that rank 1 has not. After reset(), both predict alike again.
TEST(ChangedOrder, RanksThatFailAtDifferentPlacesAgreeAfterAReset) {
  for (const char* prefetch : {"implicit", "explicit"}) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      ChainRun run(communicator, every_matrix(prefetch, "pre")), other(communicator, every_matrix());
      run.step();
      run.chain.order = {2, 0, 1};
      run.chain.layer(1).throws = communicator.rank() == 1;
      if (communicator.rank() == 1) {
        EXPECT_THROW(run.chain.forward(run.input()), std::runtime_error);
      } else {
        run.chain.forward(run.input());
      }
      run.chain.layer(1).throws = false;
      run.engine->reset();
      for (const Order& order : {Order{}, {2, 0, 1}, {3, 2}}) {
        run.chain.order = other.chain.order = order;
        EXPECT_TRUE(identical(run.gradients_of_a_step(), other.gradients_of_a_step())) << prefetch;
      }
    });
  }
}

/// Forwards and backwards of each order, then a forward without backward.
TEST(ChangedOrder, OfAnEvaluationOrARecomputedPassTrainsRight) {
  const std::vector<Order> orders = {{3, 2, 1, 0}, {0, 2, 3}, {1}, {0, 1, 2, 3}, {2, 2, 0}};
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    for (const char* recompute : {"", "block"}) {
      const testing::Names recomputed = *recompute ? testing::Names{recompute} : testing::Names{};
      ChainRun run(communicator, every_matrix("implicit", "pre"), 4, recomputed);
      ChainRun other(communicator, every_matrix(), 4, recomputed);
      for (size_t i = 0; i < orders.size(); ++i) {
        run.chain.order = other.chain.order = orders[i];
        EXPECT_TRUE(identical(run.gradients_of_a_step(), other.gradients_of_a_step())) << recompute << i;
        at::NoGradGuard no_grad;
        run.chain.order = other.chain.order = orders[orders.size() - 1 - i];
        EXPECT_TRUE(at::equal(run.chain.forward(run.input()), other.chain.forward(run.input()))) << i;
        EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
      }
    }
  });
}

}  // namespace
}  // namespace fsdp::shard
