#include "comm/gloo_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "comm/call_within.h"
#include "comm/memory_operations.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/limits.h"
#include "util/text.h"

namespace fsdp::comm {
namespace {

/// The address of this host from which packets to `host` are sent; gloo listens there.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    util::fail(util::ErrorKind::kUsage, "MASTER_ADDR: expected the name or address of a host; \"", host,
               "\" cannot be resolved: ", gai_strerror(code));
  }
  std::string address = "127.0.0.1";
  // Connecting a datagram socket sends nothing; the kernel only looks up the route.
  int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
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

/// What gloo sees of a group's store while it connects the group. Each member sets an entry, "0/RANK" of a few words for each
/// other, and reads those of all, one after the other: here they go up and down a tree, and are read at once.
class MeshStore final : public c10d::Store {
 public:
  MeshStore(RunStore store, int rank, int size)
      : Store(store->getTimeout()), store_(std::move(store)), rank_(rank), size_(size) {}

  using Store::compareSet;
  using Store::set;
  c10::intrusive_ptr<Store> clone() override { return store_->clone(); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    const std::string own = util::concat("/", rank_);
    if (!key.ends_with(own)) return store_->set(key, value);
    const std::string folder = key.substr(0, key.size() - own.size() + 1);
    TextMeeting meeting{.purpose = folder + "mesh", .combine = [](const std::vector<std::string>& texts) {
                          return util::join(texts, "");
                        }};
    for (int rank = 0; rank < size_; ++rank) meeting.ranks.push_back(rank);
    // Each with its length before it, so that they can be joined.
    const uint64_t length = value.size();
    std::string text(sizeof(length), '\0');
    std::memcpy(text.data(), &length, sizeof(length));
    text.append(value.begin(), value.end());
    read_entries(folder, combine_texts(*store_, meeting, rank_, std::move(text)));
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const auto entry = entries_.find(key);
    return entry == entries_.end() ? store_->get(key) : entry->second;
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    if (const auto others = without_entries(keys); !others.empty()) store_->wait(others, timeout);
  }
  bool check(const std::vector<std::string>& keys) override {
    const auto others = without_entries(keys);
    return others.empty() || store_->check(others);
  }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    return store_->compareSet(key, expected, desired);
  }
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }

 private:
  void read_entries(const std::string& folder, const std::string& all) {
    auto from = all.begin();
    for (int rank = 0; rank < size_; ++rank) {
      uint64_t length = 0;
      std::memcpy(&length, &*from, sizeof(length));
      const auto begin = from + sizeof(length);
      from = begin + static_cast<std::ptrdiff_t>(length);
      entries_[util::concat(folder, rank)].assign(begin, from);
    }
  }
  std::vector<std::string> without_entries(std::vector<std::string> keys) const {
    std::erase_if(keys, [this](const std::string& key) { return entries_.contains(key); });
    return keys;
  }

  const RunStore store_;
  const int rank_, size_;
  std::map<std::string, std::vector<uint8_t>> entries_;
};

constexpr const char* kConnected = "all are connected";

/// Connecting ends at different times on the ranks: a rank that ends early and leaves at once would close a
/// connection that a slower rank has not seen yet, where connecting would fail. So every rank waits for all.
void wait_for_all(c10d::Store& store, int rank, int size) {
  if (size == 1) return;
  if (store.add("connected", 1) == size) store.set(kConnected, std::string());
  const std::vector<uint8_t> failure = store.get(kConnected);
  if (!failure.empty()) throw std::runtime_error(std::string(failure.begin(), failure.end()));
  // Rank 0, whose process may host the store, stays until the others have read this.
  if (rank == 0) {
    store.wait({"all know"});
  } else if (store.add("know", 1) == size - 1) {
    store.set("all know", std::string());
  }
}

/// Makes the ranks in wait_for_all() fail at once, with this cause.
void publish_failure(c10d::Store& store, const std::string& cause) {
  try {
    store.compareSet(kConnected, "", "a peer could not connect: " + cause);
  } catch (const std::exception&) {
    // The store is gone, which they notice.
  }
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_members(const GlooPlace& place, const std::string& prefix,
                                                           int rank, int size) {
  auto options = c10d::ProcessGroupGloo::Options::create(place.timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices.push_back(interface != nullptr && *interface != '\0'
                                 ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                 : c10d::ProcessGroupGloo::createDeviceForHostname(place.address));
  auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, place.store);
  try {
    util::make_room_for_files(size, util::concat("rank ", rank, " of a group is to be connected with ",
                                                 size - 1, " others over gloo"));
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<MeshStore>(store, rank, size), rank, size, options);
    wait_for_all(*store, rank, size);
    return group;
  } catch (const std::exception& error) {
    publish_failure(*store, first_line(error.what()));
    throw;
  }
}

/// Turns exceptions of `body` into util::Error.
template <typename Body>
auto translated(const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    const std::string text = first_line(error.what());
    const auto kind = says_timeout(text) ? util::ErrorKind::kTimeout : util::ErrorKind::kPeerLost;
    throw util::Error(kind, text);
  }
}

using util::ErrorKind;

constexpr const char* kBrokenOff = "the launcher has told the ranks to leave this group";
constexpr std::chrono::milliseconds kLookForBreak{10};

/// Of tags; the collectives of c10d have numbers of their own.
constexpr uint64_t kShiftTag = 0, kAllGatherTag = 1, kReduceScatterTag = 2;

/// A view that does not own the memory: a thread of gloo keeps its tensors for some time after wait() has
/// returned, and would keep memory that has been freed by then.
at::Tensor borrowed(const at::Tensor& tensor) {
  FSDP_CHECK(tensor.is_contiguous());
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options());
}

at::Tensor borrowed_bytes(const at::Tensor& tensor) { return borrowed(tensor).view(at::kByte); }

/// Collectives are complete at the call. Tensors travel as bytes where no arithmetic is done on the way,
/// because gloo knows fewer element types than the toolkit.
class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(GlooPlace place, GroupIdentity identity, std::string prefix)
      : place_(std::move(place)), identity_(std::move(identity)), prefix_(std::move(prefix)) {}

  ~GlooCommunicator() override {
    // The destructor of a group with a lost peer may never return; the process is about to end anyway.
    if (failed_) (void)process_group_.release();
  }

  /// Collective over the members.
  void connect() {
    process_group_ = connect_gloo(place_, prefix_, rank(), world_size());
    exchange_ = std::make_unique<GlooExchange>(process_group_, place_.is_broken_off);
  }

  [[noreturn]] void fail(const std::string& description, const std::string& cause) {
    failed_ = true;
    FailureSight sight{.timeout = says_timeout(cause), .what = description, .cause = first_line(cause)};
    sight.closed = !sight.timeout;
    GroupFailure failure = share_failure(place_.store, prefix_, identity_, sight, [] {});
    failure.timeout_seconds = std::chrono::duration<double>(place_.timeout).count();
    fail_group(identity_, description, failure);
  }

  int rank() const override { return identity_.rank; }
  int world_size() const override { return identity_.size(); }
  std::string backend_name() const override { return "gloo"; }

  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const CallSite& site) override {
    FSDP_CHECK(output.numel() == input.numel() * world_size() &&
               output.scalar_type() == input.scalar_type() && input.is_contiguous());
    const at::Tensor flat = output.view({-1});
    const auto part_of = [&](int rank) { return flat.narrow(0, rank * input.numel(), input.numel()); };
    const at::Tensor own = part_of(rank());
    if (own.data_ptr() != input.data_ptr()) std::memmove(own.data_ptr(), input.data_ptr(), own.nbytes());
    transfer("all_gather", site, [&] {
      const int tag = transfer_tag(kAllGatherTag, input);
      exchange_->swap_with_all(rank(), world_size(), tag, part_of, [&](int) { return own; });
    });
    return done_work();
  }

  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CallSite& site) override {
    FSDP_CHECK(input.numel() == output.numel() * world_size() && output.scalar_type() == input.scalar_type());
    // c10d's gloo reduce-scatter is a whole all-reduce; exchanging the parts moves half the bytes.
    const at::Tensor flat = input.view({-1}), received = receive_buffer(output);
    const int64_t numel = output.numel();
    std::vector<at::Tensor> parts;
    for (int other = 0; other < world_size(); ++other) {
      parts.push_back(other == rank() ? flat.narrow(0, other * numel, numel)
                                      : received.narrow(0, (other - (other > rank())) * numel, numel));
    }
    transfer("reduce_scatter", site, [&] {
      exchange_->swap_with_all(
          rank(), world_size(), transfer_tag(kReduceScatterTag, output),
          [&](int other) { return parts[static_cast<size_t>(other)]; },
          [&](int other) { return flat.narrow(0, other * numel, numel); });
    });
    sum_in_rank_order(output.view({-1}), parts);
    return done_work();
  }

  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    at::Tensor wide = sums_in_float(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
    run("all_reduce", site, {wide}, [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{borrowed(wide)};
      c10d::AllreduceOptions options;
      options.reduceOp = op == ReduceOp::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
      return gloo.allreduce(tensors, options);
    });
    if (!wide.is_same(tensor)) tensor.copy_(wide);
    return done_work();
  }

  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    run("broadcast", site, {tensor}, [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{borrowed_bytes(tensor)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return gloo.broadcast(tensors, options);
    });
    return done_work();
  }

  std::unique_ptr<Work> shift(const at::Tensor& output, const at::Tensor& input,
                              const CallSite& site) override {
    check_shift(output, input, site);
    if (input.numel() == 0) return done_work();
    transfer("shift", site, [&] {
      const int tag = transfer_tag(kShiftTag, input);
      Exchange::Transfer received;
      std::exception_ptr lost;
      try {
        received = exchange_->receive(previous_rank(), tag, output);
      } catch (const std::exception&) {
        lost = std::current_exception();  // the next rank waits for this one's tensor all the same
      }
      const Exchange::Transfer sent = exchange_->send(next_rank(), tag, input);
      if (lost) std::rethrow_exception(lost);
      exchange_->wait(received);
      exchange_->wait(sent);
    });
    return done_work();
  }

  void barrier(const CallSite& site) override {
    at::Tensor token = at::empty({1}, at::kFloat).zero_();
    run("barrier", site, {token}, [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{token};
      return gloo.allreduce(tensors);
    });
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return at::empty({numel}, at::TensorOptions().dtype(dtype));
  }

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    // Several groups may have this name, of other ranks or of the same.
    GroupIdentity identity = identity_.subgroup(name, ranks);
    std::string prefix = util::concat(prefix_, "/", name, "/", identity.key());
    prefix += util::concat("/", groups_made_[prefix]++);
    return make_gloo_group(place_, std::move(identity), prefix);
  }

 private:
  /// `tensors`: those that the collective reads and writes.
  template <typename Issue>
  void run(const char* op, const CallSite& site, const std::vector<at::Tensor>& tensors, const Issue& issue) {
    try {
      const c10::intrusive_ptr<c10d::Work> work = issue(*process_group_);
      place_.is_broken_off ? wait_until_broken_off(work, tensors) : static_cast<void>(work->wait());
    } catch (const std::exception& error) {
      fail(described(op, site), error.what());
    }
  }

  template <typename Body>
  void transfer(const char* op, const CallSite& site, const Body& body) {
    try {
      body();
    } catch (const std::exception& error) {
      fail(described(op, site), error.what());
    }
  }

  void wait_until_broken_off(const c10::intrusive_ptr<c10d::Work>& work,
                             const std::vector<at::Tensor>& tensors) {
    while (!work->isCompleted()) {
      try {
        work->wait(kLookForBreak);
      } catch (const std::exception&) {
        if (work->isCompleted() || !place_.is_broken_off()) continue;
        // Nothing ends a collective of gloo before its time-out, until which it uses this memory.
        util::start_thread([group = process_group_, work, tensors]() mutable {
          try {
            work->wait();
          } catch (const std::exception&) {
            // Nobody waits for it any more.
          }
          (void)group.release();
        }).detach();
        throw std::runtime_error(kBrokenOff);
      }
    }
    work->wait();
  }

  /// Uninitialised, for a tensor like `part` of each other rank. All reduce-scatters share one buffer, because
  /// fresh memory costs a page fault per 4 KiB.
  at::Tensor receive_buffer(const at::Tensor& part) {
    const int64_t bytes = (world_size() - 1) * static_cast<int64_t>(part.nbytes());
    if (!received_.defined() || received_.numel() < bytes) {
      received_.reset();  // frees the old buffer first
      received_ = at::empty({bytes}, at::kByte);
    }
    return received_.narrow(0, 0, bytes).view(part.scalar_type());
  }

  const GlooPlace place_;
  const GroupIdentity identity_;
  const std::string prefix_;  ///< in the store, unique to the group
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group_;
  std::unique_ptr<GlooExchange> exchange_;  ///< over the same connections
  bool failed_ = false;
  at::Tensor received_;
  std::map<std::string, int> groups_made_;  ///< by prefix in the store
};

}  // namespace

GlooPlace gloo_place(const LaunchEnvironment& environment, const CommOptions& options, RunStore store) {
  return {.store = std::move(store),
          .address = environment.single_node()
                         ? std::string("127.0.0.1")
                         : address_towards(environment.master_addr, environment.master_port),
          .timeout = options.timeout(),
          .is_broken_off = environment.is_broken_off};
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const GlooPlace& place, const std::string& prefix,
                                                        int rank, int size) {
  // Every wait of connecting has the time-out, except those for answers of the store.
  constexpr std::chrono::seconds kGrace{5};
  auto group =
      call_within(2 * place.timeout + kGrace, [=] { return connect_members(place, prefix, rank, size); });
  if (!group) throw std::runtime_error("timeout: the run's store, at rank 0, does not answer");
  return *group;
}

int transfer_tag(uint64_t seed, const at::Tensor& tensor) {
  uint64_t tag = util::mix64(seed);
  if (tensor.defined()) {
    tag = util::mix64(tag ^ static_cast<uint64_t>(tensor.scalar_type()));
    tag = util::mix64(tag ^ static_cast<uint64_t>(tensor.numel()));
  }
  return static_cast<int>(tag & 0x7fffffff);
}

/// Ends the transfer that is waited for, once the ranks' epoch is broken off: gloo's own waiting has only a time-out, and a
/// host that the network has lost closes no connection.
class GlooExchange::Breaker {
 public:
  explicit Breaker(std::function<bool()> is_broken_off)
      : thread_([this, is_broken_off = std::move(is_broken_off)] { watch(is_broken_off); }) {}
  ~Breaker() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void wait(const Transfer& transfer) {
    bool done = set_waiting(transfer);
    try {
      done = done && transfer->wait();
    } catch (...) {
      set_waiting(nullptr);
      throw;
    }
    set_waiting(nullptr);
    if (!done) throw std::runtime_error(kBrokenOff);
  }

 private:
  bool set_waiting(const Transfer& transfer) {
    const std::lock_guard lock(mutex_);
    waiting_ = transfer;
    return !broken_;
  }

  void watch(const std::function<bool()>& is_broken_off) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLookForBreak, [this] { return over_; })) {
      lock.unlock();
      const bool broken = is_broken_off();
      lock.lock();
      if (!broken) continue;
      broken_ = true;
      if (waiting_) waiting_->abort();
      return;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Transfer waiting_;
  bool over_ = false, broken_ = false;
  std::thread thread_;  ///< last, because it uses the others
};

GlooExchange::GlooExchange(const GlooPlace& place, const std::string& prefix, int rank, int size)
    : GlooExchange(translated([&] { return connect_gloo(place, prefix, rank, size); }), place.is_broken_off) {
}

GlooExchange::GlooExchange(c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group,
                           const std::function<bool()>& is_broken_off)
    : process_group_(std::move(process_group)) {
  if (is_broken_off) breaker_ = std::make_unique<Breaker>(is_broken_off);
}

GlooExchange::~GlooExchange() = default;

GlooExchange::Transfer GlooExchange::send(int to, int tag, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  return translated([&] { return process_group_->send(tensors, to, tag); });
}

GlooExchange::Transfer GlooExchange::receive(int from, int tag, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  return translated([&] { return process_group_->recv(tensors, from, tag); });
}

void GlooExchange::wait(const Transfer& transfer) {
  translated([&] { breaker_ ? breaker_->wait(transfer) : static_cast<void>(transfer->wait()); });
}

// The destructor of the process group does not block: only collectives of c10d have threads.
void GlooExchange::close() { process_group_.reset(); }

std::unique_ptr<Communicator> make_gloo_communicator(const LaunchEnvironment& environment,
                                                     const CommOptions& options, RunStore store) {
  if (!store) store = join_run_store(environment, options.timeout());
  const GlooPlace place = gloo_place(environment, options, std::move(store));
  auto communicator = std::make_unique<GlooCommunicator>(place, run_identity(environment), "world");
  try {
    communicator->connect();
  } catch (const std::exception& error) {
    std::string text = error.what();
    util::fail(says_timeout(text) ? ErrorKind::kTimeout : ErrorKind::kPeerLost, "rank ", environment.rank,
               " could not connect to its ", environment.world_size - 1, " peers from address ",
               place.address, ": ", first_line(text),
               " (GLOO_SOCKET_IFNAME chooses another network interface)");
  }
  return communicator;
}

std::unique_ptr<Communicator> make_gloo_group(const GlooPlace& place, GroupIdentity identity,
                                              const std::string& prefix) {
  auto communicator = std::make_unique<GlooCommunicator>(place, std::move(identity), prefix);
  try {
    communicator->connect();
  } catch (const std::exception& error) {
    communicator->fail("connecting", error.what());
  }
  return communicator;
}

}  // namespace fsdp::comm
