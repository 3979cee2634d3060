#include "races.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "report.h"
#include "settings.h"
#include "stream.h"

namespace standin {
namespace {

struct Access {
  const char *begin, *end;
  CUstream_st* stream;
  long number;  ///< in its stream
  bool writes;
  const char* who;
};

struct Search {
  std::vector<Access> accesses;  ///< that a later one may race with
  std::map<CUstream_st*, StreamClock> clocks;
  StreamClock host;
};

Search& search() {
  static auto* search = new Search;
  return *search;
}

/// The same text, which lasts.
const char* kept(const char* name) {
  static auto* names = new std::set<std::string>;
  return names->insert(name).first->c_str();
}

void merge(StreamClock& into, const StreamClock& from) {
  for (const auto& [stream, number] : from) {
    long& known = into[stream];
    known = std::max(known, number);
  }
}

/// c10d's watchdog queries events all the time, but tells nobody before a collective has failed.
bool is_watchdog() {
  static thread_local const bool watchdog = [] {
    char name[32] = "";
    ::pthread_getname_np(::pthread_self(), name, sizeof(name));
    return std::strncmp(name, "pt_nccl", 7) == 0;
  }();
  return watchdog;
}

std::string words(const char* who, bool writes) { return std::string(who) + (writes ? " writes" : " reads"); }

}  // namespace

void access(const char* who, CUstream_st* stream, const Range& range) {
  if (!settings().races || stream == nullptr || stream->capture || range.bytes == 0) return;
  Lock lock(mutex());
  StreamClock& clock = search().clocks[stream];
  merge(clock, search().host);
  const char* const begin = static_cast<const char*>(range.data);
  const char* const end = begin + range.bytes;
  std::vector<Access> still;
  for (const Access& other : search().accesses) {
    const bool is_over = other.stream == stream || clock[other.stream] >= other.number;
    if (other.begin < end && begin < other.end) {
      if ((other.writes || range.writes) && !is_over) {
        violation("race: " + words(who, range.writes) + " what " + words(other.who, other.writes) +
                  " in another stream, and nothing orders the two");
      }
      // Whatever races with an access that this one covers races with this one too.
      const bool covered = other.begin >= begin && other.end <= end;
      if (covered && is_over && (range.writes || (!other.writes && other.stream == stream))) continue;
    }
    still.push_back(other);
  }
  still.push_back({begin, end, stream, ++clock[stream], range.writes, kept(who)});
  search().accesses.swap(still);
  STANDIN_COUNT("accesses looked at for races");
}

StreamClock known_to(CUstream_st* stream) {
  if (!settings().races) return {};
  Lock lock(mutex());
  merge(search().clocks[stream], search().host);
  return search().clocks[stream];
}

void stream_waits(CUstream_st* stream, const StreamClock& known) {
  if (!settings().races) return;
  Lock lock(mutex());
  merge(search().clocks[stream], known);
}

void host_knows(const StreamClock& known) {
  if (!settings().races || is_watchdog()) return;
  Lock lock(mutex());
  merge(search().host, known);
}

void host_waited_for(CUstream_st* stream) {
  if (settings().races) host_knows(known_to(stream));
}

}  // namespace standin
