#pragma once

#include <memory>
#include <string>

#include "base/objects/web_store.h"

namespace fsdp::objects {

/// Files of repositories on the Hugging Face hub, by the names of huggingface_hub's HfFileSystem:
/// "hf://OWNER/MODEL[@REVISION]/FILE", "hf://datasets/OWNER/NAME[@REVISION]/FILE". HF_ENDPOINT names another
/// hub. The token is HF_TOKEN's, or that of the file that `hf auth login` writes (HF_TOKEN_PATH, or token in
/// HF_HOME). An object that was found is read from the commit in which it was found.
class HubStore final : public WebStore {
 public:
  explicit HubStore(std::shared_ptr<WebClient> client);

  std::optional<ObjectInfo> find(const std::string& name) override;
  std::vector<ListedObject> list(const std::string& folder) override;

 protected:
  std::string bearer() const override { return token_; }

 private:
  std::string endpoint_, token_;
};

}  // namespace fsdp::objects
