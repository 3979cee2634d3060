#include "base/objects/shared_answers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace fsdp::objects {
namespace {

using namespace std::chrono_literals;

TEST(SharedAnswers, AskOnceForThoseWhoWaitAndNeverBeforeTheyAsked) {
  SharedAnswers<int> answers;
  std::atomic<int> now = 0, requests = 0;
  std::atomic<bool> was_early = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) {
        const int asked_at = ++now;
        const int answered_of = answers.ask("object", [&] {
          ++requests;
          const int begun_at = now;
          std::this_thread::sleep_for(2ms);
          return begun_at;
        });
        if (answered_of < asked_at) was_early = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(was_early);
  EXPECT_LT(requests, 100) << "of 160 questions";
}

TEST(SharedAnswers, ThrowToAllAndAskAgain) {
  SharedAnswers<int> answers;
  const auto fails = [&] { return answers.ask("object", []() -> int { throw std::runtime_error("no"); }); };
  EXPECT_THROW(fails(), std::runtime_error);
  EXPECT_EQ(answers.ask("object", [] { return 3; }), 3);
}

}  // namespace
}  // namespace fsdp::objects
