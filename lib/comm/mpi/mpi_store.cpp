#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/util/limits.h"
#include "comm/api/run_store.h"
#include "comm/mpi/mpi_run.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using StoredBytes = std::vector<uint8_t>;

struct StoreQuestion {
  std::string op, key{};
  StoredBytes value{}, expected{};
  int64_t number = 0;
  int answer_tag = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StoreQuestion, op, key, value, expected, number, answer_tag)

struct StoreAnswer {
  bool found = false;
  StoredBytes value{};
  int64_t number = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StoreAnswer, found, value, number)

/// Follows c10d: numbers are text, and compareSet() of an absent key sets it if the expected value is empty,
/// and otherwise returns the expected value.
class Entries {
 public:
  StoreAnswer answer(const StoreQuestion& question) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(question.key);
    const bool there = found != entries_.end();
    if (question.op == "get") return {there, there ? found->second : StoredBytes{}};
    if (question.op == "count") return {.number = static_cast<int64_t>(entries_.size())};
    if (question.op == "delete") return {.found = entries_.erase(question.key) > 0};
    if (question.op == "compare") {
      if (there ? found->second == question.expected : question.expected.empty()) {
        return {true, entries_[question.key] = question.value};
      }
      return {there, there ? found->second : question.expected};
    }
    if (question.op == "add") {
      const int64_t before = there ? std::stoll(std::string(found->second.begin(), found->second.end())) : 0;
      const std::string text = std::to_string(before + question.number);
      entries_[question.key] = StoredBytes(text.begin(), text.end());
      return {true, {}, before + question.number};
    }
    entries_[question.key] = question.value;
    return {.found = true};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, StoredBytes> entries_;
};

void wait_for(MpiLibrary& library, MpiLibrary::Request request) {
  for (MpiPause pause; !library.is_done(request);) pause();
}

/// Answers in rank 0's process until it ends.
[[noreturn]] void answer_all(MpiLibrary& library, MpiLibrary::GroupHandle group, Entries& entries) {
  for (MpiPause pause;;) {
    const auto message = library.probe(group, -1, kAskTag);
    if (!message) {
      pause();
      continue;
    }
    pause = MpiPause();
    StoredBytes text(static_cast<size_t>(message->bytes));
    wait_for(library, library.receive(group, message->from, kAskTag, text.data(), message->bytes));
    const StoreQuestion question = nlohmann::json::from_cbor(text).get<StoreQuestion>();
    // The answer is small, so it is sent at once. A rank that has stopped waiting does not keep the others
    // from their answers.
    auto* const answer = new StoredBytes(nlohmann::json::to_cbor(nlohmann::json(entries.answer(question))));
    auto sent = library.send(group, message->from, question.answer_tag, answer->data(),
                             static_cast<int64_t>(answer->size()));
    const auto deadline = Clock::now() + milliseconds(100);
    for (MpiPause sending; !library.is_done(sent) && Clock::now() < deadline;) sending();
    if (sent == nullptr) delete answer;
  }
}

class MpiStore final : public c10d::Store {
 public:
  MpiStore(MpiLibrary& library, MpiLibrary::GroupHandle group, std::shared_ptr<Entries> entries,
           milliseconds timeout)
      : Store(timeout), library_(library), group_(group), entries_(std::move(entries)) {}

  using Store::compareSet;
  using Store::set;
  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<MpiStore>(library_, group_, entries_, timeout_);
  }
  void set(const std::string& key, const StoredBytes& value) override {
    ask({.op = "set", .key = key, .value = value});
  }
  StoredBytes compareSet(const std::string& key, const StoredBytes& expected,
                         const StoredBytes& desired) override {
    return ask({.op = "compare", .key = key, .value = desired, .expected = expected}).value;
  }
  StoredBytes get(const std::string& key) override {
    wait({key});
    return ask({.op = "get", .key = key}).value;
  }
  int64_t add(const std::string& key, int64_t value) override {
    return ask({.op = "add", .key = key, .number = value}).number;
  }
  bool deleteKey(const std::string& key) override { return ask({.op = "delete", .key = key}).found; }
  bool check(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      if (!ask({.op = "get", .key = key}).found) return false;
    }
    return true;
  }
  int64_t getNumKeys() override { return ask({.op = "count"}).number; }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    const auto deadline = Clock::now() + timeout;
    for (const std::string& key : keys) {
      for (MpiPause pause; !ask({.op = "get", .key = key}).found; pause()) {
        if (Clock::now() > deadline) throw std::runtime_error("wait timeout: nobody has set " + key);
      }
    }
  }

 private:
  StoreAnswer ask(StoreQuestion question) {
    if (entries_) return entries_->answer(question);
    // Late answers to abandoned questions are never received: tags differ.
    static std::atomic<int> asked = 0;
    constexpr int kTags = 16384;
    question.answer_tag = kFirstAnswerTag + asked++ % kTags;
    auto* const text = new StoredBytes(nlohmann::json::to_cbor(nlohmann::json(question)));
    auto sent = library_.send(group_, 0, kAskTag, text->data(), static_cast<int64_t>(text->size()));
    const auto deadline = Clock::now() + timeout_;
    std::optional<MpiLibrary::MpiMessage> message;
    for (MpiPause pause; !(message = library_.probe(group_, 0, question.answer_tag)); pause()) {
      if (Clock::now() > deadline) {
        throw std::runtime_error("timeout: the run's store, at rank 0, does not answer");
      }
    }
    wait_for(library_, sent);
    delete text;
    StoredBytes answer(static_cast<size_t>(message->bytes));
    wait_for(library_, library_.receive(group_, 0, question.answer_tag, answer.data(), message->bytes));
    return nlohmann::json::from_cbor(answer).get<StoreAnswer>();
  }

  MpiLibrary& library_;
  const MpiLibrary::GroupHandle group_;
  const std::shared_ptr<Entries> entries_;  ///< at rank 0
};

}  // namespace

RunStore make_mpi_store(MpiLibrary& library, MpiLibrary::GroupHandle group, const MpiLibrary::World& world,
                        milliseconds timeout) {
  static const std::shared_ptr<Entries> entries = [&]() -> std::shared_ptr<Entries> {
    if (world.rank != 0) return nullptr;
    auto kept = std::make_shared<Entries>();
    util::start_thread([&library, group, kept] {
      try {
        answer_all(library, group, *kept);
      } catch (const std::exception&) {
        // MPI has ended, or has failed, which the other ranks notice.
      }
    }).detach();
    return kept;
  }();
  return c10::make_intrusive<MpiStore>(library, group, entries, timeout);
}

}  // namespace fsdp::comm
