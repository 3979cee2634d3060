#include "data/encode_job.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/utf8.h"
#include "util/error.h"
#include "util/json.h"
#include "util/limits.h"
#include "util/text.h"

namespace fsdp::data {
namespace {

constexpr int kMaxDepth = 64;

[[noreturn]] void refuse(const EncodeJobOptions& options, const TextPart& part, const std::string& found) {
  util::fail(util::ErrorKind::kData, "line ", part.line, " of ", options.files[part.file], " ",
             for_message(found), " where a JSON object with the text \"", options.json_field,
             "\" was expected; correct the line or name the field with `json_field`");
}

/// The document in a line.
std::string document_of(std::string_view line, const EncodeJobOptions& options, const TextPart& part) {
  nlohmann::json object;
  try {
    object = util::parse_json(line, {.deepest_level = kMaxDepth, .unique_keys = false});
  } catch (const util::JsonError& error) {
    refuse(options, part, error.what());
  }
  if (!object.is_object()) refuse(options, part, "is JSON but no object");
  auto field = object.find(options.json_field);
  if (field == object.end()) {
    std::vector<std::string> names;
    for (const auto& item : object.items()) names.push_back("\"" + item.key() + "\"");
    refuse(options, part, names.empty() ? "has no fields" : "has the fields " + util::join(names, ", "));
  }
  if (!field->is_string()) refuse(options, part, "has a " + std::string(field->type_name()));
  return std::move(field->get_ref<std::string&>());
}

}  // namespace

EncodedJob encode_job(TextJob job, const EncodeJobOptions& options) {
  EncodedJob result;
  for (const TextPart& part : job.parts) {
    std::string_view text = std::string_view(job.text).substr(part.begin, part.end - part.begin);
    EncodedJob::Part encoded{.consumed = part.stop, .validation = part.validation};
    if (part.json) {
      std::string document = document_of(text, options, part);
      encoded.validation = options.validation.takes(document);
      options.tokenizer->encode(document, result.ids);
    } else if (part.ends_document) {
      options.tokenizer->encode(text, result.ids);
    } else {
      encoded.consumed = options.tokenizer->encode_some(text, part.stop, result.ids);
    }
    encoded.ids_end = result.ids.size();
    result.parts.push_back(encoded);
  }
  result.job = std::move(job);
  return result;
}

WorkQueue::WorkQueue(int threads) {
  for (int i = 0; threads > 1 && i < threads; ++i) threads_.push_back(util::start_thread([this] { run(); }));
}

WorkQueue::~WorkQueue() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::future<EncodedJob> WorkQueue::add(std::function<EncodedJob()> work) {
  std::packaged_task<EncodedJob()> task(std::move(work));
  std::future<EncodedJob> result = task.get_future();
  if (threads_.empty()) {
    task();
    return result;
  }
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(task));
  }
  changed_.notify_one();
  return result;
}

void WorkQueue::run() {
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    std::packaged_task<EncodedJob()> task = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    task();
  }
}

}  // namespace fsdp::data
