// Reads .metadata of torch.distributed.checkpoint.

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "base/util/error.h"
#include "base/util/shape.h"
#include "state/dcp/dcp_folder.h"

namespace fsdp::checkpoint {
using ValueKind = PickleValue::ValueKind;

namespace {

#define FSDP_DCP "torch.distributed.checkpoint."
constexpr std::string_view kMetadata = FSDP_DCP "metadata.Metadata",
                           kTensor = FSDP_DCP "metadata.TensorStorageMetadata",
                           kBytes = FSDP_DCP "metadata.BytesStorageMetadata",
                           kProperties = FSDP_DCP "metadata.TensorProperties",
                           kChunk = FSDP_DCP "metadata.ChunkStorageMetadata",
                           kIndex = FSDP_DCP "metadata.MetadataIndex",
                           kStorage = FSDP_DCP "filesystem._StorageInfo";
/// The names that the pickle may contain.
constexpr auto kMetadataGlobals = std::to_array<std::string_view>({kMetadata,
                                                                   kTensor,
                                                                   kBytes,
                                                                   kProperties,
                                                                   kChunk,
                                                                   kIndex,
                                                                   kStorage,
                                                                   FSDP_DCP "metadata.StorageMeta",
                                                                   FSDP_DCP "metadata._MEM_FORMAT_ENCODING",
                                                                   "torch.Size",
                                                                   "torch.serialization._get_layout",
                                                                   "collections.OrderedDict",
                                                                   "pathlib.PosixPath",
                                                                   "pathlib.PurePosixPath",
                                                                   "pathlib.WindowsPath",
                                                                   "pathlib._local.PosixPath",
                                                                   "torch.float32",
                                                                   "torch.float64",
                                                                   "torch.float16",
                                                                   "torch.bfloat16",
                                                                   "torch.int64",
                                                                   "torch.int32",
                                                                   "torch.int16",
                                                                   "torch.int8",
                                                                   "torch.uint8",
                                                                   "torch.bool"});
#undef FSDP_DCP

constexpr int64_t kMostValues = 1 << 25;

/// A field of a dataclass. Null if there is none, or if the class has many more fields than PyTorch's:
/// objects may share a state, and each would search all of it.
const PickleValue* field_of(const PickleValue& object, std::string_view name) {
  constexpr size_t kMostFields = 32;
  if (object.state == nullptr || object.state->items.size() > 2 * kMostFields) return nullptr;
  return find_item(*object.state, name);
}

struct Chunk {
  std::vector<int64_t> offsets, sizes;
};

/// The last dimension that any chunk cuts. Chunks are rectangles in the view with the dimensions before it as
/// rows. Nothing if the tensor's chunks cannot be rectangles.
std::optional<size_t> cut_dimension(const std::vector<int64_t>& shape, const std::vector<Chunk>& chunks) {
  size_t last = 0;
  for (const Chunk& chunk : chunks) {
    for (size_t d = 0; d < shape.size(); ++d) {
      if (chunk.sizes[d] != shape[d]) last = std::max(last, d);
    }
  }
  for (const Chunk& chunk : chunks) {
    int64_t outer = 1;  // number of positions in the dimensions before d
    for (size_t d = 0; d < last; ++d) {
      if (chunk.sizes[d] != shape[d] && outer != 1) return std::nullopt;
      outer *= chunk.sizes[d];
    }
  }
  return last;
}

/// The rectangle of a chunk. `cut`: the result of cut_dimension().
util::Rectangle rectangle_of(const std::vector<int64_t>& shape, const Chunk& chunk, size_t cut) {
  util::Rectangle part{.begin = 0, .end = 1, .rows = 1, .row_begin = 0, .row_end = 1};
  for (size_t d = 0; d < cut; ++d) {
    part.rows *= shape[d];
    part.row_begin = part.row_begin * shape[d] + chunk.offsets[d];
    part.row_end = (part.row_end - 1) * shape[d] + chunk.offsets[d] + chunk.sizes[d];
  }
  for (size_t d = cut; d < shape.size(); ++d) {
    part.begin = part.begin * shape[d] + (d == cut ? chunk.offsets[d] : 0);
    part.end = d == cut ? part.begin + chunk.sizes[d] : part.end * shape[d];
  }
  return part;
}

class MetadataParser {
 public:
  MetadataParser(const Pickle& pickle, const std::string& where)
      : root_(pickle.root()), chunks_left_(kFewestChunks + pickle.bytes()), where_(where) {}

  DcpMetadata parse() {
    if (!root_.is_object(kMetadata)) refuse("is something else");
    read_storage(dict_of(root_, "storage_data"));
    const PickleValue& tensors = dict_of(root_, "state_dict_metadata");
    for (size_t i = 0; i < tensors.items.size(); i += 2) {
      const PickleValue &key = *tensors.items[i], &value = *tensors.items[i + 1];
      if (!key.is(ValueKind::kText) || !is_tensor_name(key.text)) refuse("has a key that cannot be a name");
      const std::string name(key.text);
      if (result_.manifest.tensors.contains(name) || result_.values.contains(name)) {
        refuse("has the key ", name, " twice");
      }
      if (value.is_object(kTensor)) {
        read_tensor(name, value);
      } else if (value.is_object(kBytes)) {
        result_.values.emplace(name, item_of(name, {}));
      } else {
        refuse("has neither a tensor nor another object under ", name);
      }
    }
    refuse_shared_bytes();
    complete_manifest(result_.manifest, where_);
    return std::move(result_);
  }

 private:
  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorKind::kCheckpoint, where_, " must be the metadata of torch.distributed.checkpoint, but ",
         parts...);
  }

  const PickleValue& dict_of(const PickleValue& object, const char* field) const {
    const PickleValue* value = field_of(object, field);
    if (value == nullptr || !value->is(ValueKind::kDict)) refuse("has no dict ", field);
    return *value;
  }

  std::vector<int64_t> sizes_of(const PickleValue& object, const char* field, const std::string& name) const {
    const PickleValue* value = field_of(object, field);
    std::vector<int64_t> sizes;
    if (value == nullptr || !read_torch_sizes(*value, sizes)) refuse("has no ", field, " for ", name);
    return sizes;
  }

  /// Refuses parts that share bytes of a file, because each part would be read.
  void refuse_shared_bytes() const {
    std::vector<const DcpItem*> items;
    for (const DcpItem& item : result_.items) items.push_back(&item);
    for (const auto& [name, item] : result_.values) items.push_back(&item);
    std::sort(items.begin(), items.end(), [](const DcpItem* a, const DcpItem* b) {
      return a->file != b->file ? a->file < b->file : a->place.begin < b->place.begin;
    });
    for (size_t i = 1; i < items.size(); ++i) {
      const DcpItem &before = *items[i - 1], &item = *items[i];
      // Reading refuses impossible places.
      if (before.file != item.file || before.place.begin < 0 ||
          item.place.begin - before.place.begin >= before.place.bytes) {
        continue;
      }
      refuse("stores two parts in the same bytes of ", item.file);
    }
  }

  void read_storage(const PickleValue& storage) {
    for (size_t i = 0; i < storage.items.size(); i += 2) {
      const PickleValue &index = *storage.items[i], &info = *storage.items[i + 1];
      const PickleValue *name = field_of(index, "fqn"), *offset = field_of(index, "offset"),
                        *file = field_of(info, "relative_path"), *begin = field_of(info, "offset"),
                        *length = field_of(info, "length");
      if (!index.is_object(kIndex) || !info.is_object(kStorage) || name == nullptr ||
          !name->is(ValueKind::kText) || !is_tensor_name(name->text) || file == nullptr ||
          !file->is(ValueKind::kText) || begin == nullptr || !begin->is(ValueKind::kInt) ||
          length == nullptr || !length->is(ValueKind::kInt)) {
        refuse("has an entry of storage_data that is something else");
      }
      const PickleValue* transforms = field_of(info, "transform_descriptors");
      if (transforms != nullptr && !(transforms->is(ValueKind::kNone) || transforms->items.empty())) {
        refuse("stores ", std::string(name->text),
               " through an extension of PyTorch, which is not supported; save it "
               "without extensions");
      }
      if (!is_file_name(file->text)) {
        refuse("stores ", std::string(name->text), " in a file whose name is not one of this folder");
      }
      std::vector<int64_t> offsets;
      if (offset != nullptr && !offset->is(ValueKind::kNone) && !read_torch_sizes(*offset, offsets)) {
        refuse("has an entry of storage_data that is something else");
      }
      const ItemPlace place{file->text, {begin->number, length->number}};
      if (!storage_.emplace(std::pair(name->text, std::move(offsets)), place).second) {
        refuse("stores a part of ", std::string(name->text), " twice");
      }
    }
  }

  /// Whether the name is a plain file name, so that nothing outside the folder is opened.
  static bool is_file_name(std::string_view name) {
    return !name.empty() && name.size() <= 255 && name.front() != '.' &&
           std::none_of(name.begin(), name.end(), [](unsigned char c) { return c == '/' || c < 0x20; });
  }

  DcpItem item_of(const std::string& name, const std::vector<int64_t>& offsets) const {
    const auto found = storage_.find(std::pair(std::string_view(name), offsets));
    if (found == storage_.end())
      refuse("does not say where ", name, " at ", util::shape_text(offsets), " is stored");
    return {std::string(found->second.file), found->second.place};
  }

  void read_tensor(const std::string& name, const PickleValue& value) {
    TensorEntry entry{.shape = sizes_of(value, "size", name)};
    const PickleValue* properties = field_of(value, "properties");
    // The state of TensorProperties is a tuple that begins with the type, or in older releases a dict.
    const PickleValue* dtype = nullptr;
    if (properties != nullptr && properties->is_object(kProperties) && properties->state != nullptr) {
      const PickleValue& state = *properties->state;
      dtype = state.is(ValueKind::kTuple) && !state.items.empty() ? state.items.front()
                                                                  : find_item(state, "dtype");
    }
    if (dtype == nullptr || !find_torch_dtype(dtype->text, entry.dtype)) refuse("has no type for ", name);
    const int64_t itemsize_bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
    if (util::checked_numel(entry.shape, itemsize_bytes) < 0) refuse("has an impossible shape for ", name);
    const PickleValue* list = field_of(value, "chunks");
    if (list == nullptr || !list->is(ValueKind::kList)) refuse("has no chunks for ", name);
    // Tensors that share a list would otherwise read it again and again.
    if (list->items.size() > chunks_left_) refuse("has more chunks of tensors than it has bytes");
    chunks_left_ -= list->items.size();
    std::vector<Chunk> chunks;
    for (const PickleValue* stored : list->items) {
      Chunk chunk{sizes_of(*stored, "offsets", name), sizes_of(*stored, "sizes", name)};
      bool fits = chunk.offsets.size() == entry.shape.size() && chunk.sizes.size() == entry.shape.size();
      bool is_empty = false;
      for (size_t d = 0; fits && d < entry.shape.size(); ++d) {
        fits = chunk.offsets[d] >= 0 && chunk.sizes[d] >= 0 && chunk.offsets[d] <= entry.shape[d] &&
               chunk.sizes[d] <= entry.shape[d] - chunk.offsets[d];
        is_empty = is_empty || chunk.sizes[d] == 0;
      }
      if (!fits) {
        refuse("has a chunk of ", name, " of the sizes ", util::shape_text(chunk.sizes), " at ",
               util::shape_text(chunk.offsets), ", which is not in its shape ",
               util::shape_text(entry.shape));
      }
      if (!is_empty) chunks.push_back(std::move(chunk));
    }
    const auto cut = cut_dimension(entry.shape, chunks);
    if (!cut) {
      refuse("cuts ", name,
             " along several dimensions in a way that is not supported; save it with another mesh");
    }
    for (const Chunk& chunk : chunks) {
      DcpItem item = item_of(name, chunk.offsets);
      entry.ranges.push_back({.part = rectangle_of(entry.shape, chunk, *cut), .file = result_.items.size()});
      entry.rows = entry.ranges.back().part.rows;
      result_.manifest.files.push_back({.name = item.file, .bytes = item.place.bytes, .xxh3_64 = {}});
      result_.items.push_back(std::move(item));
    }
    result_.manifest.tensors.emplace(name, std::move(entry));
  }

  /// Place of an item. `file` is a view into the pickle, because items share its texts.
  struct ItemPlace {
    std::string_view file;
    FilePart place;
  };

  static constexpr size_t kFewestChunks = 1024;
  const PickleValue& root_;
  size_t chunks_left_;
  const std::string& where_;
  std::map<std::pair<std::string_view, std::vector<int64_t>>, ItemPlace> storage_;
  DcpMetadata result_;
};

}  // namespace

DcpMetadata parse_dcp_metadata(std::string bytes, const std::string& where) {
  const Pickle pickle(std::move(bytes), kMetadataGlobals, where, {.most_values = kMostValues});
  return MetadataParser(pickle, where).parse();
}

}  // namespace fsdp::checkpoint
