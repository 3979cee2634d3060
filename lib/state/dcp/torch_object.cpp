#include "state/dcp/torch_object.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/shape.h"
#include "state/manifest/manifest.h"

namespace fsdp::checkpoint {
using ValueKind = PickleValue::ValueKind;

namespace {

struct TorchType {
  std::string_view dtype, storage;
  c10::ScalarType type;
};

constexpr std::array<TorchType, 10> kTorchTypes{{
    {"torch.float32", "torch.FloatStorage", c10::ScalarType::Float},
    {"torch.float64", "torch.DoubleStorage", c10::ScalarType::Double},
    {"torch.float16", "torch.HalfStorage", c10::ScalarType::Half},
    {"torch.bfloat16", "torch.BFloat16Storage", c10::ScalarType::BFloat16},
    {"torch.int64", "torch.LongStorage", c10::ScalarType::Long},
    {"torch.int32", "torch.IntStorage", c10::ScalarType::Int},
    {"torch.int16", "torch.ShortStorage", c10::ScalarType::Short},
    {"torch.int8", "torch.CharStorage", c10::ScalarType::Char},
    {"torch.uint8", "torch.ByteStorage", c10::ScalarType::Byte},
    {"torch.bool", "torch.BoolStorage", c10::ScalarType::Bool},
}};

constexpr std::string_view kRebuild = "torch._utils._rebuild_tensor_v2",
                           kRebuildParameter = "torch._utils._rebuild_parameter";

/// The names that the pickle of a tensor or plain value may contain.
constexpr auto kObjectGlobals = [] {
  std::array<std::string_view, kTorchTypes.size() + 3> names{kRebuild, kRebuildParameter,
                                                             "collections.OrderedDict"};
  for (size_t i = 0; i < kTorchTypes.size(); ++i) names[i + 3] = kTorchTypes[i].storage;
  return names;
}();

constexpr int64_t kLargestPickleBytes = 1 << 24;

const TorchType& traits_of(c10::ScalarType dtype) {
  const auto found = std::find_if(kTorchTypes.begin(), kTorchTypes.end(),
                                  [&](const TorchType& type) { return type.type == dtype; });
  FSDP_CHECK(found != kTorchTypes.end(), c10::toString(dtype));
  return *found;
}

/// The pickle of the archive, and the name of the archive's folder.
struct OpenArchive {
  ZipReader zip;
  std::string folder;
  Pickle pickle;
};

const ZipReader::ZipRecord& pickle_record(const ZipReader& zip, const std::string& where) {
  for (const ZipReader::ZipRecord& record : zip.records()) {
    if (record.name.ends_with("/data.pkl") && record.name.find('/') == record.name.size() - 9) return record;
  }
  fail(ErrorKind::kCheckpoint, where, " must be what torch.save() writes, but has no data.pkl");
}

OpenArchive open_archive(const util::RawFile& file, const FilePart& part, const std::string& where) {
  ZipReader zip(file, part, where);
  const ZipReader::ZipRecord& record = pickle_record(zip, where);
  std::string folder = record.name.substr(0, record.name.find('/') + 1);
  const ZipReader::ZipRecord* order = zip.find(folder + "byteorder");
  if (order != nullptr && zip.read(*order, 16) != "little") {
    fail(ErrorKind::kCheckpoint, where, " must be little-endian, but is not");
  }
  std::string bytes = zip.read(record, kLargestPickleBytes);
  return {std::move(zip), std::move(folder), Pickle(std::move(bytes), kObjectGlobals, where)};
}

/// The arguments of a call to `global`. Null for anything else, or if there are too few arguments.
const std::vector<const PickleValue*>* arguments_of(const PickleValue& value, std::string_view global,
                                                    size_t count) {
  return value.is_object(global) && value.inner->items.size() >= count ? &value.inner->items : nullptr;
}

bool is_contiguous(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  if (shape.size() != strides.size()) return false;
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

}  // namespace

std::string_view torch_dtype_name(c10::ScalarType dtype) { return traits_of(dtype).dtype; }

bool find_torch_dtype(std::string_view name, c10::ScalarType& dtype) {
  const auto found = std::find_if(kTorchTypes.begin(), kTorchTypes.end(),
                                  [&](const TorchType& type) { return type.dtype == name; });
  if (found != kTorchTypes.end()) dtype = found->type;
  return found != kTorchTypes.end();
}

bool read_torch_sizes(const PickleValue& value, std::vector<int64_t>& sizes) {
  constexpr size_t kMostDimensions = 64;
  const auto* size = arguments_of(value, "torch.Size", 1);
  const PickleValue& tuple = size != nullptr ? *size->front() : value;
  sizes.clear();
  if (!tuple.is(ValueKind::kTuple) || tuple.items.size() > kMostDimensions) return false;
  for (const PickleValue* item : tuple.items) {
    if (!item->is(ValueKind::kInt)) return false;
    sizes.push_back(item->number);
  }
  return true;
}

TorchTensor read_torch_tensor(const util::RawFile& file, const FilePart& part, const std::string& where) {
  const OpenArchive archive = open_archive(file, part, where);
  const auto refuse = [&](const auto&... parts) {
    fail(ErrorKind::kCheckpoint, where, " must be a tensor of torch.save(), but ", parts...);
  };
  const PickleValue* root = &archive.pickle.root();
  if (const auto* parameter = arguments_of(*root, kRebuildParameter, 1)) root = parameter->front();
  // storage, offset, shape, strides, requires_grad, hooks
  const auto* tensor = arguments_of(*root, kRebuild, 4);
  if (tensor == nullptr) refuse("is something else");
  const PickleValue &storage = *tensor->at(0), &offset = *tensor->at(1);
  TorchTensor result;
  std::vector<int64_t> strides;
  // "storage", type, key, device, elements
  const bool is_storage = storage.is(ValueKind::kPersistent) && storage.inner->is(ValueKind::kTuple) &&
                          storage.inner->items.size() == 5 && storage.inner->items[2]->is(ValueKind::kText);
  if (!is_storage || !offset.is(ValueKind::kInt) || offset.number < 0 ||
      !read_torch_sizes(*tensor->at(2), result.shape) || !read_torch_sizes(*tensor->at(3), strides)) {
    refuse("has an unknown description");
  }
  const auto type = std::find_if(kTorchTypes.begin(), kTorchTypes.end(), [&](const TorchType& known) {
    return known.storage == storage.inner->items[1]->text;
  });
  if (type == kTorchTypes.end()) refuse("has a type that is not supported");
  result.dtype = type->type;
  const int64_t itemsize_bytes = util::element_size(result.dtype);
  const int64_t numel = util::checked_numel(result.shape, itemsize_bytes);
  if (numel < 0) refuse("has the impossible shape ", util::shape_text(result.shape));
  if (!is_contiguous(result.shape, strides)) {
    refuse("its elements are not in row-major order (strides ", util::shape_text(strides), " of shape ",
           util::shape_text(result.shape), ")");
  }
  const ZipReader::ZipRecord* data =
      archive.zip.find(concat(archive.folder, "data/", storage.inner->items[2]->text));
  const int64_t bytes = numel * itemsize_bytes;
  if (data == nullptr || data->bytes < bytes || offset.number > (data->bytes - bytes) / itemsize_bytes) {
    refuse("has fewer bytes than its shape ", util::shape_text(result.shape), " needs");
  }
  archive.zip.verify(*data);
  result.data = {archive.zip.place_of(*data).begin + offset.number * itemsize_bytes, bytes};
  return result;
}

nlohmann::json read_torch_value(const util::RawFile& file, const FilePart& part, const std::string& where) {
  const OpenArchive archive = open_archive(file, part, where);
  return json_of(archive.pickle.root(), archive.pickle.bytes());
}

template <typename Number>
PickleWriter& PickleWriter::append(char opcode, Number value) {
  bytes_ += opcode;
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return *this;
}

PickleWriter& PickleWriter::text(std::string_view value) {
  append('X', static_cast<uint32_t>(value.size()));
  return op(value);
}

PickleWriter& PickleWriter::number(int64_t value) {
  if (value == static_cast<int32_t>(value)) return append('J', static_cast<int32_t>(value));
  bytes_ += "\x8a";
  return append(sizeof(value), value);
}

PickleWriter& PickleWriter::numbers(const std::vector<int64_t>& values) {
  op("(");
  for (const int64_t value : values) number(value);
  return op("t");
}

PickleWriter& PickleWriter::global(std::string_view module, std::string_view name) {
  return op("c").op(module).op("\n").op(name).op("\n");
}

PickleWriter& PickleWriter::size(const std::vector<int64_t>& sizes) {
  return global("torch", "Size").numbers(sizes).op("\x85R");
}

PickleWriter& PickleWriter::json(const nlohmann::json& value, bool as_tuple) {
  if (value.is_boolean()) return op(value.get<bool>() ? "\x88" : "\x89");
  if (value.is_number_integer()) return number(value.get<int64_t>());
  if (value.is_number_float()) {
    const auto real = value.get<double>();
    std::array<char, sizeof(real)> bytes;
    std::memcpy(bytes.data(), &real, sizeof(real));
    std::reverse(bytes.begin(), bytes.end());
    return op("G").op({bytes.data(), bytes.size()});
  }
  if (value.is_string()) return text(value.get_ref<const std::string&>());
  if (!value.is_array()) return op("N");
  op(as_tuple ? "(" : "](");
  for (const nlohmann::json& item : value) json(item);
  return op(as_tuple ? "t" : "e");
}

namespace detail {

void begin_torch_archive(ZipWriter& zip, const std::string& pickle) {
  zip.add("archive/data.pkl", pickle);
  zip.add("archive/byteorder", "little");
  zip.add("archive/version", "3\n");
}

std::string pickled_tensor(c10::ScalarType dtype, const std::vector<int64_t>& shape) {
  const std::string_view storage = traits_of(dtype).storage;
  const int64_t numel = util::checked_numel(shape, util::element_size(dtype));
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  PickleWriter pickle;
  pickle.global("torch._utils", "_rebuild_tensor_v2").op("((").text("storage");
  pickle.global("torch", storage.substr(storage.find('.') + 1)).text("0").text("cpu").number(numel).op("tQ");
  pickle.number(0).numbers(shape).numbers(strides).op("\x89").global("collections", "OrderedDict").op(")RtR");
  return pickle.finish();
}

}  // namespace detail

int64_t write_torch_value(util::RawFile& file, const nlohmann::json& value, bool as_tuple) {
  ZipWriter zip(file);
  detail::begin_torch_archive(zip, PickleWriter().json(value, as_tuple).finish());
  return zip.finish();
}

}  // namespace fsdp::checkpoint
