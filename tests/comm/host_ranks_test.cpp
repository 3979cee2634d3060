#include "comm/host_ranks.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "util/error.h"

namespace fsdp::comm {
namespace {

/// A rank that has offered its memory; of another host, or of this one.
void offer(RunStore& store, int rank, pid_t pid, bool elsewhere) {
  const HostIdentity own = HostIdentity::read();
  const nlohmann::json offer = {{"obstacle", ""},
                                {"identity",
                                 {{"boot_id", elsewhere ? "another" : own.boot_id},
                                  {"pid_namespace", own.pid_namespace},
                                  {"network_namespace", own.network_namespace}}},
                                {"pid", pid},
                                {"fd", 3},
                                {"bytes", 1 << 21},
                                {"sign", 1}};
  store->set("shm/offer/" + std::to_string(rank), nlohmann::json::to_cbor(offer));
}

TEST(HostRanks, APeerThatEndsBetweenOfferAndAnswerIsAnError) {
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  ::waitpid(ended, nullptr, 0);
  RunStore store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(std::chrono::milliseconds(300));
  offer(store, 0, 1, /*elsewhere=*/true);
  offer(store, 1, ended, /*elsewhere=*/false);
  EXPECT_THROW(HostRanks::meet({.rank = 2, .world_size = 3}, store, {}), util::Error);
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
