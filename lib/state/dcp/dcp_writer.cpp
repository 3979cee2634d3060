#include "state/dcp/dcp_writer.h"

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "base/util/file.h"
#include "state/dcp/dcp_folder.h"

namespace fsdp::checkpoint {

namespace {

constexpr int64_t kLargestWorldSize = 100'000;
/// Most bytes of a part. A reader loads whole parts, even if it needs only some elements.
constexpr int64_t kLargestPartBytes = int64_t{1} << 30;

/// A part of a tensor, or another object, that has been written.
struct Written {
  std::vector<int64_t> offsets{}, sizes{};
  DcpItem item{};
};

std::string file_name(int64_t file) { return concat("__", file, "_0.distcp"); }

/// Range [begin, end) of the first dimension.
struct TensorRows {
  int64_t begin, end;
};

/// The parts of a tensor in one of the files. Sizes are rounded up like FSDP2's, so that the last files may
/// have less, or nothing.
std::vector<TensorRows> parts_in(const TensorInfo& info, int64_t file, int64_t files) {
  if (info.shape.empty()) return file == 0 ? std::vector<TensorRows>{{0, 1}} : std::vector<TensorRows>{};
  const int64_t rows = info.shape.front(), of_file = (rows + files - 1) / files;
  const int64_t first = std::min(file * of_file, rows), last = std::min(first + of_file, rows);
  const int64_t row_bytes = rows > 0 ? bytes_of(info) / rows : 0;
  const int64_t step = std::max<int64_t>(1, kLargestPartBytes / std::max<int64_t>(1, row_bytes));
  std::vector<TensorRows> parts;
  for (int64_t row = first; row < last; row += step) parts.push_back({row, std::min(row + step, last)});
  return parts;
}

class PartsWriter {
 public:
  PartsWriter(const DcpFiles& request, const Weights& source, const std::vector<DcpTensor>& tensors)
      : request_(request),
        source_(source),
        tensors_(tensors),
        parts_(tensors.size()),
        counter_(request.progress, "writing", total()) {}

  void write_file(int64_t number, const std::vector<DcpValue>& values) {
    util::RawFile file = util::RawFile::create_locked(request_.folder / file_name(number));
    int64_t at = 0;
    const auto place_of = [&](int64_t bytes) {
      return DcpItem{file_name(number), {std::exchange(at, at + bytes), bytes}};
    };
    for (size_t i = 0; i < tensors_.size(); ++i) {
      for (const TensorRows& rows : parts_in(tensors_[i].info, number, request_.files)) {
        Written part{.sizes = tensors_[i].info.shape};
        part.offsets.assign(part.sizes.size(), 0);
        if (!part.sizes.empty()) {
          part.offsets.front() = rows.begin;
          part.sizes.front() = rows.end - rows.begin;
        }
        part.item = place_of(write_part(file, tensors_[i], rows, part.sizes));
        parts_[i].push_back(std::move(part));
      }
    }
    if (number == 0) {
      for (const DcpValue& value : values) {
        values_.push_back({.item = place_of(write_torch_value(file, value.value, value.is_tuple))});
      }
    }
    file.sync();
  }

  std::string metadata(const std::vector<DcpValue>& values) const {
    PickleWriter pickle;
    begin_object(pickle, "metadata", "Metadata").text("state_dict_metadata").op("}(");
    for (size_t i = 0; i < tensors_.size(); ++i) describe(pickle, tensors_[i].info, parts_[i]);
    for (const DcpValue& value : values) {
      begin_object(pickle.text(value.key), "metadata", "BytesStorageMetadata").op("ub");
    }
    pickle.op("u").text("planner_data").op("N").text("storage_data").op("}(");
    for (size_t i = 0; i < tensors_.size(); ++i) {
      for (size_t part = 0; part < parts_[i].size(); ++part) {
        begin_object(pickle, "metadata", "MetadataIndex").text("fqn").text(tensors_[i].info.name);
        pickle.text("offset")
            .size(parts_[i][part].offsets)
            .text("index")
            .number(static_cast<int64_t>(part))
            .op("ub");
        place(pickle, parts_[i][part].item);
      }
    }
    for (size_t i = 0; i < values.size(); ++i) {
      begin_object(pickle, "metadata", "MetadataIndex").text("fqn").text(values[i].key);
      pickle.text("offset").op("N").text("index").op("Nub");
      place(pickle, values_[i].item);
    }
    pickle.op("u").text("storage_meta").op("N").text("version").text("1.0.0").op("ub");
    return pickle.finish();
  }

 private:
  int64_t total() const {
    int64_t bytes = 0;
    for (const DcpTensor& tensor : tensors_) bytes += bytes_of(tensor.info);
    return bytes;
  }

  int64_t write_part(util::RawFile& file, const DcpTensor& tensor, const TensorRows& rows,
                     const std::vector<int64_t>& sizes) {
    const TensorInfo& info = tensor.info;
    return write_torch_tensor(file, info.dtype, sizes, [&](ZipWriter& zip) {
      const auto append = [&](const void* data, int64_t bytes) {
        zip.append(data, bytes);
        counter_.add(bytes);
      };
      if (!tensor.number.empty())
        return append(tensor.number.data(), static_cast<int64_t>(tensor.number.size()));
      const int64_t row_numel = info.shape.empty() ? 1 : source_.numel(info.name) / info.shape.front();
      source_.stream(info.name, rows.begin * row_numel, rows.end * row_numel, info.dtype,
                     [&](const at::Tensor& slice) {
                       append(slice.const_data_ptr(), static_cast<int64_t>(slice.nbytes()));
                     });
    });
  }

  /// Begins an instance of a class of DCP. The caller writes its state as items of a dict, followed by "ub".
  static PickleWriter& begin_object(PickleWriter& pickle, const char* module, const char* name) {
    return pickle.global(concat("torch.distributed.checkpoint.", module), name).op(")\x81}(");
  }

  static void place(PickleWriter& pickle, const DcpItem& item) {
    begin_object(pickle, "filesystem", "_StorageInfo").text("relative_path").text(item.file);
    pickle.text("offset").number(item.place.begin).text("length").number(item.place.bytes).op("ub");
  }

  static void describe(PickleWriter& pickle, const TensorInfo& info, const std::vector<Written>& parts) {
    begin_object(pickle.text(info.name), "metadata", "TensorStorageMetadata").text("properties");
    // TensorProperties: type, layout, requires_grad, memory format, pinned
    pickle.global("torch.distributed.checkpoint.metadata", "TensorProperties").op(")\x81(");
    const std::string_view dtype = torch_dtype_name(info.dtype);
    pickle.global("torch", dtype.substr(dtype.find('.') + 1));
    pickle.global("torch.serialization", "_get_layout").text("torch.strided").op("\x85R\x89");
    pickle.global("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING")
        .number(0)
        .op("\x85R\x89tb");
    pickle.text("size").size(info.shape).text("chunks").op("](");
    for (const Written& part : parts) {
      begin_object(pickle, "metadata", "ChunkStorageMetadata").text("offsets").size(part.offsets);
      pickle.text("sizes").size(part.sizes).op("ub");
    }
    pickle.op("eub");
  }

  const DcpFiles& request_;
  const Weights& source_;
  const std::vector<DcpTensor>& tensors_;
  std::vector<std::vector<Written>> parts_;  ///< [tensor]
  std::vector<Written> values_;
  util::ByteCounter counter_;
};

}  // namespace

void write_dcp_files(const DcpFiles& request, const Weights& source, const std::vector<DcpTensor>& tensors,
                     const std::vector<DcpValue>& values) {
  if (request.files < 1 || request.files > kLargestWorldSize) {
    fail(ErrorKind::kUsage, "the world size must be from 1 to ", kLargestWorldSize, ", but is ",
         request.files);
  }
  PartsWriter writer(request, source, tensors);
  for (int64_t file = 0; file < request.files; ++file) writer.write_file(file, values);
  // Written last, as PyTorch does: a folder without it is not a checkpoint.
  util::write_file_atomically(request.folder / kDcpMetadataName, writer.metadata(values));
}

bool is_dcp_file(const std::string& name) { return name == kDcpMetadataName || name.ends_with(".distcp"); }

}  // namespace fsdp::checkpoint
