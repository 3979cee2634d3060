#pragma once

// Parquet tables, written by libparquet.

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/writer.h>

#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace fsdp::data {

inline void check_status(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

template <typename Builder = arrow::StringBuilder>
std::shared_ptr<arrow::Array> column_of(const std::vector<std::optional<std::string>>& values) {
  Builder builder;
  for (const auto& value : values) check_status(value ? builder.Append(*value) : builder.AppendNull());
  return builder.Finish().ValueOrDie();
}

/// Lists of 0, 1, 2, ... messages, structures of role, content and weight, and behind them a null.
inline std::shared_ptr<arrow::Array> messages_column(int rows) {
  auto role = std::make_shared<arrow::StringBuilder>(), content = std::make_shared<arrow::StringBuilder>();
  auto weight = std::make_shared<arrow::DoubleBuilder>();
  const auto type =
      arrow::struct_({arrow::field("role", arrow::utf8()), arrow::field("content", arrow::utf8()),
                      arrow::field("weight", arrow::float64())});
  auto message = std::make_shared<arrow::StructBuilder>(
      type, arrow::system_memory_pool(),
      std::vector<std::shared_ptr<arrow::ArrayBuilder>>{role, content, weight});
  arrow::ListBuilder messages(arrow::system_memory_pool(), message);
  for (int i = 0; i < rows; ++i) {
    check_status(messages.Append());
    for (int turn = 0; turn < i; ++turn) {
      check_status(message->Append());
      check_status(role->Append(turn % 2 == 0 ? "user" : "assistant"));
      check_status(turn == 0 ? content->Append("hello " + std::to_string(i)) : content->AppendNull());
      check_status(weight->Append(turn == 0 ? 0.5 : std::nan("")));
    }
  }
  check_status(messages.AppendNull());
  return messages.Finish().ValueOrDie();
}

using NamedColumns = std::vector<std::pair<std::string, std::shared_ptr<arrow::Array>>>;

inline std::string write_parquet(const std::string& path, const NamedColumns& columns,
                                 int64_t rows_per_group = 1 << 20,
                                 parquet::Compression::type compression = parquet::Compression::SNAPPY) {
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (const auto& [name, array] : columns) {
    fields.push_back(arrow::field(name, array->type()));
    arrays.push_back(array);
  }
  auto file = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  auto properties =
      parquet::WriterProperties::Builder().compression(compression)->enable_page_checksum()->build();
  check_status(parquet::arrow::WriteTable(*arrow::Table::Make(arrow::schema(fields), arrays),
                                          arrow::system_memory_pool(), file, rows_per_group, properties));
  check_status(file->Close());
  return path;
}

}  // namespace fsdp::data
