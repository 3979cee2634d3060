#include "checkpoint/tensor_tree.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "checkpoint/manifest.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::checkpoint {
namespace {

using nlohmann::json;

/// "layers.9." before "layers.10.".
struct NumbersInOrder {
  bool operator()(const std::string& a, const std::string& b) const {
    const bool numbers = is_number(a) && is_number(b);
    if (numbers && a.size() != b.size()) return a.size() < b.size();
    return a < b;
  }
  static bool is_number(const std::string& text) { return !text.empty() && text[0] >= '0' && text[0] <= '9'; }
};

struct Node {
  std::map<std::string, Node, NumbersInOrder> children;  ///< by the part of the name, with its separator
  const json* tensor = nullptr;
  int64_t tensors = 0, bytes = 0;
};

struct Line {
  std::string label, about;
};

void add(Node& root, const json& tensor) {
  const auto name = tensor["name"].get<std::string>();
  const auto bytes = tensor["bytes"].get<int64_t>();
  Node* node = &root;
  for (size_t begin = 0;;) {
    ++node->tensors;
    node->bytes += bytes;
    if (begin == name.size()) break;
    const size_t separator = name.find_first_of("./", begin);
    const size_t end = separator == std::string::npos ? name.size() : separator + 1;
    node = &node->children[name.substr(begin, end - begin)];
    begin = end;
  }
  node->tensor = &tensor;
}

void print(const Node& node, const std::string& label, const std::string& indent, std::vector<Line>& lines) {
  // A group of one thing is written in one line with it.
  if (node.children.size() == 1 && node.tensor == nullptr) {
    const auto& [part, only] = *node.children.begin();
    print(only, label + part, indent, lines);
    return;
  }
  if (node.tensor != nullptr) {
    const json& tensor = *node.tensor;
    lines.push_back({indent + label, util::concat(tensor["dtype"].get<std::string>(), " ",
                                                  shape_text(tensor["shape"].get<std::vector<int64_t>>()),
                                                  "  ", util::human_bytes(tensor["bytes"].get<int64_t>()))});
  } else if (!label.empty()) {
    lines.push_back({indent + label, util::concat(util::with_commas(node.tensors), " tensors  ",
                                                  util::human_bytes(node.bytes))});
  }
  const std::string deeper = label.empty() ? indent : indent + "  ";
  for (const auto& [part, child] : node.children) print(child, part, deeper, lines);
}

}  // namespace

std::string tensor_tree(const json& tensors) {
  Node root;
  for (const json& tensor : tensors) add(root, tensor);
  std::vector<Line> lines;
  print(root, "", "", lines);
  size_t widest = 0;
  for (const Line& line : lines) widest = std::max(widest, line.label.size());
  std::string text;
  for (const Line& line : lines) {
    text += util::concat(line.label, std::string(widest - line.label.size() + 2, ' '), line.about, "\n");
  }
  return text;
}

}  // namespace fsdp::checkpoint
