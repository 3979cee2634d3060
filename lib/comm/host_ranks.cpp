#include "comm/host_ranks.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "util/error.h"

namespace fsdp::comm {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostIdentity, boot_id, pid_namespace, network_namespace)

namespace {

constexpr size_t kPosts = 64;  ///< groups that one rank may be making at the same time

/// What a rank sends to the others before they share memory.
struct Offer {
  std::string obstacle;  ///< why it cannot share memory; empty: it can
  HostIdentity identity;
  pid_t pid = 0;
  int fd = -1;
  int64_t bytes = 0;
  uint64_t sign = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Offer, obstacle, identity, pid, fd, bytes, sign)

int64_t default_segment_bytes(int ranks) {
  const int64_t memory = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE);
  const int64_t address_space = int64_t{64} << 40;  // half of the address space of a process
  const int64_t bytes = std::min(2 * memory, address_space / ranks);
  return std::max(bytes, 2 * SharedSegment::kControlBytes) >> 21 << 21;
}

std::string first_obstacle(const std::vector<Offer>& offers) {
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    if (!offers[rank].obstacle.empty()) return util::concat("on rank ", rank, " ", offers[rank].obstacle);
  }
  return "";
}

std::vector<int> hosts_of(const std::vector<Offer>& offers) {
  std::vector<HostIdentity> known;
  std::vector<int> hosts;
  for (const Offer& offer : offers) {
    const auto found = std::ranges::find(known, offer.identity);
    hosts.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(offer.identity);
  }
  return hosts;
}

/// Why the first rank that is not on rank 0's host is apart; empty if all are on one host.
std::string difference(const std::vector<Offer>& offers) {
  const HostIdentity& first = offers[0].identity;
  for (size_t rank = 1; rank < offers.size(); ++rank) {
    const HostIdentity& other = offers[rank].identity;
    if (other == first) continue;
    const char* apart = "in containers with separate networks";
    if (other.boot_id != first.boot_id) {
      apart = "on different hosts";
    } else if (other.pid_namespace != first.pid_namespace) {
      apart = "in different containers and cannot see each other's processes";
    }
    return util::concat("ranks 0 and ", rank, " are ", apart);
  }
  return "";
}

/// The target of a link in /proc/self/ns.
std::string namespace_of(const char* path) {
  char text[64];
  const ssize_t length = ::readlink(path, text, sizeof(text));
  return length > 0 ? std::string(text, static_cast<size_t>(length)) : std::string();
}

}  // namespace

HostIdentity HostIdentity::read() {
  HostIdentity identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity.boot_id;
  identity.pid_namespace = namespace_of("/proc/self/ns/pid");
  identity.network_namespace = namespace_of("/proc/self/ns/net");
  return identity;
}

/// At the beginning of each segment, in the control part.
struct HostRanks::Board {
  struct Post {
    std::atomic<uint64_t> key;
    std::atomic<int64_t> offset;
  };

  std::atomic<uint64_t> sign;
  std::atomic<uint32_t> closed;
  std::atomic<uint32_t> changes;
  Post posts[kPosts];
};

HostRanks::Meeting HostRanks::meet(const LaunchEnvironment& environment, RunStore& store,
                                   const Options& options) {
  std::shared_ptr<HostRanks> ranks(new HostRanks);
  ranks->rank_ = environment.rank;
  Offer own;
  own.identity = options.identity;
  own.pid = ::getpid();
  if (own.identity.boot_id.empty() || own.identity.pid_namespace.empty()) {
    own.obstacle = "/proc does not show the host's boot id and the process's namespace";
  }
  std::shared_ptr<SharedSegment> segment;
  try {
    const int64_t bytes = options.segment_bytes > 0 ? options.segment_bytes
                                                    : default_segment_bytes(environment.local_world_size);
    static_assert(sizeof(Board) <= 4096, "a page holds it");
    segment = SharedSegment::create(bytes);
    own.fd = segment->fd();
    own.bytes = segment->size();
    own.sign = segment->sign();
  } catch (const std::runtime_error& error) {
    own.obstacle = error.what();
  }
  std::vector<Offer> offers;
  std::string text;
  nlohmann::json::to_cbor(own, text);
  for (const std::string& offer : exchange_texts(store, environment, "shm/offer", text)) {
    offers.push_back(nlohmann::json::from_cbor(offer).get<Offer>());
  }
  std::string obstacle = first_obstacle(offers);
  const std::string apart = difference(offers);
  if (!obstacle.empty()) return {nullptr, obstacle, apart};
  ranks->hosts_ = hosts_of(offers);

  // Whole or not at all in `ranks`, which may be destroyed by an exception.
  std::vector<std::shared_ptr<SharedSegment>> segments;
  try {
    for (int rank = 0; rank < environment.world_size; ++rank) {
      const Offer& offer = offers[static_cast<size_t>(rank)];
      if (ranks->hosts_[static_cast<size_t>(rank)] != ranks->hosts_[static_cast<size_t>(environment.rank)]) {
        ranks->pid_fds_.push_back(-1);
        segments.emplace_back();
        continue;
      }
      // The process is watched before its memory is opened, so its number cannot belong to another one by then.
      const int pid_fd =
          offer.pid == own.pid ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, offer.pid, 0));
      ranks->pid_fds_.push_back(pid_fd);
      if (pid_fd < 0 && offer.pid != own.pid) {
        throw std::runtime_error(
            util::concat("process ", offer.pid, " cannot be watched: ", util::errno_text(errno)));
      }
      segments.push_back(rank == environment.rank
                             ? segment
                             : SharedSegment::open(offer.pid, offer.fd, offer.bytes, offer.sign));
    }
    ranks->segments_ = std::move(segments);
  } catch (const std::runtime_error& error) {
    obstacle = error.what();
  }
  const auto outcomes = exchange_texts(store, environment, "shm/outcome", obstacle);
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (!outcomes[rank].empty()) {
      return {nullptr, util::concat("on rank ", rank, " ", outcomes[rank]), apart};
    }
  }
  return {ranks, "", apart};
}

HostRanks::~HostRanks() {
  for (int fd : pid_fds_) {
    if (fd >= 0) ::close(fd);
  }
  if (segments_.empty()) return;
  own()->keep_memory();  // others may still read retired blocks
  Board& mine = board(rank_);
  mine.closed.store(1);
  mine.changes.fetch_add(1);
  futex_wake_all(mine.changes);
}

int HostRanks::host_size() const {
  return static_cast<int>(std::ranges::count(hosts_, hosts_[static_cast<size_t>(rank_)]));
}

HostRanks::Board& HostRanks::board(int rank) const { return *reinterpret_cast<Board*>(of(rank).data()); }

bool HostRanks::present(int rank) const {
  if (rank == rank_) return true;
  if (board(rank).closed.load() != 0) return false;
  const int fd = pid_fds_[static_cast<size_t>(rank)];
  if (fd < 0) return true;  // a thread of this process
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) <= 0;
}

void HostRanks::post(uint64_t key, int64_t offset) {
  {
    std::lock_guard lock(mutex_);
    Board& mine = board(rank_);
    auto free =
        std::ranges::find_if(mine.posts, [](const Board::Post& post) { return post.key.load() == 0; });
    FSDP_CHECK(free != std::end(mine.posts), "too many groups are being made at once");
    free->offset.store(offset);
    free->key.store(key);
    mine.changes.fetch_add(1);
  }
  futex_wake_all(posts(rank_));
}

int64_t HostRanks::posted(int maker, uint64_t key) const {
  for (const Board::Post& post : board(maker).posts) {
    if (post.key.load() == key) return post.offset.load();
  }
  return -1;
}

void HostRanks::take_down(uint64_t key) {
  std::lock_guard lock(mutex_);
  for (Board::Post& post : board(rank_).posts) {
    if (post.key.load() == key) post.key.store(0);
  }
}

std::atomic<uint32_t>& HostRanks::posts(int maker) const { return board(maker).changes; }

void HostRanks::keep_until_unused(Retired retired) {
  std::lock_guard lock(mutex_);
  std::erase_if(retired_, [](const Retired& kept) { return kept.done(); });
  if (!retired.done()) retired_.push_back(std::move(retired));
}

std::string HostLayout::odd_one() const {
  if (members.size() == 1) return "all ranks are on one host";
  const size_t each = members.front().size();
  for (const std::vector<int>& ranks : members) {
    if (ranks.size() == each) continue;
    return util::concat("hosts have different numbers of ranks: the host of rank ", members.front().front(),
                        " has ", each, ", the host of rank ", ranks.front(), " has ", ranks.size());
  }
  return each == 1 ? "every rank has a host to itself" : "";
}

HostLayout host_layout(const std::vector<int>& hosts, const std::vector<int>& ranks) {
  HostLayout layout;
  std::map<int, size_t> place;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int host = hosts[static_cast<size_t>(ranks[rank])];
    const auto [found, first] = place.try_emplace(host, layout.members.size());
    if (first) layout.members.emplace_back();
    layout.members[found->second].push_back(static_cast<int>(rank));
  }
  return layout;
}

std::string shared_gpu(const std::vector<std::string>& gpus) {
  std::map<std::string, size_t> first_ranks;
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    const auto [first, is_new] = first_ranks.try_emplace(gpus[rank], rank);
    const std::string bus_id = gpus[rank].substr(gpus[rank].rfind(' ') + 1);
    if (is_new || bus_id.empty()) continue;
    return util::concat("ranks ", first->second, " and ", rank, " share a GPU (", bus_id, ")");
  }
  return "";
}

}  // namespace fsdp::comm
