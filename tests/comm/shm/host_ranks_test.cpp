#include "comm/shm/host_ranks.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/util/error.h"

namespace fsdp::comm {
namespace {

using nlohmann::json;

/// Of three ranks, the first of which is on another host, the second is this process, which hears from the
/// third only what it has left in the store.
TEST(HostRanks, APeerThatEndsBetweenOfferAndAnswerIsAnError) {
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  ::waitpid(ended, nullptr, 0);
  RunStore store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(std::chrono::milliseconds(300));
  const json roll = {{"apart", "ranks 0 and 1 are on different hosts"},
                     {"obstacle", ""},
                     {"identities", json::array()},
                     {"runs", {0, 1, 1, 1, 1, 2}}};
  json offers = json::array();
  offers.push_back(json::object({{"pid", ended}, {"fd", 3}, {"bytes", 1 << 21}, {"sign", 1}}));
  store->set("shm/hosts/result/0", json::to_cbor(roll));
  store->set("shm/offers/0/2", json::to_cbor(offers));
  EXPECT_THROW(HostRanks::meet({.rank = 1, .world_size = 3}, store, {}), util::Error);
  // What this rank has said of it to the others.
  const std::string said = store->get_to_str("shm/outcome/0/1");
  EXPECT_TRUE(said.starts_with(concat("on rank 1 process ", ended, " cannot be watched"))) << said;
}

TEST(SharedGpu, IsOneOfTheSameHost) {
  EXPECT_EQ(shared_gpu({"a 0000:1b:00.0", "a 0000:3d:00.0"}), "");
  EXPECT_EQ(shared_gpu({"a 0000:1b:00.0", "b 0000:1b:00.0"}), "") << "of different hosts";
  EXPECT_EQ(shared_gpu({"a 0000:1b:00.0", "b 0000:1b:00.0", "a 0000:1b:00.0"}),
            "ranks 0 and 2 share a GPU (0000:1b:00.0)");
}

TEST(SharedGpu, IsNoneWhereRanksComputeOnTheCpu) {
  EXPECT_EQ(shared_gpu({"a ", "a "}), "");
  EXPECT_EQ(shared_gpu({}), "");
}

}  // namespace
}  // namespace fsdp::comm
