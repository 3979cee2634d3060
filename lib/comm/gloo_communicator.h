#pragma once

// gloo (TCP): connections of a group of ranks, and collectives over them.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/exchange.h"
#include "comm/group_failure.h"
#include "comm/launch_environment.h"
#include "comm/options.h"
#include "comm/run_store.h"

namespace c10d {
class ProcessGroupGloo;
}

namespace fsdp::comm {

/// How this process reaches the others, in any group.
struct GlooPlace {
  RunStore store{};                     ///< of the whole run
  std::string address{};                ///< of this host; its ranks listen there
  std::chrono::milliseconds timeout{};  ///< of a collective, and of connecting
  /// That of the LaunchEnvironment: waiting for others ends with Error(kPeerLost) a few milliseconds after it says so.
  std::function<bool()> is_broken_off = nullptr;
};

/// For processes that have all joined the store.
GlooPlace gloo_place(const LaunchEnvironment& environment, const CommOptions& options, RunStore store);

/// Connects member `rank` with the other `size` - 1 members and returns when all members are connected.
/// Collective over them; `prefix` in the store must be unique to the group. Throws the exceptions of c10d, or
/// one with the text of another member's exception.
c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const GlooPlace& place, const std::string& prefix,
                                                        int rank, int size);

/// Collectives of all processes of the run; they are complete at the call. Collective over the run. Without
/// `store` this function joins the run's store.
///
/// Rank 0 hosts the store at MASTER_ADDR:MASTER_PORT; it listens on every address of that host and has no
/// authentication, so a run belongs on a trusted network. Throws Error(kTimeout) when not all processes arrive
/// within options.timeout_seconds, and Error(kUsage) when the address cannot be used.
std::unique_ptr<Communicator> make_gloo_communicator(const LaunchEnvironment& environment,
                                                     const CommOptions& options, RunStore store = {});

/// The same for a group of the run's ranks; `prefix` in the store must be unique to it.
std::unique_ptr<Communicator> make_gloo_group(const GlooPlace& place, GroupIdentity identity,
                                              const std::string& prefix);

/// Transfers between the ranks of a group over gloo. Those of one tag arrive in the order of sending; a transfer without a
/// counterpart of its tag waits until the time-out.
class GlooExchange final : public Exchange {
 public:
  /// Like connect_gloo(). All methods throw Error(kTimeout) or Error(kPeerLost) with gloo's message.
  GlooExchange(const GlooPlace& place, const std::string& prefix, int rank, int size);
  /// Over connections that there are.
  GlooExchange(c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group,
               const std::function<bool()>& is_broken_off);
  ~GlooExchange() override;
  GlooExchange(const GlooExchange&) = delete;
  GlooExchange& operator=(const GlooExchange&) = delete;

  Transfer send(int to, int tag, const at::Tensor& tensor) override;
  Transfer receive(int from, int tag, const at::Tensor& tensor) override;
  void wait(const Transfer& transfer) override;
  /// Closes the connections.
  void close() override;

 private:
  class Breaker;

  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group_;
  std::unique_ptr<Breaker> breaker_;  ///< null without GlooPlace::is_broken_off
};

}  // namespace fsdp::comm
