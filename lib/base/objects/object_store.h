#pragma once

// ObjectStore: what the stores of objects have in common. object_store() returns the store of a name.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace fsdp::objects {

/// An object as it was when it was found.
struct ObjectInfo {
  int64_t size_bytes = 0;
  /// Text that differs between versions of the object: its ETag, its generation, or the time of its last
  /// change. Empty: the store reports none.
  std::string version{};
  bool has_ranges = true;  ///< whether parts of the object can be read
  std::string address{};   ///< address of exactly this version, if the store has such
};

struct ListedObject {
  std::string name;  ///< relative to the listed folder: "a/b.json"
  int64_t size_bytes = 0;
};

/// Reason for which a request failed.
enum class FaultKind {
  kTransient,  ///< network, time-out, an answer that was cut, HTTP 429 or 5xx: may succeed when repeated
  kMissing,    ///< no such object or bucket
  kRefused,    ///< credentials are missing or insufficient
  kChanged,    ///< the object is not the one that was found
  kPermanent,  ///< everything else
};

/// Thrown by stores. The text is a part of a sentence and names neither the object nor a secret.
class StoreFault : public std::runtime_error {
 public:
  StoreFault(FaultKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  FaultKind kind() const { return kind_; }

 private:
  FaultKind kind_;
};

/// One kind of store. Names are complete ("s3://bucket/key"). Each method makes requests and waits for them;
/// it throws StoreFault. Thread-safe.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  /// Returns the object; nothing if there is none of that name.
  virtual std::optional<ObjectInfo> find(const std::string& name) = 0;
  /// Reads `bytes` bytes from `offset` on. Requires: the object has them, and has ranges.
  virtual void read(const std::string& name, const ObjectInfo& object, int64_t offset, int64_t bytes,
                    char* out) = 0;
  /// Writes the whole object to a new file.
  virtual void download(const std::string& name, const ObjectInfo& object,
                        const std::filesystem::path& file) = 0;
  /// Returns the objects in a folder and in its subfolders, in no order; empty: there is no such folder.
  virtual std::vector<ListedObject> list(const std::string& folder) = 0;
  /// Creates or replaces an object, which readers see either whole or not at all.
  virtual void upload(const std::string& name, const std::filesystem::path& file) = 0;
  /// Removes an object; does nothing if there is none.
  virtual void remove(const std::string& name) = 0;
};

/// Returns the store of a remote name, which repeats requests that fail transiently and turns faults into
/// Error(kIo), or Error(kData) for objects that are missing or have changed, with the object's name. Loads
/// what the store needs at its first use. Throws Error(kUsage) if that is not installed.
ObjectStore& object_store(const std::string& name);

}  // namespace fsdp::objects
