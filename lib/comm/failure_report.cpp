#include "comm/failure_report.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>

#include "util/error.h"
#include "util/limits.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPatience{2000};       ///< for the sights of others
constexpr milliseconds kStorePatience{500};   ///< for the store's first answer, and for its last
constexpr milliseconds kReasonPatience{500};  ///< for the reason of who has closed a connection
constexpr milliseconds kLookAgain{20};

std::string text_of(const FailureSight& sight, int rank) {
  std::ostringstream out;
  out << rank << ' ' << sight.timeout << ' ' << sight.silent.size();
  for (int silent : sight.silent) out << ' ' << silent;
  out << '\n' << sight.what << '\n' << sight.cause;
  return out.str();
}

struct Seen {
  int rank = 0;
  FailureSight sight;
};

Seen parse(const std::vector<uint8_t>& bytes) {
  std::istringstream in(std::string(bytes.begin(), bytes.end()));
  Seen seen;
  size_t count = 0;
  in >> seen.rank >> seen.sight.timeout >> count;
  for (int silent; count > 0 && in >> silent; --count) seen.sight.silent.push_back(silent);
  in.ignore();
  std::getline(in, seen.sight.what);
  std::getline(in, seen.sight.cause);
  return seen;
}

/// What has been learnt so far; written by the thread that talks to the store.
struct Learnt {
  std::mutex mutex;
  std::condition_variable changed;
  bool told = false, done = false, no_store = false;
  Seen first;
  std::map<int, FailureSight> sights;  ///< by rank of the run

  void add(int rank, FailureSight sight) {
    std::lock_guard lock(mutex);
    sights.emplace(rank, std::move(sight));
  }

  std::vector<int> silent() const {
    std::vector<int> ranks;
    const auto add_from = [&](const FailureSight& sight) {
      for (int rank : sight.silent) {
        if (!sights.contains(rank)) ranks.push_back(rank);
      }
    };
    add_from(first.sight);
    for (const auto& [rank, sight] : sights) add_from(sight);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  /// Members that have said nothing.
  std::vector<int> quiet(const std::vector<int>& ranks) const {
    std::vector<int> others;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(others),
                 [this](int rank) { return !sights.contains(rank); });
    return others;
  }
};

void talk(const RunStore& store, const std::string& prefix, const GroupIdentity& group,
          const FailureSight& own, Learnt& learnt) {
  const auto key = [&](int rank) { return util::concat(prefix, "/seen/", rank); };
  const int rank = group.global_rank();
  const std::string text = text_of(own, rank);
  const std::vector<uint8_t> bytes(text.begin(), text.end());
  const auto reason_due = Clock::now() + kReasonPatience;
  while (own.closed && !store->check({failure_key(prefix)}) && Clock::now() < reason_due) {
    std::this_thread::sleep_for(kLookAgain);
  }
  const Seen first = parse(store->compareSet(failure_key(prefix), {}, bytes));
  store->set(key(rank), bytes);
  {
    std::lock_guard lock(learnt.mutex);
    learnt.first = first;
    learnt.told = true;
  }
  learnt.changed.notify_all();
  // Only this thread adds, so it may look without the lock.
  const auto deadline = Clock::now() + kPatience;
  const auto all_known = [&] {
    for (int other : learnt.quiet(group.ranks)) {
      if (store->check({key(other)})) learnt.add(other, parse(store->get(key(other))).sight);
    }
    const std::vector<int> silent = learnt.silent(), quiet = learnt.quiet(group.ranks);
    return std::includes(silent.begin(), silent.end(), quiet.begin(), quiet.end());
  };
  while (!all_known() && Clock::now() < deadline) std::this_thread::sleep_for(kLookAgain);
  // Rank 0, with whose process the store may end, stays until the others have learnt the same.
  const auto read_by = [&](int reader) { return util::concat(prefix, "/read/", reader); };
  store->set(read_by(rank), std::vector<uint8_t>{});
  if (rank != 0) return;
  std::vector<std::string> readers;
  for (const auto& [reader, sight] : learnt.sights) readers.push_back(read_by(reader));
  while (!store->check(readers) && Clock::now() < deadline) std::this_thread::sleep_for(kLookAgain);
}

}  // namespace

std::string failure_key(const std::string& prefix) { return prefix + "/first"; }

GroupFailure share_failure(const RunStore& store, const std::string& prefix, const GroupIdentity& group,
                           const FailureSight& sight, const std::function<void()>& told) {
  auto learnt = std::make_shared<Learnt>();
  learnt->first = {group.global_rank(), sight};
  learnt->sights.emplace(group.global_rank(), sight);
  // In a thread of its own, because a store whose host is stopped may never answer.
  util::start_thread([=] {
    bool no_store = false;
    try {
      talk(store, prefix, group, sight, *learnt);
    } catch (const std::exception&) {
      no_store = true;
    }
    {
      std::lock_guard lock(learnt->mutex);
      learnt->no_store = no_store;
      learnt->done = learnt->told = true;
    }
    learnt->changed.notify_all();
  }).detach();
  std::unique_lock lock(learnt->mutex);
  const milliseconds reason = sight.closed ? kReasonPatience : milliseconds(0);
  learnt->changed.wait_for(lock, reason + kStorePatience, [&] { return learnt->told; });
  lock.unlock();
  told();
  lock.lock();
  learnt->changed.wait_for(lock, kPatience + kStorePatience, [&] { return learnt->done; });

  const Seen& first = learnt->first;
  GroupFailure failure{.timeout = first.sight.timeout, .cause = first.sight.cause};
  if (first.rank != group.global_rank()) {
    failure.cause = util::concat("rank ", first.rank, " has seen first: ", failure.cause);
  }
  failure.silent_ranks = learnt->silent();
  if (!failure.silent_ranks.empty()) return failure;
  if (learnt->no_store || !learnt->done) {
    failure.silent = "no answer from rank 0, which hosts the store";
    return failure;
  }
  failure.silent_ranks = learnt->quiet(group.ranks);
  for (const auto& [rank, seen] : learnt->sights) {
    if (seen.what == sight.what) continue;
    failure.cause += util::concat("; rank ", rank, " is in another collective, ", seen.what);
    break;
  }
  return failure;
}

}  // namespace fsdp::comm
