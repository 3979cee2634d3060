#include "checkpoint/tensor_tree.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "checkpoint/manifest.h"
#include "util/dtype.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::checkpoint {
namespace {

/// "layers.9." before "layers.10.".
struct NumbersInOrder {
  bool operator()(std::string_view a, std::string_view b) const {
    const bool numbers = is_number(a) && is_number(b);
    if (numbers && a.size() != b.size()) return a.size() < b.size();
    return a < b;
  }
  static bool is_number(std::string_view text) { return !text.empty() && text[0] >= '0' && text[0] <= '9'; }
};

struct Node {
  /// By the part of the name, with its separator; the names are the tensors'.
  std::map<std::string_view, Node, NumbersInOrder> children;
  const TensorInfo* tensor = nullptr;
  int64_t tensors = 0, bytes = 0;
};

void add(Node& root, const TensorInfo& tensor) {
  const std::string_view name = tensor.name;
  const int64_t bytes = bytes_of(tensor);
  Node* node = &root;
  for (size_t begin = 0;;) {
    ++node->tensors;
    node->bytes += bytes;
    if (begin == name.size()) break;
    const size_t separator = name.find_first_of("./", begin);
    const size_t end = separator == std::string_view::npos ? name.size() : separator + 1;
    node = &node->children[name.substr(begin, end - begin)];
    begin = end;
  }
  node->tensor = &tensor;
}

/// Tells `line` every line's label and what it says of the node.
template <typename Line>
void walk(const Node& node, const std::string& label, const std::string& indent, const Line& line) {
  // A group of one thing is written in one line with it.
  if (node.children.size() == 1 && node.tensor == nullptr) {
    const auto& [part, only] = *node.children.begin();
    walk(only, util::concat(label, part), indent, line);
    return;
  }
  if (node.tensor != nullptr || !label.empty()) line(indent + label, node);
  const std::string deeper = label.empty() ? indent : indent + "  ";
  for (const auto& [part, child] : node.children) walk(child, std::string(part), deeper, line);
}

void write_about(const Node& node, std::ostream& out) {
  if (node.tensor != nullptr) {
    out << util::dtype_name(node.tensor->dtype) << ' ' << shape_text(node.tensor->shape);
  } else {
    out << util::with_commas(node.tensors) << " tensors";
  }
}

}  // namespace

void write_tensor_tree(const std::vector<TensorInfo>& tensors, std::ostream& out) {
  Node root;
  for (const TensorInfo& tensor : tensors) add(root, tensor);
  size_t widest = 0;
  walk(root, "", "", [&](const std::string& label, const Node&) { widest = std::max(widest, label.size()); });
  walk(root, "", "", [&](const std::string& label, const Node& node) {
    out << label << std::string(widest - label.size() + 2, ' ');
    write_about(node, out);
    out << "  " << util::human_bytes(node.tensor != nullptr ? bytes_of(*node.tensor) : node.bytes) << '\n';
  });
}

}  // namespace fsdp::checkpoint
