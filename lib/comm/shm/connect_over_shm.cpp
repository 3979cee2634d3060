#include "comm/api/connect.h"
#include "comm/shm/shm_communicator.h"

namespace fsdp::comm {

std::unique_ptr<Communicator> connect_over_shm(RunToConnect run) {
  HostRanks::Meeting meeting = HostRanks::meet(run.environment, run.store, run.host);
  if (!meeting.ranks || !meeting.apart.empty()) {
    refuse_backend(run, "processes that can share memory",
                   meeting.apart.empty() ? meeting.obstacle : meeting.apart);
  }
  return make_shm_communicator(ShmGroup::connect(std::move(meeting.ranks), run_identity(run.environment),
                                                 run.options.timeout_seconds, kRunKey));
}

}  // namespace fsdp::comm
