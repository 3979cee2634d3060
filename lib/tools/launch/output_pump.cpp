#include "tools/launch/output_pump.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/util/error.h"
#include "base/util/log.h"
#include "tools/launch/worker_environment.h"

namespace fsdp::launch {
namespace {

/// The largest length <= `limit` at which `text` can be cut between UTF-8 characters.
size_t cut_before(std::string_view text, size_t limit) {
  constexpr size_t kLongestCharacter = 4;
  for (size_t back = 0; back < std::min(limit, kLongestCharacter); ++back) {
    const auto next = static_cast<unsigned char>(text[limit - back]);
    if ((next & 0xC0) != 0x80) return limit - back;
  }
  return limit;  // not UTF-8
}

constexpr std::chrono::milliseconds kPause{400};
constexpr size_t kLastLines = 8;
constexpr size_t kLastLineBytes = 400;

}  // namespace

void LineSplitter::feed(std::string_view bytes, const OnLine& on_line) {
  while (!bytes.empty()) {
    if (after_return_) {
      if (bytes.front() == '\n' || bytes.front() == '\r') {
        if (bytes.front() == '\n') complete(on_line);
        bytes.remove_prefix(1);
        continue;
      }
      after_return_ = false;
      replaces_transient_ = true;
      line_.clear();
    }
    const size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    while (line_.size() > longest_line_bytes_) {
      const size_t cut = cut_before(line_, longest_line_bytes_);
      on_line(std::string_view(line_).substr(0, cut));
      line_.erase(0, cut);
    }
    if (end == std::string_view::npos) return;
    if (bytes[end] == '\n') {
      complete(on_line);
    } else {
      after_return_ = true;
    }
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::finish(const OnLine& on_line) {
  if (!after_return_ && !line_.empty()) complete(on_line);
  line_.clear();
  after_return_ = replaces_transient_ = false;
}

void LineSplitter::complete(const OnLine& on_line) {
  on_line(line_);
  line_.clear();
  after_return_ = replaces_transient_ = false;
}

RankLog::RankLog(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a named pipe without a reader would block.
  file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644));
  struct stat info;
  if (!file_.is_open() || ::fstat(file_.get(), &info) != 0) {
    fail(ErrorKind::kIo, "cannot open the log file ", path_.string(), ": ", util::errno_text(errno),
         "; choose another --log-dir");
  }
  if (!S_ISREG(info.st_mode)) {
    fail(ErrorKind::kIo, "expected a regular file at ", path_.string(),
         ", found something else; remove it or choose another --log-dir");
  }
}

void RankLog::line(std::string_view text) {
  if (!file_.is_open()) return;
  buffer_ += text;
  buffer_ += '\n';
}

void RankLog::flush() {
  for (size_t done = 0; done < buffer_.size() && file_.is_open();) {
    const ssize_t count = ::write(file_.get(), buffer_.data() + done, buffer_.size() - done);
    if (count >= 0) {
      done += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      util::log_warning(concat("cannot write ", path_.string(), ": ", util::errno_text(errno),
                               "; the run continues without this file"));
      file_.close();
    }
  }
  buffer_.clear();
}

OutputPump::OutputPump(Console& console, const std::vector<OutputPlan>& plans) : console_(console) {
  for (const OutputPlan& plan : plans) {
    WorkerOutput& worker = workers_.emplace_back();
    worker.prefix = line_prefix(plan.rank);
    worker.out.on_console = plan.out.on_console;
    worker.err.on_console = plan.err.on_console;
    if (!plan.out.file.empty()) worker.out.log = std::make_shared<RankLog>(plan.out.file);
    if (plan.err.file == plan.out.file) {
      worker.err.log = worker.out.log;
    } else if (!plan.err.file.empty()) {
      worker.err.log = std::make_shared<RankLog>(plan.err.file);
    }
  }
}

void OutputPump::attach(int index, Descriptor out, Descriptor err) {
  std::erase_if(streams_, [](const auto& stream) { return !stream->pipe.is_open(); });
  // A pointer here may point to a stream that was just removed.
  polled_.clear();
  WorkerOutput* worker = &workers_[static_cast<size_t>(index)];
  const auto add = [&](WorkerOutput::Sink& sink, ConsoleStream& console, Descriptor pipe) {
    streams_.push_back(
        std::make_unique<WorkerStream>(WorkerStream{worker, &sink, &console, std::move(pipe)}));
  };
  add(worker->out, console_.out(), std::move(out));
  add(worker->err, console_.err(), std::move(err));
}

void OutputPump::worker_ended(int index) {
  for (const auto& each : streams_) {
    WorkerStream& stream = *each;
    const bool is_its = stream.worker == &workers_[static_cast<size_t>(index)];
    if (!is_its || !stream.pipe.is_open() || stream.left_bytes) continue;
    int bytes = 0;
    if (::ioctl(stream.pipe.get(), FIONREAD, &bytes) != 0) bytes = 0;
    stream.left_bytes = static_cast<size_t>(bytes);
    if (bytes == 0) finish(stream);
  }
}

bool OutputPump::is_done() const {
  return std::ranges::none_of(streams_, [](const auto& stream) { return stream->pipe.is_open(); });
}

void OutputPump::add_poll_entries(std::vector<pollfd>& entries) {
  first_entry_ = entries.size();
  polled_.clear();
  for (const auto& stream : streams_) {
    if (!stream->pipe.is_open() || (stream->sink->on_console && !stream->console->takes_lines())) continue;
    entries.push_back({stream->pipe.get(), POLLIN, 0});
    polled_.push_back(stream.get());
  }
}

void OutputPump::read_ready(const std::vector<pollfd>& entries) {
  for (size_t i = 0; i < polled_.size(); ++i) {
    // A worker that ended after poll() may have finished its stream.
    if (entries[first_entry_ + i].revents != 0 && polled_[i]->pipe.is_open()) read(*polled_[i]);
  }
}

void OutputPump::read(WorkerStream& stream) {
  std::array<char, 64 << 10> buffer;
  const size_t limit = std::min(buffer.size(), stream.left_bytes.value_or(buffer.size()));
  const ssize_t count = ::read(stream.pipe.get(), buffer.data(), limit);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return finish(stream);

  stream.splitter.feed({buffer.data(), static_cast<size_t>(count)},
                       [&](std::string_view line) { pass_on(stream, line); });
  stream.changed_at = Clock::now();
  if (stream.splitter.is_transient()) {
    stream.shown_bytes = 0;
    if (stream.sink->on_console) {
      stream.console->transient(stream.worker->prefix, stream.splitter.unfinished());
    }
  }
  if (stream.sink->log) stream.sink->log->flush();
  if (stream.left_bytes) {
    *stream.left_bytes -= static_cast<size_t>(count);
    if (*stream.left_bytes == 0) finish(stream);
  }
}

void OutputPump::finish(WorkerStream& stream) {
  stream.splitter.finish([&](std::string_view line) { pass_on(stream, line); });
  if (stream.sink->log) stream.sink->log->flush();
  stream.pipe.close();
}

void OutputPump::pass_on(WorkerStream& stream, std::string_view line) {
  WorkerOutput::Sink& sink = *stream.sink;
  if (sink.on_console) {
    // Other text may have replaced the beginning that was shown.
    if (stream.splitter.replaces_transient()) stream.console->abandon(&stream);
    stream.console->line(&stream, stream.worker->prefix, line);
  }
  stream.shown_bytes = 0;
  if (sink.log) sink.log->line(line);
  sink.last_lines.emplace_back(line.substr(0, kLastLineBytes))
      .append(line.size() > kLastLineBytes ? "..." : "");
  if (sink.last_lines.size() > kLastLines) sink.last_lines.pop_front();
}

bool OutputPump::has_more_to_show(const WorkerStream& stream) {
  if (!stream.sink->on_console) return false;
  const LineSplitter& splitter = stream.splitter;
  if (splitter.is_transient() || splitter.unfinished().size() <= stream.shown_bytes) return false;
  if (stream.console->is_terminal()) return true;
  // In pipes and files, a line that was broken off is not shown again before its end. Otherwise the line of a
  // slow writer of dots would be repeated for each dot.
  return !splitter.replaces_transient() &&
         (stream.shown_bytes == 0 || stream.console->is_continuing(&stream));
}

int OutputPump::milliseconds_to_pause() const {
  int least = -1;
  for (const auto& stream : streams_) {
    if (!has_more_to_show(*stream)) continue;
    least = sooner(least, milliseconds_until(stream->changed_at + kPause));
  }
  return least;
}

void OutputPump::show_paused() {
  for (const auto& stream : streams_) {
    if (!has_more_to_show(*stream) || Clock::now() < stream->changed_at + kPause) continue;
    stream->console->beginning(stream.get(), stream->worker->prefix, stream->splitter.unfinished());
    stream->shown_bytes = stream->splitter.unfinished().size();
  }
}

std::vector<std::string> OutputPump::last_lines(int index) const {
  const WorkerOutput& worker = workers_[static_cast<size_t>(index)];
  const auto& lines = worker.err.last_lines.empty() ? worker.out.last_lines : worker.err.last_lines;
  return {lines.begin(), lines.end()};
}

std::string OutputPump::log_path(int index) const {
  const WorkerOutput& worker = workers_[static_cast<size_t>(index)];
  return worker.err.log ? worker.err.log->path().string() : "";
}

}  // namespace fsdp::launch
