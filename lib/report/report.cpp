#include "report/report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>

#include "config/load.h"
#include "plan/plan.h"
#include "report/chart.h"
#include "report/style.h"
#include "shard/schedule_text.h"
#include "util/error.h"
#include "util/file.h"
#include "util/text.h"

namespace fsdp::report {

using util::concat;

std::string escaped(std::string_view text) {
  static const std::map<char, std::string> kEntities = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string out;
  for (const char c : text) {
    const auto entity = kEntities.find(c);
    entity == kEntities.end() ? out += c : out += entity->second;
  }
  return out;
}

namespace {

constexpr size_t kMostUnits = 8;  ///< shown one by one in the schedule

std::string tile(const std::string& number, const std::string& what) {
  return concat("<div class=\"card\"><b>", escaped(number), "</b><span>", escaped(what), "</span></div>\n");
}

double mean_of(const std::vector<Point>& points) {
  const double sum = std::accumulate(points.begin(), points.end(), 0.0,
                                     [](double total, const Point& point) { return total + point.y; });
  return sum / static_cast<double>(points.size());
}

bool lower(const Point& a, const Point& b) { return a.y < b.y; }

/// The run in a few numbers; those without a value are left out.
std::string tiles(const RunRecord& run) {
  std::string text;
  if (const auto& loss = run.values("loss"); !loss.empty()) {
    text += tile(util::with_commas(static_cast<int64_t>(loss.back().x)), "steps");
    text += tile(util::fixed(loss.back().y, 4), "training loss, last step");
  }
  if (const auto& losses = run.values("validation_loss"); !losses.empty()) {
    const Point best = *std::min_element(losses.begin(), losses.end(), lower);
    text += tile(util::fixed(best.y, 4),
                 concat("best validation loss, at step ", util::with_commas(static_cast<int64_t>(best.x))));
  }
  if (const auto& tokens = run.values("tokens"); !tokens.empty()) {
    text += tile(value_text(tokens.back().y, Scale::kNumber), "tokens seen");
  }
  if (const auto& speed = run.values("tokens_per_second"); !speed.empty()) {
    text += tile(value_text(std::round(mean_of(speed)), Scale::kNumber), "tokens a second, mean");
  }
  if (const auto& mfu = run.values("mfu"); !mfu.empty()) {
    text += tile(util::fixed(100 * mean_of(mfu), 1) + "%", "model FLOPs utilisation, mean");
  }
  if (const auto& memory = run.values("peak_memory_bytes"); !memory.empty()) {
    text += tile(value_text(std::max_element(memory.begin(), memory.end(), lower)->y, Scale::kBytes),
                 "peak memory of process 0");
  }
  return text.empty() ? "" : concat("<div class=\"tiles\">\n", text, "</div>\n");
}

/// A card with a chart, and a legend where two curves have points; empty where none has.
std::string card(const std::string& title, std::vector<Curve> curves, const ChartOptions& options) {
  std::erase_if(curves, [](const Curve& curve) { return curve.points.empty(); });
  const std::string chart = line_chart(curves, options);
  if (chart.empty()) return "";
  std::string legend;
  for (size_t i = 0; i < curves.size() && curves.size() > 1; ++i) {
    legend += concat("<i style=\"background:var(--c", i, ")\"></i>", escaped(curves[i].name));
  }
  return concat("<figure class=\"card\" style=\"margin:0\"><h2>", escaped(title), "<span class=\"legend\">",
                legend, "</span></h2>", chart, "</figure>\n");
}

std::string charts(const RunRecord& run) {
  auto curve = [&](const char* name, const char* says) { return Curve{says, run.values(name)}; };
  std::string text;
  text += card("Loss (nats a token)", {curve("loss", "training"), curve("validation_loss", "validation")},
               {.label = "loss over steps"});
  text += card("Gradient norm, before clipping", {curve("grad_norm", "gradient norm")},
               {.label = "gradient norm over steps", .from_zero = true});
  text += card("Learning rate", {curve("lr", "learning rate")},
               {.label = "learning rate over steps", .from_zero = true});
  text += card("Tokens a second, all processes", {curve("tokens_per_second", "tokens a second")},
               {.label = "tokens a second over steps", .from_zero = true});
  text += card("Peak memory of process 0", {curve("peak_memory_bytes", "peak memory")},
               {.label = "peak memory over steps", .scale = Scale::kBytes, .from_zero = true});
  text += card("Model FLOPs utilisation", {curve("mfu", "utilisation")},
               {.label = "model FLOPs utilisation over steps", .scale = Scale::kPercent, .from_zero = true});
  text += card("Loss scale", {curve("loss_scale", "loss scale")}, {.label = "loss scale over steps"});
  return text.empty() ? "<p class=\"card\">No step was logged so far.</p>\n"
                      : concat("<div class=\"charts\">\n", text, "</div>\n");
}

std::string timeline(const RunRecord& run) {
  if (!run.trace) return "";
  const std::string chart = timeline_chart(*run.trace);
  if (chart.empty()) return "";
  auto key = [](const char* colour, const char* says) {
    return concat("<i style=\"background:var(--", colour, ")\"></i>", says);
  };
  return concat(
      "<figure class=\"card wide\" "
      "style=\"margin-left:0;margin-right:0;margin-bottom:0\"><h2>Communication of step ",
      run.trace->step, "<span class=\"legend\">", key("gather", "all-gather"),
      key("reduce", "reduce-scatter"), key("other", "other"), key("waited", "the process waited for it"),
      key("held", "parameters gathered"), "</span></h2>", chart, "<p class=\"note\">From ",
      escaped(run.trace->file), ". A bar lasts from the start of a collective to its result.",
      run.skipped_trace_lines > 0
          ? concat(" ", util::with_commas(run.skipped_trace_lines), " lines of it could not be read.")
          : "",
      "</p></figure>\n");
}

/// The schedule of the run's config; empty where it cannot be told from the folder, as of a run of another
/// version.
std::string schedule(const RunRecord& run) {
  const auto ranks = std::find_if(run.environment.begin(), run.environment.end(),
                                  [](const auto& entry) { return entry.first == "ranks"; });
  if (run.config.empty() || ranks == run.environment.end()) return "";
  try {
    const config::Config config = config::load_resolved_config(run.folder / "config.toml");
    const int world_size = std::max(1, std::atoi(ranks->second.c_str()));
    const auto units = plan::planned_units(config, comm::resolve_mesh(config.mesh, world_size));
    const std::string text = schedule_text(units, config::shard_options(config), kMostUnits);
    return concat("<section class=\"card\"><h2>Schedule of a micro-batch</h2><pre>", escaped(text),
                  "</pre></section>\n");
  } catch (const util::Error&) {
    return "";
  }
}

std::string texts(const RunRecord& run) {
  std::string text;
  if (!run.environment.empty()) {
    text += "<section class=\"card\"><h2>Environment</h2><table>";
    for (const auto& [name, value] : run.environment) {
      text += concat("<tr><td>", escaped(name), "</td><td>", escaped(value), "</td></tr>");
    }
    text += "</table></section>\n";
  }
  if (!run.config.empty()) {
    text += concat("<section class=\"card\"><h2>Config</h2><pre>", escaped(run.config), "</pre></section>\n");
  }
  return text.empty() ? "" : concat("<div class=\"texts\">\n", text, "</div>\n");
}

}  // namespace

std::string html_page(const RunRecord& run) {
  std::filesystem::path folder = run.folder.lexically_normal();
  if (folder.filename().empty()) folder = folder.parent_path();
  const std::string name = escaped(util::printable(folder.filename().string()));
  std::string page =
      concat("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>", name,
             "</title>\n<style>", kStyle, "</style>\n</head>\n<body>\n<main>\n<h1>", name,
             "</h1>\n<p class=\"sub\">", escaped(util::printable(folder.string())));
  if (run.skipped_lines > 0) {
    page += concat(" &middot; ", util::with_commas(run.skipped_lines),
                   " lines of metrics.jsonl could not be read");
  }
  page += "</p>\n";
  return page + tiles(run) + charts(run) + timeline(run) + schedule(run) + texts(run) +
         "</main>\n</body>\n</html>\n";
}

std::filesystem::path write_report(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "report.html";
  util::write_file_atomically(path, html_page(read_run(folder)));
  return path;
}

}  // namespace fsdp::report
