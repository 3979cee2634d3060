#include "comm/api/group_failure.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <thread>

#include "base/util/hash.h"
#include "base/util/limits.h"
#include "base/util/text.h"

namespace fsdp::comm {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FailureSight, timeout, what, cause, silent)

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPatience{2000};       ///< limit for the reports of other ranks
constexpr milliseconds kStorePatience{500};   ///< limit for the store's first answer, and for its last
constexpr milliseconds kReasonPatience{500};  ///< limit for the report of the rank that closed a connection
constexpr milliseconds kLookAgain{20};

struct Report {
  int rank = 0;  ///< global
  FailureSight sight;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Report, rank, sight)

Report parse_report(const std::vector<uint8_t>& bytes) {
  return nlohmann::json::from_cbor(bytes).get<Report>();
}

/// The reports that have arrived; written by the thread that uses the store.
struct Reports {
  std::mutex mutex;
  std::condition_variable changed;
  bool reported = false, done = false, no_store = false;
  Report first;
  std::map<int, FailureSight> sights;  ///< keys are global ranks

  void add(int rank, FailureSight sight) {
    std::lock_guard lock(mutex);
    sights.emplace(rank, std::move(sight));
  }

  /// Ranks for which a reporting rank waited in vain and that have not reported; ascending.
  std::vector<int> silent() const {
    std::set<int> ranks(first.sight.silent.begin(), first.sight.silent.end());
    for (const auto& [rank, sight] : sights) ranks.insert(sight.silent.begin(), sight.silent.end());
    return without_report({ranks.begin(), ranks.end()});
  }

  std::vector<int> without_report(std::vector<int> ranks) const {
    std::erase_if(ranks, [this](int rank) { return sights.contains(rank); });
    return ranks;
  }
};

/// Publishes this rank's report and collects those of the others.
void exchange_reports(const RunStore& store, const std::string& prefix, const GroupIdentity& group,
                      const FailureSight& own, Reports& reports) {
  const auto key = [&](int rank) { return concat(prefix, "/seen/", rank); };
  const int rank = group.global_rank();
  const std::vector<uint8_t> bytes = nlohmann::json::to_cbor(Report{rank, own});
  const auto reason_due = Clock::now() + kReasonPatience;
  while (own.closed && !store->check({failure_key(prefix)}) && Clock::now() < reason_due) {
    std::this_thread::sleep_for(kLookAgain);
  }
  const Report first = parse_report(store->compareSet(failure_key(prefix), {}, bytes));
  store->set(key(rank), bytes);
  {
    std::lock_guard lock(reports.mutex);
    reports.first = first;
    reports.reported = true;
  }
  reports.changed.notify_all();
  // Only this thread adds reports, so it may read them without the lock.
  const auto deadline = Clock::now() + kPatience;
  const auto all_known = [&] {
    for (int other : reports.without_report(group.ranks)) {
      if (Clock::now() >= deadline) break;
      if (store->check({key(other)})) reports.add(other, parse_report(store->get(key(other))).sight);
    }
    return std::ranges::includes(reports.silent(), reports.without_report(group.ranks));
  };
  while (!all_known() && Clock::now() < deadline) std::this_thread::sleep_for(kLookAgain);
  // Rank 0, whose process may host the store, stays until the others have read the reports.
  const auto read_by = [&](int reader) { return concat(prefix, "/read/", reader); };
  store->set(read_by(rank), std::vector<uint8_t>{});
  if (rank != 0) return;
  std::vector<std::string> readers;
  for (const auto& [reader, sight] : reports.sights) readers.push_back(read_by(reader));
  while (!store->check(readers) && Clock::now() < deadline) std::this_thread::sleep_for(kLookAgain);
}

}  // namespace

std::vector<std::string> texts_of(const std::vector<int>& ranks) {
  std::vector<std::string> texts;
  for (int rank : ranks) texts.push_back(std::to_string(rank));
  return texts;
}

std::string GroupIdentity::key() const {
  constexpr size_t kFew = 16;
  const std::string all = util::join(texts_of(ranks), "-");
  if (ranks.size() <= kFew) return all;
  // The key is part of each of the group's keys in the store.
  return concat(ranks.front(), "-of-", ranks.size(), "-", std::hex, util::hash_of(0, all));
}

std::string GroupIdentity::shown() const {
  if (name.empty()) return "";
  return concat(" (group ", name, ": ranks ", util::name_list(texts_of(ranks)), ")");
}

GroupIdentity GroupIdentity::subgroup(const std::string& its_name, const std::vector<int>& members) const {
  GroupIdentity group;
  group.name = name.empty() ? its_name : concat(name, "/", its_name);
  group.run_size = run_size;
  group.is_broken_off = is_broken_off;
  group.timeout_source = timeout_source;
  for (int member : members) {
    if (member == rank) group.rank = group.size();
    group.ranks.push_back(ranks[static_cast<size_t>(member)]);
  }
  return group;
}

std::string SubgroupKeys::next(const std::string& name, const GroupIdentity& subgroup) {
  const std::string key = concat(key_, "/", name, "/", subgroup.key());
  return concat(key, "/", made_[key]++);
}

GroupIdentity run_identity(const LaunchEnvironment& environment) {
  GroupIdentity group;
  group.rank = environment.rank;
  group.run_size = environment.world_size;
  group.is_broken_off = environment.is_broken_off;
  group.ranks.resize(static_cast<size_t>(environment.world_size));
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

std::string described(const char* op, const CallSite& site) {
  return concat(op, " of ", site.unit, " (", site.pass, ")");
}

void fail_group(const GroupIdentity& group, const std::string& what, const GroupFailure& failure) {
  std::string text =
      concat(what, " failed on rank ", group.global_rank(), " of ", group.run_size, group.shown(), ": ");
  text += failure.timeout
              ? concat("no result within ", failure.timeout_seconds, " s (", group.timeout_source, ")")
              : std::string("a process of the run is gone");
  if (!failure.silent.empty()) {
    text += concat("; ", failure.silent);
  } else if (!failure.silent_ranks.empty()) {
    text += concat("; no answer from rank ", util::name_list(texts_of(failure.silent_ranks)));
  }
  throw GroupError(concat(text, " (", failure.cause, ")"), failure);
}

GroupError::GroupError(const std::string& message, GroupFailure failure)
    : Error(failure.timeout ? ErrorKind::kTimeout : ErrorKind::kPeerLost, message),
      failure_(std::move(failure)) {}

std::string failure_key(const std::string& prefix) { return prefix + "/first"; }

GroupFailure share_failure(const RunStore& store, const std::string& prefix, const GroupIdentity& group,
                           const FailureSight& sight, const std::function<void()>& reported,
                           milliseconds timeout) {
  auto reports = std::make_shared<Reports>();
  reports->first = {group.global_rank(), sight};
  reports->sights.emplace(group.global_rank(), sight);
  // In a separate thread, because a store whose host is stopped may never answer.
  util::start_thread([=] {
    bool no_store = false;
    try {
      exchange_reports(store, prefix, group, sight, *reports);
    } catch (const std::exception&) {
      no_store = true;
    }
    {
      std::lock_guard lock(reports->mutex);
      reports->no_store = no_store;
      reports->done = reports->reported = true;
    }
    reports->changed.notify_all();
  }).detach();
  std::unique_lock lock(reports->mutex);
  const auto wait_for = [&](milliseconds patience, const bool& event) {
    const auto deadline = Clock::now() + patience;
    while (!event && Clock::now() < deadline && !(group.is_broken_off && group.is_broken_off())) {
      reports->changed.wait_for(lock, std::min(patience, kLookAgain), [&] { return event; });
    }
  };
  const milliseconds reason = sight.closed ? kReasonPatience : milliseconds(0);
  wait_for(reason + kStorePatience, reports->reported);
  lock.unlock();
  reported();
  lock.lock();
  wait_for(kPatience + kStorePatience, reports->done);

  const Report& first = reports->first;
  GroupFailure failure{.timeout = first.sight.timeout,
                       .timeout_seconds = std::chrono::duration<double>(timeout).count(),
                       .cause = first.sight.cause};
  if (first.rank != group.global_rank()) {
    failure.cause = concat("rank ", first.rank, " noticed first: ", failure.cause);
  }
  failure.silent_ranks = reports->silent();
  if (!failure.silent_ranks.empty()) return failure;
  if (reports->no_store || !reports->done) {
    failure.silent = "no answer from rank 0, which hosts the store";
    return failure;
  }
  failure.silent_ranks = reports->without_report(group.ranks);
  for (const auto& [rank, other] : reports->sights) {
    if (other.what == sight.what) continue;
    failure.cause += concat("; rank ", rank, " is in another collective, ", other.what);
    break;
  }
  return failure;
}

}  // namespace fsdp::comm
