#include "state/weights/hdf5_handle.h"

#include <bit>
#include <cstring>

#include "base/util/limits.h"

namespace fsdp::checkpoint {

namespace {

std::mutex hdf5_mutex;

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(hdf5_mutex) {
  // A file whose close failed on a full disk stays in HDF5's table after it was freed, and the library's
  // atexit handler touches it again (measured: a segmentation fault). Every file is closed explicitly, so the
  // handler is not needed.
  [[maybe_unused]] static const herr_t kept_from_atexit = H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::string hdf5_cause() {
  std::string cause;
  // Walks upward: the first entry is the innermost function, which saw the failure.
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned depth, const H5E_error2_t* entry, void* out) -> herr_t {
        if (depth == 0 && entry->desc) *static_cast<std::string*>(out) = entry->desc;
        return 0;
      },
      &cause);
  H5Eclear2(H5E_DEFAULT);
  // Marks around the reason in HDF5's long description of a failed system call.
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

namespace {

static_assert(std::endian::native == std::endian::little, "tensors are stored with the byte order of memory");

/// Type of an IEEE-like little-endian float of 16 bits: sign, exponent, mantissa from the highest bit down.
/// h5py reads the type with 5 exponent bits as numpy.float16 and the type with 8 (bfloat16) as numpy.float32.
hid_t small_float(size_t exponent_bits) {
  size_t mantissa_bits = 15 - exponent_bits;
  hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  bool made = type >= 0 && H5Tset_fields(type, 15, mantissa_bits, exponent_bits, 0, mantissa_bits) >= 0 &&
              H5Tset_size(type, 2) >= 0 && H5Tset_ebias(type, (size_t{1} << (exponent_bits - 1)) - 1) >= 0;
  FSDP_CHECK(made, hdf5_cause());
  return type;
}

/// Type of an enumeration that h5py reads as numpy.bool.
hid_t boolean() {
  hid_t type = H5Tenum_create(H5T_STD_I8LE);
  const int8_t no = 0, yes = 1;
  bool made = type >= 0 && H5Tenum_insert(type, "FALSE", &no) >= 0 && H5Tenum_insert(type, "TRUE", &yes) >= 0;
  FSDP_CHECK(made, hdf5_cause());
  return type;
}

hid_t make(c10::ScalarType dtype) {
  using c10::ScalarType;
  if (dtype == ScalarType::BFloat16) return small_float(8);
  if (dtype == ScalarType::Half) return small_float(5);
  if (dtype == ScalarType::Bool) return boolean();
  const std::pair<ScalarType, hid_t> standard[] = {
      {ScalarType::Float, H5T_IEEE_F32LE}, {ScalarType::Double, H5T_IEEE_F64LE},
      {ScalarType::Long, H5T_STD_I64LE},   {ScalarType::Int, H5T_STD_I32LE},
      {ScalarType::Short, H5T_STD_I16LE},  {ScalarType::Char, H5T_STD_I8LE},
      {ScalarType::Byte, H5T_STD_U8LE}};
  for (const auto& [type, stored] : standard) {
    if (type == dtype) return H5Tcopy(stored);
  }
  FSDP_CHECK(false, "tensors of type ", c10::toString(dtype), " are not stored");
}

}  // namespace

Hdf5Id stored_type(c10::ScalarType dtype) { return Hdf5Id(make(dtype), H5Tclose); }

}  // namespace fsdp::checkpoint
