#include "state/weights/shard_file.h"

#include <map>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "state/manifest/manifest.h"
#include "state/weights/hdf5_handle.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;

DatasetSpec description_spec(const std::string& description) {
  return {kDescriptionName, c10::kByte, static_cast<int64_t>(description.size())};
}

namespace {

Hdf5Id file_access(const fs::path& path) {
  Hdf5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // Gives superblock and object headers checksums. HDF5 1.10 and newer can read the file.
  bool set = access.valid() && H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0 &&
             // Closing the file closes its objects too, so that no error leaves it open.
             H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG) >= 0 &&
             // Small data sets are written at once: a full disk fails the write, not the close.
             H5Pset_sieve_buf_size(access.get(), 0) >= 0 &&
             // Files are never changed in place, and locks fail on some network file systems.
             H5Pset_file_locking(access.get(), false, true) >= 0;
  if (!set) fail(ErrorKind::kUnexpected, "cannot prepare HDF5 for ", path.string(), ": ", hdf5_cause());
  return access;
}

void create_dataset(hid_t file, const DatasetSpec& spec, const fs::path& path) {
  FSDP_CHECK(spec.numel > 0, spec.name);
  const std::string what = concat("write the tensor ", spec.name, " to");
  auto checked = [&](auto result) { return check_hdf5(result, ErrorKind::kIo, what, path); };

  Hdf5Id type = stored_type(spec.dtype);
  auto total = static_cast<hsize_t>(spec.numel);
  Hdf5Id space(checked(H5Screate_simple(1, &total, nullptr)), H5Sclose);
  Hdf5Id links(checked(H5Pcreate(H5P_LINK_CREATE)), H5Pclose);
  checked(H5Pset_create_intermediate_group(links.get(), 1));
  Hdf5Id creation(checked(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
  checked(H5Pset_layout(creation.get(), H5D_CONTIGUOUS));
  checked(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER));
  Hdf5Id set(checked(H5Dcreate2(file, spec.name.c_str(), type.get(), space.get(), links.get(), creation.get(),
                                H5P_DEFAULT)),
             H5Dclose);
  checked(set.close());
}

}  // namespace

struct ShardFileWriter::Impl {
  fs::path path;
  std::map<std::string, DatasetSpec> datasets;
  Hdf5Id file;
};

ShardFileWriter::ShardFileWriter(fs::path path, std::vector<DatasetSpec> datasets) {
  Hdf5Lock lock;
  Hdf5Id access = file_access(path);
  Hdf5Id file(check_hdf5(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get()), ErrorKind::kIo,
                         "create", path),
              H5Fclose);
  auto impl = std::make_unique<Impl>(Impl{std::move(path), {}, std::move(file)});
  for (DatasetSpec& spec : datasets) {
    create_dataset(impl->file.get(), spec, impl->path);
    impl->datasets.emplace(spec.name, std::move(spec));
  }
  impl_ = std::move(impl);  // an error before this line closes the file under the lock
}

ShardFileWriter::~ShardFileWriter() {
  Hdf5Lock lock;
  impl_.reset();
}

void ShardFileWriter::write(const std::string& name, int64_t offset, int64_t count, const void* data) {
  const DatasetSpec& spec = impl_->datasets.at(name);
  FSDP_CHECK(offset >= 0 && count > 0 && offset <= spec.numel - count, name);
  const std::string what = concat("write the tensor ", name, " to");
  auto checked = [&](auto result) { return check_hdf5(result, ErrorKind::kIo, what, impl_->path); };
  Hdf5Lock lock;
  Hdf5Id set(checked(H5Dopen2(impl_->file.get(), name.c_str(), H5P_DEFAULT)), H5Dclose);
  Hdf5Id type = stored_type(spec.dtype);
  Hdf5Id space(checked(H5Dget_space(set.get())), H5Sclose);
  auto start = static_cast<hsize_t>(offset);
  auto elements = static_cast<hsize_t>(count);
  checked(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &elements, nullptr));
  Hdf5Id memory(checked(H5Screate_simple(1, &elements, nullptr)), H5Sclose);
  checked(H5Dwrite(set.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, data));
  checked(set.close());
}

void ShardFileWriter::finish() {
  {
    Hdf5Lock lock;
    check_hdf5(H5Fflush(impl_->file.get(), H5F_SCOPE_GLOBAL), ErrorKind::kIo, "flush", impl_->path);
    check_hdf5(impl_->file.close(), ErrorKind::kIo, "close", impl_->path);
  }
  // On a full disk HDF5 may report success without having written metadata (measured), so it is read back.
  try {
    ShardFile written(impl_->path);
    for (const auto& [name, spec] : impl_->datasets) written.check(spec);
  } catch (const util::Error& error) {
    fail(ErrorKind::kIo, "a shard cannot be read back right after it was written: ", error.what());
  }
}

struct ShardFile::Impl {
  fs::path path;
  Hdf5Id file;
  int64_t size_bytes;
};

ShardFile::ShardFile(const fs::path& path) {
  Hdf5Lock lock;
  Hdf5Id access = file_access(path);
  Hdf5Id file(check_hdf5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), ErrorKind::kCheckpoint,
                         "open the checkpoint shard", path),
              H5Fclose);
  hsize_t size = 0;
  check_hdf5(H5Fget_filesize(file.get(), &size), ErrorKind::kCheckpoint, "read the checkpoint shard", path);
  impl_ = std::make_unique<Impl>(Impl{path, std::move(file), static_cast<int64_t>(size)});
}

ShardFile::ShardFile(ShardFile&&) noexcept = default;

ShardFile::~ShardFile() {
  Hdf5Lock lock;
  impl_.reset();
}

namespace {

/// Throws unless the path to the data set consists of hard links.
void refuse_links(hid_t file, const std::string& name, const fs::path& path) {
  for (size_t end = name.find('/');; end = name.find('/', end + 1)) {
    std::string step = name.substr(0, end);
    H5L_info_t info{};
    if (H5Lget_info(file, step.c_str(), &info, H5P_DEFAULT) < 0) {
      H5Eclear2(H5E_DEFAULT);
      throw DamageError(path, concat(path.string(), " has no data set for the tensor ", name,
                                     ", which the manifest lists in it"));
    }
    if (info.type != H5L_TYPE_HARD) {
      throw DamageError(path, concat(path.string(), ": \"", step, "\" on the way to the tensor ", name,
                                     " is a link to another place; checkpoints have "
                                     "none, so this file was altered"));
    }
    if (end == std::string::npos) return;
  }
}

/// Opens the data set after checking it against the specification and the format.
Hdf5Id open_dataset(hid_t file, int64_t file_bytes, const DatasetSpec& spec, const fs::path& path) {
  refuse_links(file, spec.name, path);
  const std::string what = concat("read the tensor ", spec.name, " from");
  auto checked = [&](auto result) { return check_hdf5(result, ErrorKind::kCheckpoint, what, path); };
  auto refuse = [&](const auto&... parts) {
    throw DamageError(path, concat(path.string(), ": the data set of the tensor ", spec.name, " ", parts...));
  };

  Hdf5Id set(checked(H5Dopen2(file, spec.name.c_str(), H5P_DEFAULT)), H5Dclose);
  Hdf5Id creation(checked(H5Dget_create_plist(set.get())), H5Pclose);
  if (checked(H5Pget_layout(creation.get())) != H5D_CONTIGUOUS ||
      checked(H5Pget_external_count(creation.get())) != 0 || checked(H5Pget_nfilters(creation.get())) != 0) {
    refuse("is not stored plainly in the file (it has chunks, filters or external storage)");
  }
  Hdf5Id type(checked(H5Dget_type(set.get())), H5Tclose);
  if (checked(H5Tequal(type.get(), stored_type(spec.dtype).get())) == 0) {
    refuse("is not of type ", util::dtype_name(spec.dtype), ", which the manifest gives");
  }
  Hdf5Id space(checked(H5Dget_space(set.get())), H5Sclose);
  int dimensions = checked(H5Sget_simple_extent_ndims(space.get()));
  hsize_t numel = 0;
  if (dimensions == 1) checked(H5Sget_simple_extent_dims(space.get(), &numel, nullptr));
  if (dimensions != 1 || numel != static_cast<hsize_t>(spec.numel)) {
    refuse("has ", numel, " elements in ", dimensions, " dimensions, but the manifest gives ", spec.numel,
           " in one");
  }
  haddr_t offset = H5Dget_offset(set.get());
  auto bytes = static_cast<haddr_t>(spec.numel) * c10::elementSize(spec.dtype);
  auto file_size = static_cast<haddr_t>(file_bytes);
  if (offset == HADDR_UNDEF || offset > file_size || bytes > file_size - offset) {
    refuse("is outside of the file");
  }
  return set;
}

}  // namespace

void ShardFile::check(const DatasetSpec& spec) const {
  Hdf5Lock lock;
  open_dataset(impl_->file.get(), impl_->size_bytes, spec, impl_->path);
}

void ShardFile::check_description(const std::string& expected) const {
  {
    Hdf5Lock lock;
    if (check_hdf5(H5Lexists(impl_->file.get(), kDescriptionName, H5P_DEFAULT), ErrorKind::kCheckpoint,
                   "read the description in", impl_->path) == 0) {
      return;
    }
  }
  const DatasetSpec spec = description_spec(expected);
  std::string found(expected.size(), ' ');
  read(spec, {.count = spec.numel}, found.data());
  if (found == expected) return;
  throw DamageError(impl_->path,
                    concat(impl_->path.string(), " does not say of itself what the manifest says of it: \"",
                           kDescriptionName, "\" in it is ", found, ", but ", expected,
                           " follows from the manifest; one of them is of another checkpoint"));
}

void ShardFile::read(const DatasetSpec& spec, const DatasetBlocks& blocks, void* out) const {
  const int64_t steps = blocks.blocks - 1;
  FSDP_CHECK(blocks.offset >= 0 && blocks.count > 0 && blocks.blocks > 0, spec.name);
  FSDP_CHECK(steps == 0 || (blocks.stride >= blocks.count && blocks.out_stride >= blocks.count), spec.name);
  FSDP_CHECK(blocks.offset + steps * blocks.stride <= spec.numel - blocks.count, spec.name);
  Hdf5Lock lock;
  const std::string what = concat("read the tensor ", spec.name, " from");
  auto checked = [&](auto result) { return check_hdf5(result, ErrorKind::kCheckpoint, what, impl_->path); };
  Hdf5Id set = open_dataset(impl_->file.get(), impl_->size_bytes, spec, impl_->path);
  Hdf5Id type = stored_type(spec.dtype);
  auto select = [&](hid_t space, int64_t first, int64_t distance) {
    auto start = static_cast<hsize_t>(first), number = static_cast<hsize_t>(blocks.blocks);
    auto size = static_cast<hsize_t>(blocks.count);
    auto stride = steps == 0 ? size : static_cast<hsize_t>(distance);
    checked(H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, &stride, &number, &size));
  };
  Hdf5Id space(checked(H5Dget_space(set.get())), H5Sclose);
  select(space.get(), blocks.offset, blocks.stride);
  auto extent = static_cast<hsize_t>(steps * blocks.out_stride + blocks.count);
  Hdf5Id memory(checked(H5Screate_simple(1, &extent, nullptr)), H5Sclose);
  select(memory.get(), 0, blocks.out_stride);
  checked(H5Dread(set.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, out));
}

}  // namespace fsdp::checkpoint
