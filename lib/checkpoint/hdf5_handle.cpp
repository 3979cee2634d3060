#include "checkpoint/hdf5_handle.h"

#include <cerrno>
#include <cstring>

#include "util/limits.h"

namespace fsdp::checkpoint {
namespace {

std::mutex& hdf5_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(hdf5_mutex()) {
  // A file whose close fails, because the disk is full, stays in HDF5's table although it is freed, and the
  // library would touch it again at the end of the process (measured: a segmentation fault). Nothing is left
  // to it to do there, since every file is closed before.
  [[maybe_unused]] static const herr_t kept_from_atexit = H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::string hdf5_cause() {
  std::string cause;
  // Upward: the first entry is the innermost function, where the failure was seen.
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned depth, const H5E_error2_t* entry, void* out) -> herr_t {
        if (depth == 0 && entry->desc) *static_cast<std::string*>(out) = entry->desc;
        return 0;
      },
      &cause);
  H5Eclear2(H5E_DEFAULT);
  // A failed system call is described at length; its reason stands between these marks.
  const std::string mark = "error message = '";
  if (size_t at = cause.find(mark); at != std::string::npos) {
    size_t begin = at + mark.size();
    cause = cause.substr(begin, cause.find('\'', begin) - begin);
  }
  for (char& c : cause) {
    if (c == '\n') c = ' ';
  }
  if (cause.find(std::strerror(EFBIG)) != std::string::npos) cause += util::file_size_limit_text();
  return cause.empty() ? "HDF5 gives no cause" : cause;
}

}  // namespace fsdp::checkpoint
