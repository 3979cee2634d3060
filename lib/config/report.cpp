#include "config/report.h"

#include <algorithm>

#include "util/error.h"

namespace fsdp::config {
namespace {

/// A wrong file can hold thousands; nobody reads more than these.
constexpr size_t kMaxShown = 40;

}  // namespace

void Report::add(const Source& source, const std::optional<Region>& region, const std::string& message) {
  std::string excerpt = region ? util::concat("\n", source.excerpt(*region)) : "";
  problems_.push_back(util::concat(source.where(region), ": ", message, excerpt));
}

void Report::throw_if_any() const {
  if (problems_.empty()) return;
  if (problems_.size() == 1) throw util::Error(util::ErrorKind::kUsage, problems_.front());
  std::string text = util::concat("the configuration has ", problems_.size(), " errors:");
  for (size_t i = 0; i < std::min(problems_.size(), kMaxShown); ++i) text += "\n" + problems_[i];
  if (problems_.size() > kMaxShown) text += util::concat("\nand ", problems_.size() - kMaxShown, " more");
  throw util::Error(util::ErrorKind::kUsage, text);
}

}  // namespace fsdp::config
