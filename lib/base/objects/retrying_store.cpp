#include "base/objects/retrying_store.h"

#include <algorithm>
#include <random>
#include <thread>

#include "base/objects/object_name.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"

namespace fsdp::objects {
namespace {

using Clock = std::chrono::steady_clock;

const char* credentials_of(const std::string& scheme) {
  if (scheme == "s3") {
    return "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_REGION and "
           "AWS_ENDPOINT_URL where the store needs them";
  }
  if (scheme == "gs") return "set GOOGLE_APPLICATION_CREDENTIALS, or log in with gcloud";
  if (scheme == "hf") return "set HF_TOKEN to a token that may read it, or log in with `hf auth login`";
  return "use an address that needs no login";
}

[[noreturn]] void refuse(const char* verb, const std::string& name, const StoreFault& fault, int attempts,
                         Clock::time_point begin) {
  const std::string what = util::printable(fault.what());
  switch (fault.kind()) {
    case FaultKind::kMissing:
      fail(ErrorKind::kData, "cannot ", verb, " ", name, ": ", what, "; correct the name");
    case FaultKind::kChanged:
      fail(ErrorKind::kData, "cannot ", verb, " ", name, ": ", what,
           "; give each version of an object a name of its own, and start again");
    case FaultKind::kRefused:
      fail(ErrorKind::kIo, "cannot ", verb, " ", name, ": ", what, "; ", credentials_of(scheme_of(name)));
    case FaultKind::kPermanent:
      fail(ErrorKind::kIo, "cannot ", verb, " ", name, ": ", what);
    case FaultKind::kTransient:
      break;
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin).count();
  fail(ErrorKind::kIo, "cannot ", verb, " ", name, ": each of ", attempts, " attempts within ", seconds,
       " s failed, the last one with: ", what, "; check the store and the network, and start again");
}

std::chrono::milliseconds shortened(std::chrono::milliseconds pause) {
  thread_local std::minstd_rand random(std::random_device{}());
  return pause - pause * static_cast<int>(random() % 500) / 1000;
}

}  // namespace

void RetryingStore::attempt(const char* verb, const std::string& name,
                            const std::function<void()>& request) const {
  const auto begin = Clock::now();
  auto pause = options_.first_pause;
  for (int attempt = 1;; ++attempt) {
    try {
      return request();
    } catch (const StoreFault& fault) {
      if (fault.kind() != FaultKind::kTransient || attempt >= options_.attempts) {
        refuse(verb, name, fault, attempt, begin);
      }
      const std::string message = concat("could not ", verb, " ", name, " (", fault.what(), "), attempt ",
                                         attempt, " of ", options_.attempts);
      attempt < 3 ? util::log_debug(message) : util::log_warning(message);
    }
    std::this_thread::sleep_for(shortened(pause));
    pause = std::min(2 * pause, options_.longest_pause);
  }
}

std::optional<ObjectInfo> RetryingStore::find(const std::string& name) {
  std::optional<ObjectInfo> found;
  attempt("find", name, [&] { found = store_->find(name); });
  return found;
}

void RetryingStore::read(const std::string& name, const ObjectInfo& object, int64_t offset, int64_t bytes,
                         char* out) {
  attempt("read", name, [&] { store_->read(name, object, offset, bytes, out); });
}

void RetryingStore::download(const std::string& name, const ObjectInfo& object,
                             const std::filesystem::path& file) {
  attempt("read", name, [&] { store_->download(name, object, file); });
}

std::vector<ListedObject> RetryingStore::list(const std::string& folder) {
  std::vector<ListedObject> listed;
  attempt("list", folder, [&] { listed = store_->list(folder); });
  return listed;
}

void RetryingStore::upload(const std::string& name, const std::filesystem::path& file) {
  attempt("write", name, [&] { store_->upload(name, file); });
}

void RetryingStore::remove(const std::string& name) {
  attempt("remove", name, [&] { store_->remove(name); });
}

}  // namespace fsdp::objects
