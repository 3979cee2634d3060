#pragma once

// CloudLibrary: the clients of Amazon S3 (and the stores that speak its protocol) and Google Cloud Storage,
// which libarrow contains. A separate module (objects/module/cloud_module.cpp) implements it and is loaded at
// the first use, so that programs start without libarrow.

#include <memory>
#include <string>

#include "base/objects/object_store.h"

namespace fsdp::objects {

class CloudLibrary {
 public:
  /// Connects to the store of a scheme, "s3" or "gs", with the credentials of its own tools. Throws
  /// StoreFault.
  virtual std::unique_ptr<ObjectStore> connect(const std::string& scheme) = 0;

 protected:
  ~CloudLibrary() = default;
};

}  // namespace fsdp::objects

/// Functions of the module (base/util/module.h).
extern "C" [[gnu::visibility("default")]] fsdp::objects::CloudLibrary* fsdp_cloud_library();
extern "C" [[gnu::visibility("default")]] const char* fsdp_cloud_built_for();
