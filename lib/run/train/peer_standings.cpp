#include "run/train/peer_standings.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/util/log.h"
#include "base/util/system.h"
#include "run/train/watchdog.h"
#include "tools/launch/wait_table.h"

namespace fsdp::train {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPatience{1000}, kLookAgain{10};
constexpr const char* kShown = "shown";  // the only post that is a text
constexpr size_t kLongestHostBytes = 100;

launch::WorkerEnd end_from(int rank, const nlohmann::json& post) {
  return {.rank = rank,
          .pid = post.value("pid", -1),
          .status = {.exit_code = post.value("exit_code", 0)},
          .host = launch::one_line(post.value("host", ""), kLongestHostBytes),
          .standing = launch::standing_from(post)};
}

}  // namespace

PeerPosts posts_over_mpi(comm::MpiRun& run) {
  return {.rank = run.world().rank,
          .world_size = run.world().size,
          .post = [&run](const std::string& text) { run.post(text); },
          .next = [&run] { return run.next_post(); },
          .has_ended = [&run](int rank) { return run.has_ended(rank); }};
}

PeerStandings::PeerStandings(PeerPosts posts, std::shared_ptr<comm::Activity> activity)
    : posts_(std::move(posts)), activity_(std::move(activity)) {}

void PeerStandings::answer() {
  const std::lock_guard lock(mutex_);
  if (answered_) return;
  take_posts();
  if (first_failed() < posts_.world_size) post(0);
}

void PeerStandings::tell(int exit_code) {
  const std::lock_guard lock(mutex_);
  take_posts();
  post(exit_code);
  const auto wait_until = [this](const auto& condition) {
    const auto deadline = Clock::now() + kPatience;
    while (!shown_ && !condition() && Clock::now() < deadline) {
      std::this_thread::sleep_for(kLookAgain);
      take_posts();
    }
  };
  wait_until([this] { return all_are_known(); });
  if (const int first = first_failed(); first != posts_.rank) {
    return wait_until([this, first] { return posts_.has_ended(first); });
  }
  if (shown_) return;
  util::log_error("state of the ranks:" + table());
  posts_.post(nlohmann::json(kShown).dump());
}

void PeerStandings::post(int exit_code) {
  nlohmann::json post = launch::to_json(standing_of(*activity_));
  post["pid"] = ::getpid();
  post["host"] = util::host_name();
  post["exit_code"] = exit_code;
  ends_[posts_.rank] = end_from(posts_.rank, post);
  answered_ = true;
  posts_.post(post.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void PeerStandings::take_posts() {
  while (const auto posted = posts_.next()) {
    const auto& [rank, text] = *posted;
    const nlohmann::json post = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (post.is_string()) shown_ = true;
    if (post.is_object()) ends_[rank] = end_from(rank, post);
  }
}

bool PeerStandings::all_are_known() const {
  for (int rank = 0; rank < posts_.world_size; ++rank) {
    if (!ends_.contains(rank) && !posts_.has_ended(rank)) return false;
  }
  return true;
}

/// Returns the lowest rank that has failed; world_size if none has.
int PeerStandings::first_failed() const {
  const auto found =
      std::ranges::find_if(ends_, [](const auto& entry) { return entry.second.status.exit_code != 0; });
  return found == ends_.end() ? posts_.world_size : found->first;
}

std::string PeerStandings::table() const {
  std::vector<launch::WorkerEnd> ends;
  for (int rank = 0; rank < posts_.world_size; ++rank) {
    const auto found = ends_.find(rank);
    ends.push_back(found == ends_.end() ? launch::WorkerEnd{.rank = rank, .status = {}} : found->second);
  }
  return launch::wait_table(std::move(ends), {});
}

}  // namespace fsdp::train
