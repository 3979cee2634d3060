#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/stop_signal.h"
#include "base/util/text.h"
#include "comm/mpi/mpi_communicator.h"

namespace fsdp::comm {

using Clock = std::chrono::steady_clock;

/// A wait for other ranks, which ends by the time-out or when a rank is known to be lost.
class MpiGroup::Look {
 public:
  Look(MpiGroup& group, const std::string& what, MpiPause pause)
      : group_(group), what_(what), pause_(pause) {}

  /// Throws Failed if the group has failed. `awaited`: members that are known not to have arrived.
  void again(const std::vector<int>& awaited) {
    pause_();
    const auto now = Clock::now();
    if (now < next_) return;
    constexpr std::chrono::milliseconds kApart{5};
    next_ = now + kApart;
    const auto& [run, store, timeout, most_bytes] = group_.place_;
    const std::vector<int> missing = global(awaited);
    FailureSight sight{.what = what_, .silent = missing};
    if (now > begin_ + timeout) {
      sight.timeout = true;
      sight.cause = missing.empty() ? "the data does not arrive" : who_waits(missing);
      throw Failed{std::move(sight)};
    }
    for (int rank : group_.identity_.ranks) {
      if (!run->has_ended(rank)) continue;
      // Its last messages may have arrived before its end was noticed.
      if (!missing.empty() && std::ranges::find(missing, rank) == missing.end()) continue;
      sight.silent = {rank};
      sight.cause = concat("the process of rank ", rank, " has ended");
      throw Failed{std::move(sight)};
    }
    if (const auto message = group_.library().probe(group_.mpi_, -1, kFailedTag)) {
      sight.closed = true;
      sight.silent.clear();
      sight.cause = concat("rank ", global({message->from})[0], " has failed");
      throw Failed{std::move(sight)};
    }
    if (const auto message = group_.library().probe(group_.mpi_, -1, kLeftTag)) {
      sight.silent = global({message->from});
      sight.cause = concat("the process of rank ", sight.silent[0], " has ended after an error");
      throw Failed{std::move(sight)};
    }
    tell_when_stopped(missing);
  }

 private:
  std::vector<int> global(const std::vector<int>& members) const {
    std::vector<int> ranks;
    for (int member : members) ranks.push_back(group_.identity_.ranks[static_cast<size_t>(member)]);
    return ranks;
  }

  std::string who_waits(const std::vector<int>& missing) const {
    return concat("rank ", group_.identity_.global_rank(), " waits for rank ",
                  util::join(texts_of(missing), ", "));
  }

  /// A launcher of MPI that has seen a rank die on another machine sends SIGTERM, and soon after SIGKILL.
  void tell_when_stopped(const std::vector<int>& missing) {
    constexpr std::chrono::milliseconds kLong{100};
    if (told_ || missing.empty() || Clock::now() < begin_ + kLong || !util::StopSignal::received()) return;
    told_ = true;
    util::log_warning(concat(util::stop_signal_name(*util::StopSignal::received()), " came while ",
                             who_waits(missing), " in ", what_, group_.identity_.shown()));
  }

  MpiGroup& group_;
  const std::string& what_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point next_ = begin_;
  MpiPause pause_;
  bool told_ = false;
};

MpiGroup::MpiGroup(MpiPlace place, GroupIdentity identity, std::string prefix)
    : place_(std::move(place)),
      identity_(std::move(identity)),
      prefix_(std::move(prefix)),
      mpi_(place_.run->world().group) {}

MpiGroup::MpiGroup(MpiGroup& of, const std::vector<int>& members, GroupIdentity identity, std::string prefix)
    : place_(of.place_), identity_(std::move(identity)), prefix_(std::move(prefix)), mpi_(of.mpi_) {
  // The members meet first: in MPI they wait without a time-out, so only for as long as messages take.
  MpiRecord record;
  record.numel = static_cast<int64_t>(members.size());
  std::vector<int> peers = members;
  std::erase(peers, of.identity_.rank);
  const std::string what = concat("connecting", identity_.shown());
  what.copy(record.what, sizeof(record.what) - 1);
  of.guard(what, [&] { of.meet(record, what, peers, kConnectTag); });
  mpi_ = place_.run->make_group(of.mpi_, members, identity_.rank);
}

void MpiGroup::meet(const MpiRecord& record, const std::string& what, const std::vector<int>& peers,
                    int tag) {
  struct Mail {
    MpiRecord mine;
    std::vector<MpiRecord> theirs;
    Requests received, sent;
  };
  auto mail = std::make_unique<Mail>(Mail{record, std::vector<MpiRecord>(peers.size()), {}, {}});
  try {
    for (size_t i = 0; i < peers.size(); ++i) {
      mail->received.push_back(library().receive(mpi_, peers[i], tag, &mail->theirs[i], sizeof(MpiRecord)));
    }
    for (int peer : peers) {
      mail->sent.push_back(library().send(mpi_, peer, tag, &mail->mine, sizeof(MpiRecord)));
    }
    std::vector<int> awaited = peers;
    const auto open_mail = [&] {
      for (size_t i = 0; i < peers.size(); ++i) {
        if (mail->received[i] == nullptr || !library().is_done(mail->received[i])) continue;
        std::erase(awaited, peers[i]);
        if (!mail->theirs[i].same_collective(record)) refuse(mail->theirs[i], peers[i], record, what);
      }
    };
    for (Look look(*this, what, MpiPause());;) {
      open_mail();
      if (awaited.empty()) break;
      try {
        look.again(awaited);
      } catch (const Failed&) {
        open_mail();  // a message that a rank sent before it left is more precise
        throw;
      }
    }
    wait(mail->sent, what);
  } catch (...) {
    (void)mail.release();  // MPI may still write it
    throw;
  }
}

void MpiGroup::refuse(const MpiRecord& other, int peer, const MpiRecord& record, const std::string& what) {
  tell_all(kFailedTag);  // informs ranks that exchange nothing with this rank
  util::fail(ErrorKind::kUnexpected, "rank ", identity_.ranks[static_cast<size_t>(peer)],
             " is in another collective (", other.what, ", ", other.numel,
             " elements) than this rank, which is in ", what, ", ", record.numel, " elements");
}

void MpiGroup::receive(Requests& requests, int from, int tag, char* data, int64_t bytes) const {
  const int64_t most = place_.most_bytes;
  for (int64_t begin = 0; begin < bytes; begin += most) {
    requests.push_back(library().receive(mpi_, from, tag, data + begin, std::min(most, bytes - begin)));
  }
}

void MpiGroup::send(Requests& requests, int to, int tag, const char* data, int64_t bytes) const {
  const int64_t most = place_.most_bytes;
  for (int64_t begin = 0; begin < bytes; begin += most) {
    requests.push_back(library().send(mpi_, to, tag, data + begin, std::min(most, bytes - begin)));
  }
}

void MpiGroup::wait(Requests requests, const std::string& what) {
  // All ranks are here and send. MPI makes progress only inside its calls.
  constexpr int kWithoutPause = 200'000;
  for (Look look(*this, what, MpiPause(kWithoutPause));;) {
    std::erase_if(requests, [&](MpiLibrary::Request& request) { return library().is_done(request); });
    if (requests.empty()) return;
    look.again({});
  }
}

void MpiGroup::fail(const FailureSight& sight) {
  fail_group(identity_, sight.what,
             share_failure(
                 place_.store, prefix_, identity_, sight, [&] { tell_all(kFailedTag); }, place_.timeout));
}

void MpiGroup::tell_all(int tag) {
  failed_ = true;
  place_.run->note_failure();
  place_.run->tell(mpi_, identity_.rank, identity_.size(), tag);
}

void MpiGroup::keep_if_failed(std::vector<at::Tensor> memory) {
  if (failed_) new std::vector<at::Tensor>(std::move(memory));
}

}  // namespace fsdp::comm
