#include "base/gguf/reader.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/shape.h"
#include "base/util/text.h"

namespace fsdp::gguf {

namespace {

constexpr int64_t kLargestHeaderBytes = int64_t{128} << 20;  // the largest vocabularies take 20 MiB
constexpr int64_t kLargestAlignment = int64_t{1} << 20;
constexpr uint32_t kMostDimensions = 4;
constexpr int64_t kLongestKey = 65535;  // the format's
constexpr int64_t kLongestTensorName = 1000;

/// Names of types that cannot be read, for messages.
constexpr std::pair<uint32_t, const char*> kOtherTypes[] = {
    {9, "q8_1"},   {15, "q8_K"},  {16, "iq2_xxs"}, {17, "iq2_xs"}, {18, "iq3_xxs"}, {19, "iq1_s"},
    {21, "iq3_s"}, {22, "iq2_s"}, {24, "i8"},      {25, "i16"},    {26, "i32"},     {27, "i64"},
    {28, "f64"},   {29, "iq1_m"}, {34, "tq1_0"},   {35, "tq2_0"},  {39, "mxfp4"},   {40, "nvfp4"}};

std::string type_text(uint32_t number) {
  for (const auto& [known, name] : kOtherTypes) {
    if (known == number) return name;
  }
  return concat("number ", number);
}

/// Reads the header from the beginning of the file, through a buffer.
class HeaderReader {
 public:
  HeaderReader(const util::RawFile& file, std::string name)
      : file_(file), name_(std::move(name)), end_(std::min(file.size_bytes(), kLargestHeaderBytes)) {}

  int64_t place() const { return begin_ + static_cast<int64_t>(at_); }
  int64_t remaining() const { return end_ - place(); }

  template <typename Number>
  Number number() {
    Number value;
    bytes(&value, sizeof(value));
    return value;
  }

  std::string string(int64_t longest = kLargestHeaderBytes) {
    const uint64_t size = number<uint64_t>();
    if (size > static_cast<uint64_t>(longest)) damaged(concat("gives a text of ", size, " bytes"));
    require(size, 1);
    std::string text(size, '\0');
    bytes(text.data(), static_cast<int64_t>(size));
    return text;
  }

  /// Refuses a count of things that take `each` bytes at least, if the file has no room for them.
  void require(uint64_t count, int64_t each) const {
    if (count > static_cast<uint64_t>(remaining() / each)) {
      damaged(
          concat("gives ", count, " as a number of things, more than the rest of its header has room for"));
    }
  }

  void skip(int64_t count) {
    char scratch[256];
    for (; count > 0; count -= std::min<int64_t>(count, sizeof(scratch))) {
      bytes(scratch, std::min<int64_t>(count, sizeof(scratch)));
    }
  }

  [[noreturn]] void damaged(const std::string& what) const {
    fail(ErrorKind::kCheckpoint, name_, " ", what, "; it is damaged, cut off or not a GGUF file");
  }

 private:
  void bytes(void* out, int64_t count) {
    if (count > remaining()) damaged("ends within its header");
    for (char* to = static_cast<char*>(out); count > 0;) {
      if (at_ == buffer_.size()) {
        begin_ += static_cast<int64_t>(buffer_.size());
        constexpr int64_t kBufferBytes = int64_t{1} << 20;
        buffer_.resize(static_cast<size_t>(std::min(kBufferBytes, end_ - begin_)));
        file_.read_at(begin_, buffer_.data(), static_cast<int64_t>(buffer_.size()));
        at_ = 0;
      }
      const auto piece = std::min(static_cast<size_t>(count), buffer_.size() - at_);
      std::memcpy(to, buffer_.data() + at_, piece);
      to += piece;
      at_ += piece;
      count -= static_cast<int64_t>(piece);
    }
  }

  const util::RawFile& file_;
  std::string name_;
  int64_t end_;
  int64_t begin_ = 0;  ///< offset of the buffer in the file
  size_t at_ = 0;
  std::vector<char> buffer_;
};

int64_t bytes_of_kind(ValueKind kind) {
  switch (kind) {
    case ValueKind::kUint8:
    case ValueKind::kInt8:
    case ValueKind::kBool:
      return 1;
    case ValueKind::kUint16:
    case ValueKind::kInt16:
      return 2;
    case ValueKind::kUint32:
    case ValueKind::kInt32:
    case ValueKind::kFloat32:
      return 4;
    default:
      return 8;  // a text begins with its length
  }
}

/// A number of a kind with at most 32 bits.
int64_t read_whole_number(HeaderReader& header, ValueKind kind) {
  switch (kind) {
    case ValueKind::kUint8:
    case ValueKind::kBool:
      return header.number<uint8_t>();
    case ValueKind::kInt8:
      return header.number<int8_t>();
    case ValueKind::kUint16:
      return header.number<uint16_t>();
    case ValueKind::kInt16:
      return header.number<int16_t>();
    case ValueKind::kUint32:
      return header.number<uint32_t>();
    default:
      return header.number<int32_t>();
  }
}

ValueKind read_kind(HeaderReader& header, const std::string& key) {
  const auto kind = header.number<uint32_t>();
  if (kind > static_cast<uint32_t>(ValueKind::kFloat64)) {
    header.damaged(concat("gives \"", key, "\" a value of the unknown type ", kind));
  }
  return static_cast<ValueKind>(kind);
}

Value read_array(HeaderReader& header, const std::string& key) {
  const ValueKind kind = read_kind(header, key);
  if (kind == ValueKind::kArray) header.damaged(concat("gives \"", key, "\" a list of lists"));
  const auto count = header.number<uint64_t>();
  header.require(count, bytes_of_kind(kind));
  switch (kind) {
    case ValueKind::kString: {
      std::vector<std::string> texts;
      for (uint64_t i = 0; i < count; ++i) texts.push_back(header.string());
      return texts;
    }
    case ValueKind::kFloat32: {
      std::vector<float> numbers;
      for (uint64_t i = 0; i < count; ++i) numbers.push_back(header.number<float>());
      return numbers;
    }
    case ValueKind::kUint64:
    case ValueKind::kInt64:
    case ValueKind::kFloat64:
      header.skip(static_cast<int64_t>(count) * bytes_of_kind(kind));
      return std::monostate();
    default: {
      std::vector<int32_t> numbers;
      bool fit = true;
      for (uint64_t i = 0; i < count; ++i) {
        const int64_t number = read_whole_number(header, kind);
        fit = fit && number <= std::numeric_limits<int32_t>::max();
        numbers.push_back(static_cast<int32_t>(number));
      }
      if (!fit) return std::monostate();
      return numbers;
    }
  }
}

Value read_value(HeaderReader& header, const std::string& key) {
  const ValueKind kind = read_kind(header, key);
  switch (kind) {
    case ValueKind::kString:
      return header.string();
    case ValueKind::kFloat32:
      return header.number<float>();
    case ValueKind::kArray:
      return read_array(header, key);
    case ValueKind::kUint64:
    case ValueKind::kInt64:
    case ValueKind::kFloat64:
      header.skip(bytes_of_kind(kind));
      return std::monostate();
    case ValueKind::kBool:
      return read_whole_number(header, kind) != 0;
    default: {
      const int64_t number = read_whole_number(header, kind);
      if (number < 0) return std::monostate();
      return static_cast<uint32_t>(number);
    }
  }
}

/// Whether a key has only characters that messages can show.
bool is_plain(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
}

/// Name, shape and type; the place is returned, from the beginning of the tensors' bytes.
uint64_t read_tensor(HeaderReader& header, const std::string& file, Tensor& tensor) {
  tensor.name = header.string(kLongestTensorName);
  if (!is_plain(tensor.name)) header.damaged("has a tensor whose name is no plain text");
  const std::string where = concat(file, ": tensor ", tensor.name);
  const auto dimensions = header.number<uint32_t>();
  if (dimensions > kMostDimensions) {
    fail(ErrorKind::kCheckpoint, where, " has ", dimensions, " dimensions, more than the ", kMostDimensions,
         " that the format allows; the file is damaged");
  }
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = header.number<uint64_t>();
    if (size == 0 || size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail(ErrorKind::kCheckpoint, where, " has a dimension of ", size, "; the file is damaged");
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  if (tensor.shape.empty()) tensor.shape = {1};
  const auto type = header.number<uint32_t>();
  const auto known = enum_names(TensorType{});
  if (std::none_of(known.begin(), known.end(),
                   [type](const auto& entry) { return entry.value == static_cast<TensorType>(type); })) {
    fail(ErrorKind::kCheckpoint, where, " must have one of the types ",
         util::join(util::names_of_enum<TensorType>(), ", "), ", but has ", type_text(type),
         "; take another GGUF file of the model, or its Hugging Face folder");
  }
  tensor.type = static_cast<TensorType>(type);
  const TypeTraits& traits = traits_of(tensor.type);
  if (util::checked_numel(tensor.shape, traits.block_bytes) < 0 ||
      tensor.shape.back() % traits.block_elements != 0) {
    fail(ErrorKind::kCheckpoint, where, " has the impossible shape ", util::shape_text(tensor.shape),
         "; the file is damaged");
  }
  return header.number<uint64_t>();
}

}  // namespace

bool is_gguf(const std::filesystem::path& path) {
  try {
    char magic[sizeof(kMagic)];
    util::RawFile::open(path).read_at(0, magic, sizeof(magic));
    return std::equal(std::begin(magic), std::end(magic), std::begin(kMagic));
  } catch (const util::Error&) {
    return false;
  }
}

Reader::Reader(const std::filesystem::path& path) : file_(util::RawFile::open(path)) {
  const std::string name = path.string();
  HeaderReader header(file_, name);
  for (const char letter : kMagic) {
    if (header.number<char>() != letter) header.damaged("does not begin with \"GGUF\"");
  }
  const auto version = header.number<uint32_t>();
  if (version != 2 && version != kVersion) {
    fail(ErrorKind::kCheckpoint, name, " has the version ", version, " of GGUF",
         (version & 0xffff) == 0 ? ", or numbers in big-endian order" : "",
         ", but 2 and 3 in little-endian order are read; convert it with llama.cpp");
  }
  const auto tensor_count = header.number<uint64_t>(), key_count = header.number<uint64_t>();
  header.require(tensor_count, 24);  // a name's length, dimensions, type and place
  header.require(key_count, 13);
  for (uint64_t i = 0; i < key_count; ++i) {
    std::string key = header.string(kLongestKey);
    if (!is_plain(key)) header.damaged("has a key that is no plain text");
    Value value = read_value(header, key);
    if (!metadata_.emplace(key, std::move(value)).second) {
      header.damaged(concat("has the key \"", key, "\" twice"));
    }
  }
  int64_t alignment = kDefaultAlignment;
  if (metadata_.contains("general.alignment")) {
    const auto* found = find<uint32_t>("general.alignment");
    alignment = found == nullptr ? 0 : *found;
    if (alignment < 1 || alignment > kLargestAlignment || (alignment & (alignment - 1)) != 0) {
      header.damaged("has a \"general.alignment\" that is no power of two up to 1 MiB");
    }
  }
  std::vector<std::pair<Tensor, uint64_t>> found;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    Tensor tensor;
    const uint64_t begin = read_tensor(header, name, tensor);
    found.emplace_back(std::move(tensor), begin);
  }
  const int64_t data_begin = aligned(header.place(), alignment), file_bytes = file_.size_bytes();
  int64_t expected = 0;
  for (auto& [tensor, begin] : found) {
    if (begin != static_cast<uint64_t>(expected)) {
      fail(ErrorKind::kCheckpoint, name, ": tensor ", tensor.name, " starts at byte ", begin,
           " of the data instead of byte ", expected, ", so tensors overlap or leave a hole; it is damaged");
    }
    const int64_t bytes = bytes_of(tensor);
    if (bytes > file_bytes - data_begin - expected) {
      fail(ErrorKind::kCheckpoint, name, " has ", file_bytes, " bytes, too few for its tensor ", tensor.name,
           "; it is cut off");
    }
    tensor.begin_bytes = data_begin + expected;
    expected += aligned(bytes, alignment);
    std::string key = tensor.name;
    if (!tensors_.emplace(std::move(key), std::move(tensor)).second) {
      header.damaged("has two tensors of the same name");
    }
  }
}

void Reader::read(const Tensor& tensor, int64_t begin, int64_t bytes, void* out) const {
  FSDP_CHECK(begin >= 0 && bytes >= 0 && bytes <= bytes_of(tensor) - begin, tensor.name);
  file_.read_at(tensor.begin_bytes + begin, out, bytes);
}

}  // namespace fsdp::gguf
