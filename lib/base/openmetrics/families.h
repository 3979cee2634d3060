#pragma once

// Metrics as text for Prometheus: OpenMetrics 1.0, and Prometheus's own text format 0.0.4, which
// node_exporter reads too.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp::openmetrics {

enum class MetricType { kGauge, kCounter, kSummary, kInfo };

using Labels = std::vector<std::pair<std::string, std::string>>;  ///< names and values

struct Sample {
  double value = 0;
  Labels labels = {};
  std::string suffix = {};  ///< "_count" or "_sum" of a summary
};

/// Samples of one name.
struct Family {
  std::string name;  ///< without the suffix of its type: "fsdp_tokens", not "fsdp_tokens_total"
  MetricType type = MetricType::kGauge;
  std::string unit;  ///< end of the name, such as "seconds"; empty: none
  std::string help;
  std::vector<Sample> samples = {};
};

enum class TextFormat { kOpenMetrics, kPrometheus };

/// Returns the value of the header Content-Type.
const char* content_type(TextFormat format);

/// Returns the format that the value of a header Accept prefers: OpenMetrics only if the header names it.
TextFormat format_for(std::string_view accept);

/// Leaves out families without samples. Values of labels may be any bytes; those that are no UTF-8, or
/// control characters, are written as \xNN.
std::string text_of(const std::vector<Family>& families, TextFormat format);

}  // namespace fsdp::openmetrics
