#include "comm/shm/host_ranks.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/util/error.h"

namespace fsdp::comm {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostIdentity, boot_id, pid_namespace, network_namespace)

namespace {

constexpr size_t kPosts = 64;  ///< groups that one rank may be making at the same time

/// Data with which the other ranks of a host open a rank's memory.
struct Offer {
  pid_t pid = 0;
  int fd = -1;
  int64_t bytes = 0;
  uint64_t sign = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Offer, pid, fd, bytes, sign)

/// The roll of some consecutive ranks, and finally of all.
struct RollText {
  std::string apart{}, obstacle{};
  std::vector<HostIdentity> identities{};  ///< identities of the hosts; empty in the final roll
  std::vector<int> runs{};                 ///< runs_of() the ranks' hosts
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RollText, apart, obstacle, identities, runs)

template <typename Value>
std::string cbor_of(const Value& value) {
  std::string text;
  nlohmann::json::to_cbor(nlohmann::json(value), text);
  return text;
}

int64_t default_segment_bytes(int ranks) {
  const int64_t memory = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE);
  const int64_t address_space = int64_t{64} << 40;  // half of the address space of a process
  const int64_t bytes = std::min(2 * memory, address_space / ranks);
  return std::max(bytes, 2 * SharedSegment::kControlBytes) >> 21 << 21;
}

/// The hosts of ranks in a form that is short where hosts have consecutive ranks, the same number each. Three
/// numbers (host, hosts, ranks) stand for `ranks` ranks on each of `hosts` consecutive hosts from `host` on.
std::vector<int> runs_of(const std::vector<int>& hosts) {
  std::vector<int> runs;
  for (size_t i = 0, next = 0; i < hosts.size(); i = next) {
    for (next = i + 1; next < hosts.size() && hosts[next] == hosts[i];) ++next;
    const int ranks = static_cast<int>(next - i);
    int* const last = runs.empty() ? nullptr : &runs.back() - 2;
    if (last != nullptr && last[0] + last[1] == hosts[i] && last[2] == ranks) {
      ++last[1];
    } else {
      runs.insert(runs.end(), {hosts[i], 1, ranks});
    }
  }
  return runs;
}

std::vector<int> hosts_of(const std::vector<int>& runs) {
  std::vector<int> hosts;
  for (size_t i = 0; i + 2 < runs.size(); i += 3) {
    for (int host = runs[i]; host < runs[i] + runs[i + 1]; ++host) {
      hosts.insert(hosts.end(), static_cast<size_t>(runs[i + 2]), host);
    }
  }
  return hosts;
}

/// Why the first rank that is not on rank 0's host is apart; empty if all are on one host.
std::string difference(const std::vector<HostIdentity>& identities, const std::vector<int>& hosts) {
  if (identities.size() == 1) return "";
  const HostIdentity &first = identities[0], &other = identities[1];
  const char* apart = "in containers with separate networks";
  if (other.boot_id != first.boot_id) {
    apart = "on different hosts";
  } else if (other.pid_namespace != first.pid_namespace) {
    apart = "in different containers and cannot see each other's processes";
  }
  return concat("ranks 0 and ", std::ranges::find(hosts, 1) - hosts.begin(), " are ", apart);
}

std::string combined_roll(const std::vector<std::string>& texts, int world_size) {
  RollText all;
  std::vector<int> hosts;
  std::map<HostIdentity, int> numbers;
  for (const std::string& text : texts) {
    const auto part = nlohmann::json::from_cbor(text).get<RollText>();
    if (all.obstacle.empty()) all.obstacle = part.obstacle;
    std::vector<int> own;  // the numbers of the part's hosts among all
    for (const HostIdentity& identity : part.identities) {
      const auto [number, is_new] = numbers.try_emplace(identity, static_cast<int>(numbers.size()));
      if (is_new) all.identities.push_back(identity);
      own.push_back(number->second);
    }
    for (int host : hosts_of(part.runs)) hosts.push_back(own[static_cast<size_t>(host)]);
  }
  all.runs = runs_of(hosts);
  if (static_cast<int>(hosts.size()) == world_size) {
    all.apart = difference(all.identities, hosts);
    all.identities.clear();
  }
  return cbor_of(all);
}

/// The offers of the ranks of this host, `here`.
std::vector<Offer> exchange_offers(const LaunchEnvironment& environment, RunStore& store,
                                   const std::vector<int>& here, const Offer& own) {
  const auto combine = [](const std::vector<std::string>& texts) {
    std::vector<Offer> all;
    for (const std::string& text : texts) {
      for (const Offer& offer : nlohmann::json::from_cbor(text).get<std::vector<Offer>>())
        all.push_back(offer);
    }
    return cbor_of(all);
  };
  const std::string all =
      combine_texts(store, environment, {.purpose = "shm/offers", .combine = combine, .ranks = here},
                    cbor_of(std::vector<Offer>{own}));
  return nlohmann::json::from_cbor(all).get<std::vector<Offer>>();
}

}  // namespace

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

HostRoll call_the_roll(const LaunchEnvironment& environment, RunStore& store, const HostIdentity& identity,
                       const std::string& obstacle) {
  RollText own{.identities = {identity}, .runs = {0, 1, 1}};
  if (!obstacle.empty()) own.obstacle = concat("on rank ", environment.rank, " ", obstacle);
  const TextMeeting meeting{
      .purpose = "shm/hosts",
      .combine = [world_size = environment.world_size](const std::vector<std::string>& texts) {
        return combined_roll(texts, world_size);
      }};
  const std::string text = combine_texts(store, environment, meeting, cbor_of(own));
  const auto all = nlohmann::json::from_cbor(text).get<RollText>();
  return {.hosts = hosts_of(all.runs), .apart = all.apart, .obstacle = all.obstacle};
}

HostRanks::Meeting HostRanks::meet(const LaunchEnvironment& environment, RunStore& store,
                                   const Options& options) {
  return at_the_store(
      store, environment, static_cast<size_t>(environment.world_size) - 1,
      [environment, store, options]() mutable { return meet_here(environment, store, options); });
}

HostRanks::Meeting HostRanks::meet_here(const LaunchEnvironment& environment, RunStore& store,
                                        const Options& options) {
  std::shared_ptr<HostRanks> ranks(new HostRanks);
  ranks->rank_ = environment.rank;
  Offer own{.pid = ::getpid()};
  std::string obstacle;
  if (options.identity.boot_id.empty() || options.identity.pid_namespace.empty()) {
    obstacle = "/proc does not show the host's boot id and the process's namespace";
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
    obstacle = error.what();
  }
  HostRoll roll = call_the_roll(environment, store, options.identity, obstacle);
  if (!roll.obstacle.empty()) return {nullptr, roll.obstacle, roll.apart};
  const int host = roll.hosts[static_cast<size_t>(environment.rank)];
  std::vector<int> here;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    if (roll.hosts[static_cast<size_t>(rank)] == host) here.push_back(rank);
  }
  ranks->hosts_ = std::move(roll.hosts);
  const std::vector<Offer> offers = exchange_offers(environment, store, here, own);

  // Set in `ranks` only when complete: an exception may destroy it before.
  std::vector<std::shared_ptr<SharedSegment>> segments(ranks->hosts_.size());
  ranks->pid_fds_.assign(ranks->hosts_.size(), -1);
  try {
    for (size_t i = 0; i < here.size(); ++i) {
      const Offer& offer = offers[i];
      const auto rank = static_cast<size_t>(here[i]);
      // The process is watched before its memory is opened, so its number cannot belong to another process by
      // then.
      const int pid_fd =
          offer.pid == own.pid ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, offer.pid, 0));
      ranks->pid_fds_[rank] = pid_fd;
      if (pid_fd < 0 && offer.pid != own.pid) {
        throw std::runtime_error(
            concat("process ", offer.pid, " cannot be watched: ", util::errno_text(errno)));
      }
      segments[rank] = here[i] == environment.rank
                           ? segment
                           : SharedSegment::open(offer.pid, offer.fd, offer.bytes, offer.sign);
    }
    ranks->segments_ = std::move(segments);
  } catch (const std::runtime_error& error) {
    obstacle = concat("on rank ", environment.rank, " ", error.what());
  }
  const auto first = [](const std::vector<std::string>& texts) {
    const auto found = std::ranges::find_if(texts, [](const std::string& text) { return !text.empty(); });
    return found == texts.end() ? std::string() : *found;
  };
  obstacle = combine_texts(store, environment, {.purpose = "shm/outcome", .combine = first}, obstacle);
  if (!obstacle.empty()) return {nullptr, obstacle, roll.apart};
  return {ranks, "", roll.apart};
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

bool HostLayout::shares_hosts() const {
  return std::ranges::any_of(members, [](const std::vector<int>& ranks) { return ranks.size() > 1; });
}

std::string HostLayout::odd_one() const {
  if (members.size() == 1) return "all ranks are on one host";
  const size_t each = members.front().size();
  for (const std::vector<int>& ranks : members) {
    if (ranks.size() == each) continue;
    return concat("hosts have different numbers of ranks: the host of rank ", members.front().front(),
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
    return concat("ranks ", first->second, " and ", rank, " share a GPU (", bus_id, ")");
  }
  return "";
}

}  // namespace fsdp::comm
