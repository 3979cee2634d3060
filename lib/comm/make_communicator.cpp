#include "comm/make_communicator.h"

#include "comm/gloo_communicator.h"
#include "comm/queued_communicator.h"
#include "comm/single_communicator.h"
#include "util/error.h"

namespace fsdp::comm {

std::shared_ptr<Communicator> make_communicator(const LaunchEnvironment& environment,
                                                const CommOptions& options,
                                                std::shared_ptr<Activity> activity) {
  if (options.backend != "auto" && options.backend != "gloo") {
    util::fail(util::ErrorKind::kUsage, "comm.backend: expected auto or gloo; found \"", options.backend,
               "\"");
  }
  if (environment.world_size == 1) return std::make_shared<SingleCommunicator>();
  std::shared_ptr<Communicator> communicator = make_gloo_communicator(environment, options);
  if (activity) communicator = make_noting_communicator(std::move(communicator), std::move(activity));
  return make_queued_communicator(std::move(communicator));
}

}  // namespace fsdp::comm
