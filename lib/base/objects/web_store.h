#pragma once

#include <memory>

#include "base/objects/object_store.h"
#include "base/objects/web_client.h"

namespace fsdp::objects {

/// Objects of web servers: "https://HOST/PATH". They can only be read, and not listed.
class WebStore : public ObjectStore {
 public:
  explicit WebStore(std::shared_ptr<WebClient> client) : client_(std::move(client)) {}

  std::optional<ObjectInfo> find(const std::string& name) override;
  void read(const std::string& name, const ObjectInfo& object, int64_t offset, int64_t bytes,
            char* out) override;
  void download(const std::string& name, const ObjectInfo& object,
                const std::filesystem::path& file) override;
  std::vector<ListedObject> list(const std::string& folder) override;
  void upload(const std::string& name, const std::filesystem::path& file) override;
  void remove(const std::string& name) override;

 protected:
  WebClient& client() { return *client_; }
  /// Token to send to the address of an object; "": none.
  virtual std::string bearer() const { return ""; }

 private:
  std::shared_ptr<WebClient> client_;
};

/// Throws the fault of an answer whose status is not a success.
void require_success(const WebAnswer& answer);

/// Version of an answer's object: its ETag, without the mark of weak ones, or its last change.
std::string version_of(const WebAnswer& answer);

}  // namespace fsdp::objects
