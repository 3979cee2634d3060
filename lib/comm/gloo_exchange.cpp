#include "comm/gloo_exchange.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "util/error.h"

namespace fsdp::comm {
namespace {

/// `body`'s exceptions as errors of the library.
template <typename Body>
auto told(const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    const std::string text = first_line(error.what());
    const auto kind = says_timeout(text) ? util::ErrorKind::kTimeout : util::ErrorKind::kPeerLost;
    throw util::Error(kind, text);
  }
}

}  // namespace

GlooExchange::GlooExchange(const GlooPlace& place, const std::string& prefix, int rank, int size)
    : process_group_(told([&] { return connect_gloo(place, prefix, rank, size); })) {}

GlooExchange::~GlooExchange() = default;

GlooExchange::Transfer GlooExchange::send(int to, int tag, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  return told([&] { return process_group_->send(tensors, to, tag); });
}

GlooExchange::Transfer GlooExchange::receive(int from, int tag, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  return told([&] { return process_group_->recv(tensors, from, tag); });
}

void GlooExchange::wait(const Transfer& transfer) {
  told([&] { return transfer->wait(); });
}

/// Its destructor waits for nobody: no collectives of c10d, which have threads, are run on it.
void GlooExchange::close() { process_group_.reset(); }

}  // namespace fsdp::comm
