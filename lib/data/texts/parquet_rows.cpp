#include "data/texts/parquet_rows.h"

#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>

#include <algorithm>

#include "base/util/error.h"
#include "base/util/text.h"
#include "data/texts/growth_limit.h"
#include "data/texts/row_text.h"
#include "data/texts/text_input.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

constexpr int64_t kMaxMemory = int64_t{512} << 20;
/// Limit on memory for small files: a constant, and a multiple of their size.
constexpr int64_t kFreeMemory = int64_t{16} << 20;
constexpr int64_t kMemoryAByte = 64;
/// Limit on a row as JSON, the same as for a line; in small files half of the memory.
constexpr int64_t kMaxRowBytes = int64_t{256} << 20;
/// Limit on the footer, whose structures take up to twenty times as much memory.
constexpr int64_t kMaxFooterBytes = int64_t{32} << 20;
constexpr int64_t kBatchBytes = int64_t{4} << 20;
/// Limit on the rows of a batch, since rows that refer to a dictionary exceed the group's size.
constexpr int64_t kMostBatchRows = 64;
constexpr int64_t kPageReadBytes = int64_t{1} << 20;
/// Limit on nested structures and lists within a column; readers of rows accept 64 levels of JSON.
constexpr int kMaxColumnDepth = 30;

/// Thrown when a row exceeds its limit.
class RowTooLong : public std::exception {};

void append_value(std::string& json, const arrow::Array& values, int64_t at, size_t most);

template <typename List>
void append_list(std::string& json, const arrow::Array& values, int64_t at, size_t most) {
  const auto& list = static_cast<const List&>(values);
  json += '[';
  for (int64_t i = list.value_offset(at), end = i + list.value_length(at); i < end; ++i) {
    if (json.back() != '[') json += ',';
    append_value(json, *list.values(), i, most);
  }
  json += ']';
}

template <typename Field>
void append_object(std::string& json, int fields, const Field& field) {
  json += '{';
  for (int i = 0; i < fields; ++i) {
    if (i > 0) json += ',';
    field(i);
  }
  json += '}';
}

/// Appends a value as JSON. Strings are copied unchanged; parsing the row finds bytes that are not UTF-8.
void append_value(std::string& json, const arrow::Array& values, int64_t at, size_t most) {
  if (json.size() > most) throw RowTooLong();
  if (values.IsNull(at)) {
    json += "null";
    return;
  }
  switch (values.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return append_string(json, static_cast<const arrow::BinaryArray&>(values).GetView(at));
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return append_string(json, static_cast<const arrow::LargeBinaryArray&>(values).GetView(at));
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return append_string(json, static_cast<const arrow::BinaryViewArray&>(values).GetView(at));
    case arrow::Type::LIST:
    case arrow::Type::MAP:
      return append_list<arrow::ListArray>(json, values, at, most);
    case arrow::Type::LARGE_LIST:
      return append_list<arrow::LargeListArray>(json, values, at, most);
    case arrow::Type::FIXED_SIZE_LIST:
      return append_list<arrow::FixedSizeListArray>(json, values, at, most);
    case arrow::Type::STRUCT: {
      const auto& object = static_cast<const arrow::StructArray&>(values);
      return append_object(json, object.num_fields(), [&](int i) {
        append_string(json, object.struct_type()->field(i)->name());
        json += ':';
        append_value(json, *object.field(i), at, most);
      });
    }
    case arrow::Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(values);
      return append_value(json, *coded.dictionary(), coded.GetValueIndex(at), most);
    }
    case arrow::Type::EXTENSION:
      return append_value(json, *static_cast<const arrow::ExtensionArray&>(values).storage(), at, most);
    default:
      break;
  }
  const auto scalar = values.GetScalar(at);
  const std::string text = scalar.ok() ? (*scalar)->ToString() : scalar.status().ToString();
  const arrow::Type::type type = values.type_id();
  const bool is_number =
      arrow::is_integer(type) || type == arrow::Type::BOOL ||
      (arrow::is_floating(type) && text.find_first_not_of("0123456789+-.e") == std::string::npos);
  if (is_number) {
    json += text;
  } else {
    append_string(json, text);
  }
}

int depth_of(const parquet::schema::Node& node) {
  int depth = 0;
  for (const parquet::schema::Node* at = &node; at->parent() != nullptr; at = at->parent()) ++depth;
  return depth;
}

/// Reads an InputFile for libparquet.
class SourceFile final : public arrow::io::RandomAccessFile {
 public:
  SourceFile(std::shared_ptr<const ByteSource> source, arrow::MemoryPool& memory)
      : source_(std::move(source)), memory_(memory) {}

  arrow::Status Close() override {
    is_closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return is_closed_; }
  arrow::Result<int64_t> Tell() const override { return at_; }
  arrow::Status Seek(int64_t to) override {
    at_ = to;
    return arrow::Status::OK();
  }
  arrow::Result<int64_t> GetSize() override { return source_->size_bytes(); }

  arrow::Result<int64_t> ReadAt(int64_t at, int64_t bytes, void* out) override {
    if (at < 0 || bytes < 0) return arrow::Status::Invalid("negative range");
    const int64_t most = std::max<int64_t>(source_->size_bytes() - at, 0);
    return static_cast<int64_t>(
        source_->read_at(at, static_cast<size_t>(std::min(bytes, most)), static_cast<char*>(out)));
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t at, int64_t bytes) override {
    // A damaged length must not take memory that the file cannot fill.
    const int64_t most = std::clamp<int64_t>(source_->size_bytes() - at, 0, std::max<int64_t>(bytes, 0));
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(most, &memory_));
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(at, most, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(got));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }
  arrow::Result<int64_t> Read(int64_t bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(at_, bytes, out));
    at_ += got;
    return got;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(at_, bytes));
    at_ += buffer->size();
    return buffer;
  }

 private:
  std::shared_ptr<const ByteSource> source_;
  arrow::MemoryPool& memory_;
  int64_t at_ = 0;
  bool is_closed_ = false;
};

class ParquetRows final : public RowFile {
 public:
  ParquetRows(const std::string& path, const std::vector<std::string>& columns)
      : path_(path),
        file_(path),
        most_memory_(std::min(kMaxMemory, kFreeMemory + kMemoryAByte * file_.size_bytes())),
        memory_(arrow::system_memory_pool(), most_memory_) {
    if (file_.size_bytes() < 0) file_.refuse("must be a file to be read as a parquet table; name the file");
    checked([&] {
      open();
      choose(columns);
    });
  }

  int64_t next(std::string& text) override {
    while (!batch_ || at_ == batch_->num_rows()) {
      batch_.reset();
      checked([&] { read_batch(); });
      if (!batch_) return 0;
    }
    const size_t before = text.size();
    const int64_t most = std::min(kMaxRowBytes, most_memory_ / 2);
    try {
      append_object(text, batch_->num_columns(), [&](int i) {
        append_string(text, batch_->column_name(i));
        text += ':';
        append_value(text, *batch_->column(i), at_, before + static_cast<size_t>(most));
      });
    } catch (const RowTooLong&) {
      file_.refuse(concat("has a row of more than ", util::human_bytes(most), " as JSON", progress(),
                          "; leave it out"));
    }
    growth_.add(static_cast<int64_t>(text.size() - before));
    if (const auto excess = growth_.excess(compressed_bytes_)) file_.refuse(*excess);
    ++at_;
    return ++number_;
  }

  RowPlace place() const override { return {path_, number_, "row"}; }

  void skip_to(int64_t row, int64_t /*byte*/) override {
    const parquet::FileMetaData& metadata = *reader_->parquet_reader()->metadata();
    checked([&] {
      while (group_ < metadata.num_row_groups() && number_ + metadata.RowGroup(group_)->num_rows() <= row) {
        number_ += metadata.RowGroup(group_++)->num_rows();
      }
      while (number_ < row) {
        if (!batch_ || at_ == batch_->num_rows()) read_batch();
        if (!batch_) file_.refuse("has fewer rows than before; run again when nothing writes to it");
        const int64_t left_out = std::min(batch_->num_rows() - at_, row - number_);
        at_ += left_out;
        number_ += left_out;
      }
    });
  }

  int64_t read_bytes() const override {
    const int64_t rows = std::max<int64_t>(reader_->parquet_reader()->metadata()->num_rows(), 1);
    const double share = std::min(static_cast<double>(number_) / static_cast<double>(rows), 1.0);
    return std::llround(share * static_cast<double>(file_.size_bytes()));
  }

 private:
  /// Runs `body`, reporting damage: libparquet's exceptions, and those that `body` makes of arrow::Status.
  template <typename Body>
  void checked(const Body& body) {
    try {
      body();
    } catch (const util::Error&) {
      throw;
    } catch (const parquet::ParquetStatusException& error) {
      refuse_status(error.status());
    } catch (const std::exception& error) {
      refuse_damage(error.what());
    }
  }

  [[noreturn]] void refuse_status(const arrow::Status& status) {
    if (status.IsOutOfMemory()) {
      file_.refuse(concat("needs more than ", util::human_bytes(most_memory_), " to be read", progress(),
                          "; write it again with smaller pages and row groups"));
    }
    refuse_damage(status.message());
  }

  [[noreturn]] void refuse_damage(const std::string& reason) {
    file_.refuse(concat("is damaged or not a parquet table (", for_message(reason), ")", progress(),
                        "; fetch it again, or correct its name"));
  }

  std::string progress() const { return number_ > 0 ? concat(" after row ", number_) : std::string(); }

  template <typename Value>
  Value value_of(arrow::Result<Value> result) {
    if (!result.ok()) refuse_status(result.status());
    return std::move(result).ValueUnsafe();
  }

  void open() {
    check_footer();
    parquet::ReaderProperties properties(&memory_);
    properties.enable_buffered_stream();
    properties.set_buffer_size(kPageReadBytes);
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_pre_buffer(false);
    auto source = std::make_shared<SourceFile>(file_.source(), memory_);
    reader_ = value_of(parquet::arrow::FileReader::Make(
        &memory_, parquet::ParquetFileReader::Open(std::move(source), properties), arrow_properties));
  }

  /// Checks the size of the footer, which libparquet reads as a whole, whatever its size.
  void check_footer() {
    unsigned char tail[8] = {};
    if (file_.size_bytes() < 12 ||
        file_.source()->read_at(file_.size_bytes() - 8, 8, reinterpret_cast<char*>(tail)) != 8) {
      refuse_damage("too short");
    }
    const int64_t bytes = tail[0] | tail[1] << 8 | tail[2] << 16 | int64_t{tail[3]} << 24;
    if (bytes <= kMaxFooterBytes || bytes > file_.size_bytes()) return;
    file_.refuse(concat("has a footer of ", util::human_bytes(bytes), ", and at most ",
                        util::human_bytes(kMaxFooterBytes),
                        " are read; write it again with fewer row groups and columns"));
  }

  void choose(const std::vector<std::string>& names) {
    const parquet::SchemaDescriptor& schema = *reader_->parquet_reader()->metadata()->schema();
    std::vector<std::string> present;
    for (int i = 0; i < schema.num_columns(); ++i) {
      const std::string& name = schema.GetColumnRoot(i)->name();
      if (present.empty() || present.back() != name) present.push_back(name);
      if (std::find(names.begin(), names.end(), name) == names.end()) continue;
      if (depth_of(*schema.Column(i)->schema_node()) > kMaxColumnDepth) {
        file_.refuse(concat("has more than ", kMaxColumnDepth, " levels in the column \"", for_message(name),
                            "\"; leave it out"));
      }
      columns_.push_back(i);
    }
    if (!columns_.empty()) return;
    const std::string near = names.empty() ? std::string() : util::nearest(names.front(), present);
    file_.refuse(concat("has no column \"", util::join(names, "\" or \""), "\", but ",
                        for_message(util::name_list(present)),
                        near.empty() ? "" : "; did you mean \"" + for_message(near) + "\"?",
                        near.empty() ? "; set the column with `json_field`" : ""));
  }

  /// Reads the next batch into batch_, which is empty at the end.
  void read_batch() {
    at_ = 0;
    const parquet::FileMetaData& metadata = *reader_->parquet_reader()->metadata();
    while (true) {
      if (!batches_) {
        if (group_ == metadata.num_row_groups()) return;
        reader_->set_batch_size(batch_rows(metadata));
        add_compressed_bytes(metadata);
        batches_ = value_of(reader_->GetRecordBatchReader({group_++}, columns_));
      }
      batch_ = value_of(batches_->Next());
      if (batch_ && batch_->num_rows() > 0) return;
      if (!batch_) batches_.reset();
    }
  }

  /// Counts the bytes of the next group, whose columns cannot take more of the file than its size.
  void add_compressed_bytes(const parquet::FileMetaData& metadata) {
    const auto group = metadata.RowGroup(group_);
    for (const int column : columns_) {
      compressed_bytes_ += std::max<int64_t>(group->ColumnChunk(column)->total_compressed_size(), 0);
      compressed_bytes_ = std::min(compressed_bytes_, file_.size_bytes());
    }
  }

  /// Returns how many rows of the next group make kBatchBytes.
  int64_t batch_rows(const parquet::FileMetaData& metadata) const {
    const auto group = metadata.RowGroup(group_);
    int64_t bytes = 0;
    for (const int column : columns_) bytes += group->ColumnChunk(column)->total_uncompressed_size();
    const int64_t row_bytes = std::max<int64_t>(bytes, 1) / std::max<int64_t>(group->num_rows(), 1) + 1;
    return std::clamp<int64_t>(kBatchBytes / row_bytes, 1, kMostBatchRows);
  }

  const std::string_view path_;
  InputFile file_;
  int64_t most_memory_;
  arrow::CappedMemoryPool memory_;
  GrowthLimit growth_;
  int64_t compressed_bytes_ = 0;  ///< bytes of the columns in the row groups begun so far
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<int> columns_;  ///< columns to read, as leaves of the schema
  int group_ = 0;             ///< the next row group
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  int64_t at_ = 0;      ///< the next row of batch_
  int64_t number_ = 0;  ///< number of the last row
};

}  // namespace

std::unique_ptr<RowFile> open_parquet(const std::string& path, const std::vector<std::string>& columns) {
  return std::make_unique<ParquetRows>(path, columns);
}

}  // namespace fsdp::data
