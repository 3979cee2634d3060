#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/objects/object_store.h"

namespace fsdp::objects {

struct RetryOptions {
  int attempts = 10;
  /// Pause after the first failure. It doubles with each further one, up to `longest_pause`, and is shortened
  /// at random by up to a half, so that many processes do not return at once.
  std::chrono::milliseconds first_pause{200};
  std::chrono::milliseconds longest_pause{10000};
};

/// Repeats the requests of another store and throws Error in place of StoreFault.
class RetryingStore final : public ObjectStore {
 public:
  RetryingStore(std::unique_ptr<ObjectStore> store, RetryOptions options)
      : store_(std::move(store)), options_(options) {}

  std::optional<ObjectInfo> find(const std::string& name) override;
  void read(const std::string& name, const ObjectInfo& object, int64_t offset, int64_t bytes,
            char* out) override;
  void download(const std::string& name, const ObjectInfo& object,
                const std::filesystem::path& file) override;
  std::vector<ListedObject> list(const std::string& folder) override;
  void upload(const std::string& name, const std::filesystem::path& file) override;
  void remove(const std::string& name) override;

 private:
  void attempt(const char* verb, const std::string& name, const std::function<void()>& request) const;

  std::unique_ptr<ObjectStore> store_;
  RetryOptions options_;
};

}  // namespace fsdp::objects
