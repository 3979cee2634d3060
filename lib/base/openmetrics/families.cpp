#include "base/openmetrics/families.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/util/text.h"

namespace fsdp::openmetrics {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// Returns the text before the next separator, without spaces, and removes both from `rest`.
std::string_view take_part(std::string_view& rest, char separator) {
  const size_t end = rest.find(separator);
  const std::string_view part = trimmed(rest.substr(0, end));
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return part;
}

/// Returns the weight of a part of Accept, its parameter q; 0 if the text is no number, or for a version of
/// OpenMetrics that is not written here.
double weight_of(std::string_view parameters) {
  double weight = 1;
  while (!parameters.empty()) {
    const std::string_view parameter = take_part(parameters, ';');
    if (parameter.starts_with("q=")) {
      const std::string_view number = parameter.substr(2);
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), weight);
      if (error != std::errc() || end != number.data() + number.size() || !(weight >= 0)) return 0;
    } else if (parameter.starts_with("version=") && parameter != "version=1.0.0" &&
               parameter != "version=0.0.1" && parameter != "version=0.0.4") {
      return 0;
    }
  }
  return weight;
}

std::string escaped(std::string_view text, bool also_quotes) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') {
      result += "\\n";
    } else {
      if (c == '\\' || (c == '"' && also_quotes)) result += '\\';
      result += c;
    }
  }
  return result;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

std::string labels_text(const Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    text += (text.empty() ? "" : ",") + name + "=\"" + escaped(util::printable(value), true) + '"';
  }
  return text.empty() ? text : "{" + text + "}";
}

const char* type_text(MetricType type, bool is_open) {
  switch (type) {
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kCounter:
      return "counter";
    case MetricType::kSummary:
      return "summary";
    case MetricType::kInfo:
      return is_open ? "info" : "gauge";
  }
  return "unknown";
}

const char* suffix_of(MetricType type) {
  return type == MetricType::kCounter ? "_total" : type == MetricType::kInfo ? "_info" : "";
}

}  // namespace

const char* content_type(TextFormat format) {
  return format == TextFormat::kOpenMetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                            : "text/plain; version=0.0.4; charset=utf-8";
}

TextFormat format_for(std::string_view accept) {
  double open = 0, plain = 0;
  while (!accept.empty()) {
    std::string_view parameters = take_part(accept, ',');
    const std::string_view type = take_part(parameters, ';');
    if (type == "application/openmetrics-text") {
      open = std::max(open, weight_of(parameters));
    } else if (type == "text/plain" || type == "text/*") {
      plain = std::max(plain, weight_of(parameters));
    }
  }
  return open > 0 && open >= plain ? TextFormat::kOpenMetrics : TextFormat::kPrometheus;
}

std::string text_of(const std::vector<Family>& families, TextFormat format) {
  const bool is_open = format == TextFormat::kOpenMetrics;
  std::string text;
  for (const Family& family : families) {
    if (family.samples.empty()) continue;
    const std::string sample_name = family.name + suffix_of(family.type);
    const std::string& name = is_open ? family.name : sample_name;
    text += "# HELP " + name + ' ' + escaped(family.help, is_open) + '\n';
    text += "# TYPE " + name + ' ' + type_text(family.type, is_open) + '\n';
    if (is_open && !family.unit.empty()) text += "# UNIT " + name + ' ' + family.unit + '\n';
    for (const Sample& sample : family.samples) {
      text +=
          sample_name + sample.suffix + labels_text(sample.labels) + ' ' + number_text(sample.value) + '\n';
    }
  }
  return is_open ? text + "# EOF\n" : text;
}

}  // namespace fsdp::openmetrics
