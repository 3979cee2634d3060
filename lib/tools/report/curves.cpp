#include "tools/report/curves.h"

#include <algorithm>

#include "base/util/error.h"
#include "tools/report/chart.h"
#include "tools/report/html.h"

namespace fsdp::report {

namespace {

struct MetricNumber {
  const char* key;  ///< key in metrics.jsonl
  const char* name;
};

/// Numbers that share a chart in the report of one run.
struct ChartSubject {
  const char* title;
  std::vector<MetricNumber> numbers;
  Scale scale = Scale::kNumber;
  bool from_zero = true;
};

const std::vector<ChartSubject>& subjects() {
  static const std::vector<ChartSubject> kSubjects = {
      {"Loss (nats per token)",
       {{"loss", "training"}, {"validation_loss", "validation"}},
       Scale::kNumber,
       false},
      {"Gradient norm, before clipping", {{"grad_norm", "gradient norm"}}},
      {"Learning rate", {{"lr", "learning rate"}}},
      {"Tokens per second, all processes", {{"tokens_per_second", "tokens per second"}}},
      {"Peak memory of process 0", {{"peak_memory_bytes", "peak memory"}}, Scale::kBytes},
      {"FLOPs utilisation", {{"mfu", "of the model"}, {"hfu", "of the hardware"}}, Scale::kPercent},
      {"Time of the slowest rank, relative to the others",
       {{"slowest_rank_factor", "slowest rank"}},
       Scale::kNumber,
       false},
      {"Loss scale", {{"loss_scale", "loss scale"}}, Scale::kNumber, false}};
  return kSubjects;
}

/// A card with a chart. Empty if no curve has points. Curves keep their colours.
std::string card(const std::string& title, const std::string& legend, const std::vector<Curve>& curves,
                 const ChartOptions& options) {
  const std::string chart = line_chart(curves, options);
  if (chart.empty()) return "";
  return concat("<figure class=\"card\"><h2>", legend, escaped(title), "</h2>", chart, "</figure>\n");
}

std::string charts_of_one(const RunRecord& run) {
  std::string text;
  for (const ChartSubject& subject : subjects()) {
    std::vector<Curve> curves;
    for (const MetricNumber& number : subject.numbers)
      curves.push_back({number.name, run.values(number.key)});
    std::string legend;
    if (std::count_if(curves.begin(), curves.end(),
                      [](const Curve& curve) { return !curve.points.empty(); }) > 1) {
      for (size_t i = 0; i < curves.size(); ++i) {
        legend += concat("<span class=\"legend\">", swatch(curves.size() - 1 - i),
                         // Reversed, because they float to the right.
                         escaped(curves[curves.size() - 1 - i].name), "</span>");
      }
    }
    text += card(subject.title, legend, curves,
                 {.label = concat(subject.title, " over steps"),
                  .scale = subject.scale,
                  .from_zero = subject.from_zero});
  }
  return text;
}

std::vector<CurvePoint> loss_over_tokens(const RunRecord& run) {
  std::vector<CurvePoint> points;
  auto token = run.values("tokens").begin();
  for (const CurvePoint& loss : run.values("loss")) {
    while (token != run.values("tokens").end() && token->x < loss.x) ++token;
    if (token == run.values("tokens").end()) break;
    if (token->x == loss.x) points.push_back({token->y / 1e6, loss.y});
  }
  return points;
}

/// The loss over the minutes spent in steps. Validations and saves are not counted.
std::vector<CurvePoint> loss_over_minutes(const RunRecord& run) {
  std::vector<CurvePoint> points;
  double minutes = 0, before = 0;
  auto seconds = run.values("step_seconds").begin();
  for (const CurvePoint& loss : run.values("loss")) {
    while (seconds != run.values("step_seconds").end() && seconds->x < loss.x) ++seconds;
    if (seconds == run.values("step_seconds").end()) break;
    minutes += (loss.x - before) * seconds->y / 60;  // seconds is the mean since the line before
    before = loss.x;
    points.push_back({minutes, loss.y});
  }
  return points;
}

std::string charts_of_several(const std::vector<RunRecord>& runs, const std::vector<std::string>& names) {
  auto of_each = [&](const auto& points_of) {
    std::vector<Curve> curves;
    for (size_t i = 0; i < runs.size(); ++i) curves.push_back({names[i], points_of(runs[i])});
    return curves;
  };
  std::string text;
  for (const ChartSubject& subject : subjects()) {
    for (const MetricNumber& number : subject.numbers) {
      const std::string title =
          subject.numbers.size() == 1 ? subject.title : concat(subject.title, ", ", number.name);
      text += card(
          title, "", of_each([&](const RunRecord& run) { return run.values(number.key); }),
          {.label = concat(title, " over steps"), .scale = subject.scale, .from_zero = subject.from_zero});
    }
    if (&subject != &subjects().front()) continue;
    text += card("Training loss over millions of tokens", "", of_each(loss_over_tokens),
                 {.label = "training loss over millions of tokens", .x_is_step = false});
    text += card("Training loss over minutes of training", "", of_each(loss_over_minutes),
                 {.label = "training loss over minutes of training", .x_is_step = false});
  }
  return text;
}

}  // namespace

std::string swatch(size_t curve) {
  return concat("<svg class=\"swatch\" viewBox=\"0 0 30 8\" aria-hidden=\"true\"><path class=\"curve c",
                curve, "\" d=\"M0 4H30\"/></svg>");
}

std::string charts(const std::vector<RunRecord>& runs, const std::vector<std::string>& names) {
  const std::string text = runs.size() == 1 ? charts_of_one(runs.front()) : charts_of_several(runs, names);
  return text.empty() ? "<p class=\"card\">No step has been logged yet.</p>\n"
                      : concat("<div class=\"charts\">\n", text, "</div>\n");
}

}  // namespace fsdp::report
