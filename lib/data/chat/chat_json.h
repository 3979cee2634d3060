#pragma once

// JSON of conversations that preserves what templates print: order of members, integers of any size.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::data {

/// JSON whose objects keep their order. An integer beyond 64 bits is a binary value of its digits.
using OrderedJson = nlohmann::ordered_json;

/// Parses a text that util::parse_json() accepts. Among duplicate keys the last value counts, at the position
/// of the first, as in Python.
OrderedJson parse_chat_json(std::string_view text);

/// Returns the digits of an integer beyond 64 bits; nullopt for all other values.
std::optional<std::string> large_integer(const OrderedJson& json);

}  // namespace fsdp::data
