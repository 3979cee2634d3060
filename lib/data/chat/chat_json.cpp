#include "data/chat/chat_json.h"

#include <utility>
#include <vector>

#include "base/util/error.h"

namespace fsdp::data {
namespace {

/// Builds the values from nlohmann's parser, which passes the digits of large integers as a float's text.
class Builder final : public nlohmann::json_sax<OrderedJson> {
 public:
  OrderedJson take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override {
    return std::in_range<int64_t>(value) ? add(value) : add_large(std::to_string(value));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return text.find_first_of(".eE") == string_t::npos ? add_large(text) : add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }

  bool start_object(size_t /*elements*/) override { return open(OrderedJson::object()); }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t /*elements*/) override { return open(OrderedJson::array()); }
  bool end_array() override { return close(); }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    fail(ErrorKind::kUnexpected, "JSON that was checked cannot be parsed at byte ", position);
  }

 private:
  OrderedJson& place() {
    if (open_.empty()) return root_;
    OrderedJson& parent = *open_.back();
    if (parent.is_object()) return parent[key_];
    parent.push_back(nullptr);
    return parent.back();
  }
  bool add(OrderedJson value) {
    place() = std::move(value);
    return true;
  }
  bool add_large(const std::string& digits) {
    return add(OrderedJson::binary({digits.begin(), digits.end()}));
  }
  bool open(OrderedJson value) {
    OrderedJson& opened = place();
    opened = std::move(value);
    open_.push_back(&opened);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  OrderedJson root_;
  std::vector<OrderedJson*> open_;  ///< the values around the next one
  std::string key_;                 ///< key of the next value in an object
};

}  // namespace

OrderedJson parse_chat_json(std::string_view text) {
  Builder builder;
  OrderedJson::sax_parse(text, &builder);
  return builder.take();
}

std::optional<std::string> large_integer(const OrderedJson& json) {
  if (!json.is_binary()) return std::nullopt;
  const auto& bytes = json.get_binary();
  return std::string(bytes.begin(), bytes.end());
}

}  // namespace fsdp::data
