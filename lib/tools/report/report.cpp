#include "tools/report/report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/text.h"
#include "setup/config/load.h"
#include "setup/config/print.h"
#include "shard/units/schedule_text.h"
#include "tools/plan/plan.h"
#include "tools/report/chart.h"
#include "tools/report/curves.h"
#include "tools/report/html.h"
#include "tools/report/step_picture.h"

namespace fsdp::report {
namespace fs = std::filesystem;

namespace {

constexpr size_t kMostUnits = 8;  ///< most units shown one by one in the schedule
constexpr size_t kMostSlowRanks = 8;

/// A number that characterises a run.
struct Fact {
  std::string what;
  std::string value;
  std::string detail{};  ///< detail of the value
};

double mean_of(const std::vector<CurvePoint>& points) {
  const double sum = std::accumulate(points.begin(), points.end(), 0.0,
                                     [](double total, const CurvePoint& point) { return total + point.y; });
  return sum / static_cast<double>(points.size());
}

bool lower(const CurvePoint& a, const CurvePoint& b) { return a.y < b.y; }

/// The ranks that were named as slow, each with the steps of the first and last line that names it.
std::optional<Fact> slow_ranks(const RunRecord& run) {
  std::map<double, std::pair<double, double>> steps;
  for (const CurvePoint& named : run.values("slow_rank")) {
    const auto [span, is_new] = steps.try_emplace(named.y, named.x, named.x);
    span->second.second = named.x;
  }
  if (steps.empty()) return std::nullopt;
  std::vector<std::string> names;
  for (const auto& [rank, span] : steps) {
    names.push_back(concat(run.slow_rank_name(rank), ", steps ", util::with_commas(std::llround(span.first)),
                           " to ", util::with_commas(std::llround(span.second))));
    if (names.size() == kMostSlowRanks) break;
  }
  return Fact{"slow ranks", util::with_commas(static_cast<int64_t>(steps.size())),
              concat(": ", util::join(names, "; "), names.size() < steps.size() ? "; and others" : "")};
}

/// The facts about a run. Facts without a value are left out.
std::vector<Fact> facts(const RunRecord& run) {
  std::vector<Fact> found;
  auto whole = [](double number) { return util::with_commas(static_cast<int64_t>(number)); };
  if (const auto& loss = run.values("loss"); !loss.empty()) {
    found.push_back({"steps", whole(loss.back().x)});
    found.push_back({"training loss, last step", util::fixed(loss.back().y, 4)});
  }
  if (const auto& losses = run.values("validation_loss"); !losses.empty()) {
    const CurvePoint best = *std::min_element(losses.begin(), losses.end(), lower);
    found.push_back({"best validation loss", util::fixed(best.y, 4), concat(", at step ", whole(best.x))});
  }
  for (const auto& [name, values] : run.series) {
    if (!name.starts_with("task/") || name.ends_with("_stderr")) continue;
    const auto& errors = run.values(name + "_stderr");
    found.push_back({name, util::fixed(values.back().y, 4),
                     errors.empty() ? "" : concat(" +- ", util::fixed(errors.back().y, 4))});
  }
  if (const auto& tokens = run.values("tokens"); !tokens.empty()) {
    found.push_back({"tokens seen", value_text(tokens.back().y, Scale::kNumber)});
  }
  if (const auto& speed = run.values("tokens_per_second"); !speed.empty()) {
    found.push_back({"tokens per second, mean", value_text(std::round(mean_of(speed)), Scale::kNumber)});
  }
  if (const auto& mfu = run.values("mfu"); !mfu.empty()) {
    std::string with_recomputation;
    if (const auto& hfu = run.values("hfu"); !hfu.empty() && mean_of(hfu) != mean_of(mfu)) {
      with_recomputation = concat(", ", util::fixed(100 * mean_of(hfu), 1), "% with recomputation");
    }
    found.push_back(
        {"model FLOPs utilisation, mean", util::fixed(100 * mean_of(mfu), 1) + "%", with_recomputation});
  }
  if (const auto& memory = run.values("peak_memory_bytes"); !memory.empty()) {
    found.push_back({"peak memory of process 0",
                     value_text(std::max_element(memory.begin(), memory.end(), lower)->y, Scale::kBytes)});
  }
  if (const auto slow = slow_ranks(run)) found.push_back(*slow);
  return found;
}

std::string tiles(const RunRecord& run) {
  std::string text;
  for (const Fact& fact : facts(run)) {
    text += concat("<div class=\"card\"><b>", escaped(fact.value), "</b><span>", escaped(fact.what),
                   escaped(fact.detail), "</span></div>\n");
  }
  return text.empty() ? "" : concat("<div class=\"tiles\">\n", text, "</div>\n");
}

std::string timeline(const RunRecord& run) {
  if (!run.trace) return "";
  const std::string title = concat("Step ", run.trace->step, " on one process");
  const std::string picture = step_picture(comm::tracks_of(run.trace->events), {.title = title});
  if (picture.empty()) return "";
  return concat("<figure class=\"card wide\"><h2>", title, "</h2>", picture, "<p class=\"note\">From ",
                escaped(run.trace->file), ". A bar lasts from the start of a collective to its result.",
                run.skipped_trace_lines > 0 ? concat(" ", util::with_commas(run.skipped_trace_lines),
                                                     " lines of it could not be read.")
                                            : "",
                "</p></figure>\n");
}

/// The schedule of the run's config. Empty if the folder does not determine it, for example for a run of
/// another version.
std::string schedule(const RunRecord& run) {
  const auto ranks = std::find_if(run.environment.begin(), run.environment.end(),
                                  [](const auto& entry) { return entry.first == "ranks"; });
  if (run.config.empty() || ranks == run.environment.end()) return "";
  try {
    const config::Config config = config::load_resolved_config(run.folder / "config.toml");
    const int world_size = std::max(1, std::atoi(ranks->second.c_str()));
    const auto units = plan::planned_units(config, comm::resolve_mesh(config.mesh, world_size));
    const std::string text = schedule_text(units, config::shard_options(config), kMostUnits);
    return concat("<section class=\"card wide\"><h2>Schedule of a micro-batch</h2><pre>", escaped(text),
                  "</pre></section>\n");
  } catch (const util::Error&) {
    return "";
  }
}

std::string texts(const RunRecord& run) {
  std::string text;
  if (!run.environment.empty()) {
    text += "<section class=\"card\"><h2>Environment</h2><table class=\"pairs\">";
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

fs::path normal(const fs::path& folder) {
  const fs::path path = folder.lexically_normal();
  return path.filename().empty() ? path.parent_path() : path;
}

std::string table_row(const char* cell, const std::string& first, const std::vector<std::string>& others) {
  std::string row = concat("<tr><", cell, ">", first, "</", cell, ">");
  for (const std::string& other : others) row += concat("<", cell, ">", escaped(other), "</", cell, ">");
  return row + "</tr>\n";
}

std::string facts_table(const std::vector<RunRecord>& runs, const std::vector<std::string>& names) {
  std::vector<std::string> columns;
  for (const RunRecord& run : runs) {
    for (const Fact& fact : facts(run)) {
      if (std::find(columns.begin(), columns.end(), fact.what) == columns.end()) columns.push_back(fact.what);
    }
  }
  std::string rows = table_row("th", "run", columns);
  for (size_t i = 0; i < runs.size(); ++i) {
    std::vector<std::string> cells(columns.size());
    for (const Fact& fact : facts(runs[i])) {
      const auto column = std::find(columns.begin(), columns.end(), fact.what) - columns.begin();
      cells[static_cast<size_t>(column)] = fact.value + fact.detail;
    }
    rows += table_row("td", swatch(i) + escaped(names[i]), cells);
  }
  return concat("<section class=\"card wide first runs\"><table>", rows, "</table></section>\n");
}

/// A table with a column for each run whose config can be read, and a row for each key that differs among the
/// runs.
std::string config_table(const std::vector<RunRecord>& runs, const std::vector<std::string>& names) {
  std::vector<std::vector<std::pair<std::string, std::string>>> configs;
  std::vector<std::string> columns, unread;
  for (size_t i = 0; i < runs.size(); ++i) {
    try {
      configs.push_back(config::key_texts(config::load_resolved_config(runs[i].folder / "config.toml")));
      columns.push_back(names[i]);
    } catch (const util::Error&) {
      unread.push_back(names[i]);
    }
  }
  std::string rows;
  for (size_t key = 0; !configs.empty() && key < configs.front().size(); ++key) {
    if (configs.front()[key].first == "run.output_dir") continue;
    std::vector<std::string> values;
    for (const auto& config : configs) values.push_back(config[key].second);
    if (std::set(values.begin(), values.end()).size() > 1) {
      rows += table_row("td", escaped(configs.front()[key].first), values);
    }
  }
  const std::string table =
      rows.empty() ? "" : concat("<table>", table_row("th", "key", columns), rows, "</table>");
  const std::string note = unread.empty()
                               ? ""
                               : concat("<p class=\"note\">The config.toml of ",
                                        escaped(util::join(unread, ", ")), " could not be read.</p>");
  return concat("<section class=\"card wide\"><h2>",
                table.empty() ? "No config key differs" : "Config keys that differ", "</h2>", table, note,
                "</section>\n");
}

/// Short and distinct names of the runs: names of folders, or whole paths.
std::vector<std::string> names_of(const std::vector<RunRecord>& runs) {
  std::vector<std::string> names, paths;
  for (const RunRecord& run : runs) {
    paths.push_back(util::printable(normal(run.folder).string()));
    names.push_back(util::printable(normal(run.folder).filename().string()));
  }
  return std::set(names.begin(), names.end()).size() == names.size() ? names : paths;
}

std::string subtitle_of(const RunRecord& run) {
  std::string text = escaped(util::printable(normal(run.folder).string()));
  if (run.skipped_lines > 0) {
    text += concat(" &middot; ", util::with_commas(run.skipped_lines),
                   " lines of metrics.jsonl could not be read");
  }
  return text;
}

}  // namespace

std::string html_page(const std::vector<RunRecord>& runs) {
  const std::vector<std::string> names = names_of(runs);
  if (runs.size() == 1) {
    const RunRecord& run = runs.front();
    return html_document(names.front(), subtitle_of(run),
                         tiles(run) + charts(runs, names) + timeline(run) + schedule(run) + texts(run));
  }
  std::vector<std::string> subtitles;
  for (const RunRecord& run : runs) subtitles.push_back(subtitle_of(run));
  return html_document(concat(runs.size(), " runs"), util::join(subtitles, "<br>"),
                       facts_table(runs, names) + charts(runs, names) + config_table(runs, names));
}

fs::path write_report(const std::vector<fs::path>& folders, const fs::path& output) {
  if (folders.size() > kMostCurves) {
    fail(ErrorKind::kUsage, "at most ", kMostCurves,
         " runs can be compared, so that their curves remain distinguishable, but ", folders.size(),
         " are given; compare fewer");
  }
  std::vector<RunRecord> runs;
  for (const fs::path& folder : folders) runs.push_back(read_run(folder));
  fs::path path = output;
  if (path.empty()) path = folders.size() == 1 ? folders.front() / "report.html" : "comparison.html";
  util::write_file_atomically(path, html_page(runs));
  return path;
}

}  // namespace fsdp::report
