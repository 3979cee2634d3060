#pragma once

// Values of a row as JSON, for files whose rows are not JSON.

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::data {

/// Appends a string. Its bytes are copied unchanged, since parsing the row finds those that are not UTF-8.
void append_string(std::string& json, std::string_view text);

/// Bytes of a number of one of numpy's integer types ("uint16"); nothing for other types.
std::optional<size_t> bytes_of_number(std::string_view type);

/// Appends a list of little-endian numbers of a type for which bytes_of_number() returns a value, which
/// divides the bytes.
void append_numbers(std::string& json, std::string_view type, std::string_view bytes);

}  // namespace fsdp::data
