#include "run/train/progress.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/limits.h"
#include "base/util/log.h"
#include "base/util/text.h"

namespace fsdp::train {
namespace {

constexpr std::chrono::seconds kTick{1};
/// Time after which the bar shows how long something is under way.
constexpr double kSlowSeconds = 2;
/// The bar itself, with brackets and margin; of the fields, those up to this rank outlast it in a narrow
/// terminal.
constexpr size_t kSmallestBar = 7;
constexpr int kMoreThanABar = 1;

/// Returns "43.2%" for 0.4321.
std::string percent(double share) { return util::fixed(100 * share, 1) + "%"; }

std::string rate_text(double lr) {
  return lr == 0 || std::abs(lr) >= 1e-4 ? util::fixed(lr, 6) : util::printed("%.1e", lr);
}

}  // namespace

Progress::Progress(ProgressOutput output, int64_t total_steps) : output_(output), total_steps_(total_steps) {
  if (output_.stream == nullptr || output_.columns <= 0) return;
  ticker_ = util::start_thread([this] {
    std::unique_lock lock(mutex_);
    while (!end_.wait_for(lock, kTick, [this] { return ends_; })) {
      lock.unlock();
      tick(Clock::now());
      lock.lock();
    }
  });
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    if (ticked_) *output_.stream << "\033[K" << std::flush;
  }
  end_.notify_all();
  if (ticker_.joinable()) ticker_.join();
}

void Progress::set_total_steps(int64_t total_steps) {
  const std::lock_guard lock(mutex_);
  total_steps_ = total_steps;
}

void Progress::begin(std::string what, int64_t steps_done, Clock::time_point now) {
  if (output_.stream == nullptr || output_.columns <= 0) return;
  const std::lock_guard lock(mutex_);
  under_way_ = std::move(what);
  steps_done_ = steps_done;
  begun_ = now;
}

void Progress::show(const StepMetrics& metrics, Clock::time_point now) {
  if (output_.stream == nullptr) return;
  const std::lock_guard lock(mutex_);
  last_ = metrics;
  if (metrics.eta_seconds) ends_at_ = now + util::duration_of(*metrics.eta_seconds);
  if (output_.columns > 0) {
    shown_ = bar(metrics.step, "", now);
    ticked_ = false;
    util::draw_over(*output_.stream, shown_);
    return;
  }
  std::string line = concat(util::log_line_begin(), "step ", metrics.step, '/', total_steps_);
  for (const Field& field : fields(now)) line += "  " + field.text;
  *output_.stream << line << std::endl;
}

void Progress::show_unlogged(int64_t step, double step_seconds, double seconds_left, int64_t next_line,
                             Clock::time_point now) {
  if (output_.stream == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (output_.columns <= 0 && !ends_at_) {
    *output_.stream << concat(util::log_line_begin(), "step ", step, '/', total_steps_, "  took ",
                              util::fixed(step_seconds, 2), "s  ETA ", util::human_duration(seconds_left),
                              "  next line after step ", next_line)
                    << std::endl;
  }
  ends_at_ = now + util::duration_of(seconds_left);
}

void Progress::tick(Clock::time_point now) {
  if (output_.stream == nullptr || output_.columns <= 0) return;
  const std::lock_guard lock(mutex_);
  if (ends_ || under_way_.empty()) return;
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  const std::string since =
      seconds < kSlowSeconds ? "" : concat(under_way_, " for ", util::human_duration(seconds));
  util::draw_over(*output_.stream, bar(steps_done_, since, now));
  ticked_ = true;
}

void Progress::finish_line() {
  if (output_.stream == nullptr) return;
  const std::lock_guard lock(mutex_);
  under_way_.clear();
  if (!shown_.empty()) {
    *output_.stream << concat("\033[K", shown_, "\n") << std::flush;
  } else if (ticked_) {
    *output_.stream << "\033[K" << std::flush;
  }
  shown_.clear();
  ticked_ = false;
}

std::vector<Progress::Field> Progress::fields(Clock::time_point now) const {
  std::vector<Field> fields;
  if (last_) fields.push_back({0, concat("loss ", util::fixed(last_->loss, 4))});
  if (last_ && last_->last_loss) fields.push_back({9, concat("last ", util::fixed(*last_->last_loss, 4))});
  if (last_ && last_->is_cross_entropy) {
    fields.push_back({8, concat("ppl ", util::fixed(std::exp(last_->loss), 2))});
  }
  for (const auto& [name, value] : last_ ? last_->of_objective : NamedNumbers{}) {
    if (name == "rewards/margins") fields.push_back({8, concat("margin ", util::fixed(value, 4))});
    if (name == "rewards/accuracies") fields.push_back({9, concat("accuracy ", percent(value))});
  }
  if (ends_at_) {
    const double seconds = std::chrono::duration<double>(*ends_at_ - now).count();
    fields.push_back({1, concat("ETA ", util::human_duration(std::max(seconds, 0.0)))});
  }
  if (!last_) return fields;
  const StepMetrics& metrics = *last_;
  const std::vector<Field> numbers{
      {2, concat(util::with_commas(std::llround(metrics.tokens_per_second)), " tok/s")},
      {4, concat("norm ", util::fixed(metrics.grad_norm, 2))},
      {3, concat("lr ", rate_text(metrics.lr))},
      {6, util::human_bytes(metrics.gpu ? metrics.gpu->peak_reserved_bytes : metrics.peak_memory_bytes)}};
  fields.insert(fields.end(), numbers.begin(), numbers.end());
  if (metrics.mfu) {
    // Without recomputation, mfu and hfu are equal in every line.
    const bool differ = metrics.hfu && *metrics.hfu != *metrics.mfu;
    fields.push_back(
        {5, concat("mfu ", percent(*metrics.mfu), differ ? concat("  hfu ", percent(*metrics.hfu)) : "")});
  }
  if (metrics.step_seconds > 0) {
    fields.push_back({7, concat("data ", percent(metrics.data_wait_seconds / metrics.step_seconds))});
  }
  if (metrics.loss_scale) fields.push_back({10, concat("scale ", *metrics.loss_scale)});
  if (metrics.skipped_steps) fields.push_back({11, concat("skipped ", *metrics.skipped_steps)});
  return fields;
}

std::string Progress::bar(int64_t steps_done, const std::string& under_way, Clock::time_point now) const {
  const std::string head = concat(steps_done, "/", total_steps_);
  const size_t room = static_cast<size_t>(std::max(output_.columns - 1, 0));
  if (head.size() > room) return "";
  std::vector<Field> parts = fields(now);
  if (!under_way.empty()) parts.insert(parts.begin(), {-1, under_way});
  // Fields in the order of their ranks up to the first that does not fit, so that no field comes and goes
  // with the width of another.
  std::vector<int> ranks;
  for (const Field& part : parts) ranks.push_back(part.rank);
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (const int last : ranks) {
    std::string longer;
    for (const Field& part : parts) {
      if (part.rank <= last) longer += (longer.empty() ? " " : "  ") + part.text;
    }
    if (head.size() + longer.size() + (last > kMoreThanABar ? kSmallestBar : 0) > room) break;
    text = std::move(longer);
  }
  const double share =
      static_cast<double>(steps_done) / static_cast<double>(std::max<int64_t>(total_steps_, 1));
  return util::bar_line(head + (text.size() + head.size() + kSmallestBar <= room ? " " : ""), share, text,
                        output_.columns);
}

}  // namespace fsdp::train
