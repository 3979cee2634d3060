#pragma once

// Wrappers of the C library of HDF5, for shard_file.cpp only: a lock, handles that close themselves, errors
// as exceptions, and the types of data sets.

#include <c10/core/ScalarType.h>
#include <hdf5.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <utility>

#include "base/util/error.h"

namespace fsdp::checkpoint {

/// The process's lock around every use of HDF5. Only some builds of the library are thread-safe; other builds
/// have one error stack for the process. Ranks may be threads. While the lock is held, HDF5 prints nothing.
class Hdf5Lock {
 public:
  Hdf5Lock();

 private:
  std::lock_guard<std::mutex> lock_;
};

/// The cause on HDF5's error stack of this thread, in a few words. Empties the stack.
std::string hdf5_cause();

/// Owns an identifier of HDF5.
class Hdf5Id {
 public:
  using Closer = herr_t (*)(hid_t);
  Hdf5Id(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  Hdf5Id(Hdf5Id&& other) noexcept : id_(std::exchange(other.id_, -1)), closer_(other.closer_) {}
  Hdf5Id& operator=(Hdf5Id&&) = delete;
  ~Hdf5Id() {
    if (id_ >= 0) closer_(id_);
  }
  hid_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }
  /// Closes the identifier now. Negative if HDF5 reports a failure.
  herr_t close() { return closer_(std::exchange(id_, -1)); }

 private:
  hid_t id_;
  Closer closer_;
};

/// Returns a non-negative result. Otherwise throws Error(kind, "cannot <what> <path>: <HDF5's cause>").
template <typename Result>
Result check_hdf5(Result result, ErrorKind kind, const std::string& what, const std::filesystem::path& path) {
  if (result < 0) fail(kind, "cannot ", what, " ", path.string(), ": ", hdf5_cause());
  return result;
}

/// A copy of the HDF5 type in which tensors of `dtype` are stored. Its bytes are those in memory, so that
/// HDF5 never converts. Fails an assertion for dtypes that are never stored. Requires: the lock is held.
Hdf5Id stored_type(c10::ScalarType dtype);

}  // namespace fsdp::checkpoint
