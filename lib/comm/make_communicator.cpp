#include "comm/make_communicator.h"

#include "comm/gloo_communicator.h"
#include "comm/queued_communicator.h"
#include "comm/run_store.h"
#include "comm/shm_communicator.h"
#include "comm/single_communicator.h"
#include "util/error.h"
#include "util/log.h"

namespace fsdp::comm {
namespace {

std::unique_ptr<Communicator> connect(const LaunchEnvironment& environment, const CommOptions& options) {
  const bool wants_shm = options.backend == "shm";
  std::string obstacle = "the run has several nodes";
  if (options.backend == "gloo") return make_gloo_communicator(environment, options);
  RunStore store = join_run_store(environment, options.timeout());
  if (wants_shm || environment.single_node()) {
    ShmAttempt attempt = try_shm_communicator(environment, options, store);
    if (attempt.communicator) return std::move(attempt.communicator);
    obstacle = attempt.obstacle;
  }
  if (wants_shm) {
    leave_store(store, environment);
    util::fail(util::ErrorKind::kUsage,
               "comm.backend: expected processes that can share memory for \"shm\"; found that ", obstacle,
               "; set it to auto or gloo");
  }
  if (environment.rank == 0) {
    util::log_info(util::concat("processes talk over gloo, not through shared memory: ", obstacle));
  }
  return make_gloo_communicator(environment, options, std::move(store));
}

}  // namespace

std::shared_ptr<Communicator> make_communicator(const LaunchEnvironment& environment,
                                                const CommOptions& options,
                                                std::shared_ptr<Activity> activity) {
  if (options.backend != "auto" && options.backend != "shm" && options.backend != "gloo") {
    util::fail(util::ErrorKind::kUsage, "comm.backend: expected auto, shm or gloo; found \"", options.backend,
               "\"");
  }
  if (environment.world_size == 1) return std::make_shared<SingleCommunicator>();
  std::shared_ptr<Communicator> communicator = connect(environment, options);
  if (activity) communicator = make_noting_communicator(std::move(communicator), std::move(activity));
  return make_queued_communicator(std::move(communicator));
}

}  // namespace fsdp::comm
