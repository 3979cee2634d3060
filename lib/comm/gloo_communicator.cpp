#include "comm/gloo_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <map>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/rank_order_sum.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using util::ErrorKind;
using Store = c10::intrusive_ptr<c10d::Store>;

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

bool says_timeout(const std::string& text) {
  return contains(text, "imed out") || contains(text, "imeout") || contains(text, "TIMEDOUT");
}

std::vector<std::string> as_text(const std::vector<int>& numbers) {
  std::vector<std::string> texts;
  for (int number : numbers) texts.push_back(std::to_string(number));
  return texts;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// gloo and c10d's store write to sockets whose peer may be gone; that must be an error here, not the end of
/// the process by SIGPIPE. A handler of the program's own is left alone.
void ignore_broken_pipes() {
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

/// The address of this host from which packets to the master leave; gloo listens there.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    util::fail(ErrorKind::kUsage, "MASTER_ADDR: expected the name or address of a host; \"", host,
               "\" cannot be resolved: ", gai_strerror(code));
  }
  std::string address = "127.0.0.1";
  // Connecting a datagram socket sends nothing; it asks the kernel for the route.
  int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    char text[NI_MAXHOST];
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      address = text;
    }
  }
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  return address;
}

Store join_store(const LaunchEnvironment& environment, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = environment.rank == 0 && !environment.launcher_keeps_store;
  options.numWorkers = static_cast<size_t>(environment.world_size);
  options.waitWorkers = true;
  options.timeout = timeout;
  std::string where = util::concat(environment.master_addr, ":", environment.master_port);
  try {
    return c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
  } catch (const std::exception& error) {
    std::string text = error.what();
    if (contains(text, "EADDRINUSE") || contains(text, "ddress already in use")) {
      util::fail(ErrorKind::kUsage, "rendezvous: port ", environment.master_port,
                 " of this host is in use by another program; choose another with fsdp-launch --master-port");
    }
    if (says_timeout(text)) {
      util::fail(ErrorKind::kTimeout, "rendezvous at ", where, ": rank ", environment.rank, " waited ",
                 timeout.count() / 1000, " s and not all of the ", environment.world_size,
                 " processes came; check that all were started with the same MASTER_ADDR and MASTER_PORT (",
                 first_line(text), ")");
    }
    util::fail(ErrorKind::kPeerLost, "rendezvous at ", where, " failed on rank ", environment.rank, ": ",
               first_line(text));
  }
}

/// After a failure each living rank of the group leaves a sign in the store; who left none within two seconds
/// is named. `ranks` and `rank` are numbers in the whole run. Runs in a thread of its own, because a store
/// whose host is stopped may never answer.
std::string silent_ranks(const Store& store, int rank, const std::vector<int>& ranks) {
  auto promise = std::make_shared<std::promise<std::string>>();
  auto answer = promise->get_future();
  std::thread([store, rank, ranks, promise] {
    try {
      store->set("alive/" + std::to_string(rank), "1");
      std::vector<std::string> silent;
      auto deadline = std::chrono::steady_clock::now() + milliseconds(2000);
      do {
        silent.clear();
        for (int other : ranks) {
          if (!store->check({"alive/" + std::to_string(other)})) silent.push_back(std::to_string(other));
        }
        if (silent.empty()) break;
        std::this_thread::sleep_for(milliseconds(50));
      } while (std::chrono::steady_clock::now() < deadline);
      promise->set_value(silent.empty() ? "" : "no answer from rank " + util::join(silent, ", "));
    } catch (const std::exception&) {
      promise->set_value("no answer from rank 0, which hosts the store");
    }
  }).detach();
  if (answer.wait_for(milliseconds(3000)) == std::future_status::ready) return answer.get();
  return "no answer from rank 0, which hosts the store";
}

/// The connections of one group of ranks, and what is needed to explain a failure.
struct Group {
  Store store;          ///< of the whole run
  std::string address;  ///< of this host, where the ranks are connected
  milliseconds timeout{};
  std::string prefix;      ///< in the store, the members' alone
  std::string name;        ///< of a subgroup; empty: the whole run
  std::vector<int> ranks;  ///< numbers in the whole run
  int rank = 0;            ///< in the group
  int run_size = 1;        ///< ranks of the whole run
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group;
  bool failed = false;

  ~Group() {
    // A group with a lost peer may wait for ever in its destructor; the process is about to end anyway.
    if (failed) (void)process_group.release();
  }

  int global_rank() const { return ranks[static_cast<size_t>(rank)]; }

  /// Empty for the whole run, " (group data: ranks 0, 1)" for a subgroup.
  std::string shown() const {
    if (name.empty()) return "";
    return util::concat(" (group ", name, ": ranks ", util::join(as_text(ranks), ", "), ")");
  }

  /// Collective over the members.
  void connect() {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
    options->devices.push_back(interface != nullptr && *interface != '\0'
                                   ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                   : c10d::ProcessGroupGloo::createDeviceForHostname(address));
    auto own_store = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
    process_group =
        c10::make_intrusive<c10d::ProcessGroupGloo>(own_store, rank, static_cast<int>(ranks.size()), options);
  }

  [[noreturn]] void fail(const std::string& description, const std::string& cause) {
    failed = true;
    std::string silent = silent_ranks(store, global_rank(), ranks);
    bool timeout_passed = says_timeout(cause);
    util::fail(timeout_passed ? ErrorKind::kTimeout : ErrorKind::kPeerLost, description, " failed on rank ",
               global_rank(), " of ", run_size, shown(), ": ",
               timeout_passed
                   ? util::concat("no result within ", static_cast<double>(timeout.count()) / 1000.0,
                                  " s (comm.timeout_seconds)")
                   : std::string("a process of the run is gone"),
               silent.empty() ? "" : "; ", silent, " (", first_line(cause), ")");
  }
};

/// For gloo: the tensor without its ownership, which stays with the caller. A thread of gloo holds on to what
/// it was given until some time after wait() has returned, and would keep memory that is free by then.
at::Tensor borrowed(const at::Tensor& tensor) {
  FSDP_CHECK(tensor.is_contiguous());
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options());
}

at::Tensor borrowed_bytes(const at::Tensor& tensor) { return borrowed(tensor).view(at::kByte); }

/// Collectives are complete at the call. Tensors travel as bytes where no arithmetic is done on the way,
/// because gloo knows fewer element types than the toolkit.
class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(std::unique_ptr<Group> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank; }
  int world_size() const override { return static_cast<int>(group_->ranks.size()); }
  std::string backend_name() const override { return "gloo"; }

  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const CallSite& site) override {
    FSDP_CHECK(output.numel() == input.numel() * world_size() && output.scalar_type() == input.scalar_type());
    run("all_gather", site, [&](c10d::ProcessGroupGloo& gloo) {
      at::Tensor out = borrowed_bytes(output), in = borrowed_bytes(input);
      return gloo._allgather_base(out, in);
    });
    return done_work();
  }

  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CallSite& site) override {
    FSDP_CHECK(input.numel() == output.numel() * world_size() && output.scalar_type() == input.scalar_type());
    // c10d's gloo reduce-scatter is a whole all-reduce; exchanging the parts moves half the bytes.
    at::Tensor received = receive_buffer(input);
    run("reduce_scatter", site, [&](c10d::ProcessGroupGloo& gloo) {
      at::Tensor out = borrowed_bytes(received), in = borrowed_bytes(input);
      std::vector<int64_t> even;
      return gloo.alltoall_base(out, in, even, even);
    });
    sum_in_rank_order(output, received.chunk(world_size()));
    return done_work();
  }

  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    at::Tensor wide = sums_in_float(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
    run("all_reduce", site, [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{borrowed(wide)};
      c10d::AllreduceOptions options;
      options.reduceOp = op == ReduceOp::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
      return gloo.allreduce(tensors, options);
    });
    if (!wide.is_same(tensor)) tensor.copy_(wide);
    return done_work();
  }

  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    run("broadcast", site, [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{borrowed_bytes(tensor)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return gloo.broadcast(tensors, options);
    });
    return done_work();
  }

  void barrier(const CallSite& site) override {
    at::Tensor token = at::empty({1}, at::kFloat).zero_();
    run("barrier", site, [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{token};
      return gloo.allreduce(tensors);
    });
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return at::empty({numel}, at::TensorOptions().dtype(dtype));
  }

  std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    if (auto existing = existing_subgroup(name, ranks)) return existing;
    auto group = std::make_unique<Group>();
    group->store = group_->store;
    group->address = group_->address;
    group->timeout = group_->timeout;
    group->name = group_->name.empty() ? name : util::concat(group_->name, "/", name);
    group->run_size = group_->run_size;
    for (int member : ranks) {
      if (member == rank()) group->rank = static_cast<int>(group->ranks.size());
      group->ranks.push_back(group_->ranks[static_cast<size_t>(member)]);
    }
    // Groups of one name may be of other ranks, or be made again.
    group->prefix = util::concat(group_->prefix, "/", name, "/", util::join(as_text(group->ranks), "-"));
    group->prefix += util::concat("/", groups_made_[group->prefix]++);
    try {
      group->connect();
    } catch (const std::exception& error) {
      group->fail("connecting", error.what());
    }
    return std::make_shared<GlooCommunicator>(std::move(group));
  }

 private:
  template <typename Issue>
  void run(const char* op, const CallSite& site, const Issue& issue) {
    try {
      issue(*group_->process_group)->wait();
    } catch (const std::exception& error) {
      group_->fail(util::concat(op, " of ", site.unit, " (", site.pass, ")"), error.what());
    }
  }

  /// Uninitialised, of the input's size and type. One buffer serves all reduce-scatters, because fresh memory
  /// costs a page fault every 4 KiB.
  at::Tensor receive_buffer(const at::Tensor& input) {
    int64_t bytes = static_cast<int64_t>(input.nbytes());
    if (!received_.defined() || received_.numel() < bytes) {
      received_.reset();  // first the old one goes
      received_ = at::empty({bytes}, at::kByte);
    }
    return received_.narrow(0, 0, bytes).view(input.scalar_type());
  }

  std::unique_ptr<Group> group_;
  at::Tensor received_;
  std::map<std::string, int> groups_made_;  ///< by prefix in the store
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(const LaunchEnvironment& environment,
                                                     const CommOptions& options) {
  ignore_broken_pipes();
  auto group = std::make_unique<Group>();
  group->rank = environment.rank;
  group->run_size = environment.world_size;
  group->ranks.resize(static_cast<size_t>(environment.world_size));
  std::iota(group->ranks.begin(), group->ranks.end(), 0);
  group->timeout = milliseconds(static_cast<int64_t>(options.timeout_seconds * 1000));
  group->address = environment.single_node()
                       ? std::string("127.0.0.1")
                       : address_towards(environment.master_addr, environment.master_port);
  Store store = join_store(environment, group->timeout);
  group->store = c10::make_intrusive<c10d::PrefixStore>(util::concat("fsdp/", environment.restarts), store);
  try {
    group->prefix = "world";
    group->connect();
  } catch (const std::exception& error) {
    std::string text = error.what();
    util::fail(says_timeout(text) ? ErrorKind::kTimeout : ErrorKind::kPeerLost, "rank ", environment.rank,
               " could not connect to its ", environment.world_size - 1, " peers from address ",
               group->address, ": ", first_line(text),
               " (GLOO_SOCKET_IFNAME chooses another network interface)");
  }
  return std::make_unique<GlooCommunicator>(std::move(group));
}

}  // namespace fsdp::comm
