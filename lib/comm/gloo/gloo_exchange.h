#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/api/exchange.h"
#include "comm/gloo/gloo_place.h"

namespace fsdp::comm {

/// Transfers between the ranks of a group over gloo. Transfers with one tag arrive in the order of sending;
/// one without a counterpart waits until the time-out.
class GlooExchange final : public Exchange {
 public:
  /// Like connect_gloo(). All methods throw Error(kTimeout) or Error(kPeerLost) with gloo's message.
  GlooExchange(const GlooPlace& place, const std::string& prefix, int rank, int size);
  /// Uses existing connections.
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
