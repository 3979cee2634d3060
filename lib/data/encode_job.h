#pragma once

// What a thread does with a job of text_jobs.h, and how several share the work.

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/text_jobs.h"
#include "data/tokenizer.h"

namespace fsdp::data {

struct EncodedJob {
  struct Part {
    size_t ids_end = 0;   ///< its ids end here in `ids`
    size_t consumed = 0;  ///< bytes of the part that they are of
    bool validation = false;
  };
  TextJob job;
  std::vector<int64_t> ids;
  std::vector<Part> parts;  ///< of job.parts
};

struct EncodeJobOptions {
  const Tokenizer* tokenizer = nullptr;
  std::string json_field;
  ValidationShare validation;
  std::vector<std::string> files;  ///< names for messages
};

/// Throws Error(kData) for a line that is no JSON object with the text field.
EncodedJob encode_job(TextJob job, const EncodeJobOptions& options);

/// Threads that run what they are given in the order given. With one thread it is run by the caller.
class WorkQueue {
 public:
  explicit WorkQueue(int threads);
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  std::future<EncodedJob> add(std::function<EncodedJob()> work);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<EncodedJob()>> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fsdp::data
