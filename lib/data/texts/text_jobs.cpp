#include "data/texts/text_jobs.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <future>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "base/util/work_queue.h"
#include "data/options/text_names.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

constexpr size_t kJobBytes = 1 << 18;
/// Length of the next part's text that a part contains, to find a position for the cut.
constexpr size_t kContextBytes = 1 << 12;
/// Limit on text that must be in one piece: a document for a tokenizer that never cuts.
constexpr size_t kMaxWholeBytes = size_t{256} << 20;

}  // namespace

bool ValidationShare::takes(std::string_view document) const {
  if (!by_document || fraction <= 0) return false;
  std::string_view beginning = document.substr(0, kHashedBytes);
  uint64_t hash = util::mix64(util::xxh3_64(beginning.data(), beginning.size()) ^ util::mix64(seed));
  return static_cast<double>(hash >> 11) * 0x1p-53 < fraction;
}

TextJobs::TextJobs(std::vector<std::string> files, bool json_lines, std::string json_field,
                   const ValidationShare& validation, const Tokenizer& tokenizer, const RowEncoder* encoder)
    : files_(std::move(files)),
      json_lines_(json_lines || encoder != nullptr),
      json_field_(std::move(json_field)),
      validation_(validation),
      tokenizer_(tokenizer),
      encoder_(encoder) {}

int64_t TextJobs::share_of_end(const ValidationShare& validation, int64_t text_bytes) {
  if (validation.by_document || validation.fraction <= 0) return 0;
  auto share = static_cast<int64_t>(std::llround(static_cast<double>(text_bytes) * validation.fraction));
  return std::clamp<int64_t>(share, 0, text_bytes);
}

bool TextJobs::encode(int threads, const std::function<bool(const EncodedJob&)>& visit) {
  util::WorkQueue<EncodedJob> queue(threads > 1 ? threads : 0);
  std::deque<std::future<EncodedJob>> under_way;
  const size_t most = threads > 1 ? 2 * static_cast<size_t>(threads) + 1 : 1;
  bool more = true, ended = false;
  while (true) {
    while (more && under_way.size() < most) {
      auto job = std::make_shared<TextJob>();
      more = next(*job);
      ended = !more;
      if (more) under_way.push_back(queue.add([this, job] { return encoded(std::move(*job)); }));
    }
    if (under_way.empty()) return ended;
    const EncodedJob job = under_way.front().get();
    under_way.pop_front();
    more = visit(job) && more;
  }
}

/// Encodes the text of a row, or copies its tokens.
void TextJobs::encode_document(std::string_view row, const TextPart& part, EncodedJob& out,
                               EncodedJob::EncodedPart& result) const {
  const size_t before = out.ids.size();
  try {
    const RowDocument document = document_of_row(row, part.place, json_field_);
    result.is_tokens = document.is_tokens;
    result.validation = validation_.takes(document.is_tokens ? row : document.text);
    if (document.is_tokens) {
      out.ids.insert(out.ids.end(), document.tokens.begin(), document.tokens.end());
    } else {
      tokenizer_.encode(document.text, out.ids);
    }
  } catch (const util::Error& error) {
    out.ids.resize(before);
    result.bad = error.what();
  }
}

void TextJobs::encode_row(std::string_view row, const TextPart& part, EncodedJob& out,
                          EncodedJob::EncodedPart& result) const {
  const size_t before = out.ids.size();
  try {
    result.form = encoder_->encode(row, out.ids, out.token_parts);
  } catch (const RowError& error) {
    out.ids.resize(before);
    out.token_parts.resize(before);
    result.bad = concat(to_string(part.place), " ", for_message(error.what()),
                        "; correct or remove it, or skip such rows with `skip_bad`");
  }
}

EncodedJob TextJobs::encoded(TextJob job) const {
  EncodedJob result;
  for (const TextPart& part : job.parts) {
    std::string_view text = std::string_view(job.text).substr(part.begin, part.end - part.begin);
    EncodedJob::EncodedPart result_part{.consumed = part.stop, .validation = part.validation};
    if (part.is_row && encoder_ != nullptr) {
      result_part.validation = validation_.takes(text);
      encode_row(text, part, result, result_part);
    } else if (part.is_row) {
      encode_document(text, part, result, result_part);
    } else if (part.ends_document) {
      tokenizer_.encode(text, result.ids);
    } else {
      result_part.consumed = tokenizer_.encode_some(text, part.stop, result.ids);
    }
    result_part.ids_end = result.ids.size();
    result.parts.push_back(result_part);
  }
  result.job = std::move(job);
  return result;
}

/// Reads the next job. Returns false if there is none.
bool TextJobs::next(TextJob& job) {
  job.text.clear();
  job.parts.clear();
  while (job.text.size() < kJobBytes) {
    if (!input_ && !rows_) {
      if (next_file_ == files_.size()) break;
      open_next();
    }
    if (rows_) {
      take_rows(job);
    } else {
      take_text(job);
    }
  }
  job.read_bytes = read_bytes();
  return !job.parts.empty();
}

void TextJobs::open_next() {
  const std::string& path = files_[next_file_++];
  taken_bytes_ = 0;
  if (json_lines_ || has_rows(path)) {
    rows_ = open_rows(path, encoder_ != nullptr ? encoder_->columns() : std::vector{json_field_});
    return;
  }
  input_ = std::make_unique<TextInput>(path);
  section_left_ = input_->size_bytes();
  end_left_ = 0;
  document_validates_ = false;
  if (section_left_ < 0) return;
  end_left_ = share_of_end(validation_, section_left_);
  section_left_ -= end_left_;
  if (section_left_ == 0) end_section();
}

void TextJobs::begin_at(const TextPlace& place) {
  open_next();
  if (rows_) return rows_->skip_to(place.row, place.byte);
  input_->skip(place.byte);
  taken_bytes_ = place.byte;
  if (section_left_ >= 0) section_left_ = std::max<int64_t>(section_left_ - place.byte, 0);
  in_document_ = place.in_document;
}

/// Reads until the buffer has `bytes` bytes. Returns whether the section ends with the buffer.
bool TextJobs::fill(int64_t bytes) {
  int64_t wanted = bytes - static_cast<int64_t>(buffer_.size());
  if (section_left_ >= 0) wanted = std::min(wanted, section_left_);
  if (wanted <= 0) return section_left_ == 0;
  int64_t got = input_->read(wanted, buffer_);
  if (section_left_ < 0) return got < wanted;
  section_left_ -= got;
  return section_left_ == 0;
}

/// Moves the end of a section after the character that it would cut.
void TextJobs::end_on_whole_character() {
  std::string next;
  for (int i = 0; i < 3 && end_left_ > 0; ++i) {
    next.clear();
    input_->read(1, next);
    --end_left_;
    if ((next[0] & 0xc0) != 0x80) break;
    buffer_ += next;
    next.clear();
  }
  end_left_ += static_cast<int64_t>(next.size());
  std::swap(pending_, next);
}

void TextJobs::add_part(TextJob& job, size_t stop, bool ends) {
  if (!in_document_ && validation_.by_document) document_validates_ = validation_.takes(buffer_);
  job.parts.push_back({.begin = job.text.size(),
                       .end = job.text.size() + buffer_.size(),
                       .stop = stop,
                       .begins_document = !in_document_,
                       .ends_document = ends,
                       .validation = document_validates_,
                       .place = {.path = files_[next_file_ - 1]}});
  job.text += buffer_;
  buffer_.erase(0, stop);
  in_document_ = !ends;
  taken_bytes_ += static_cast<int64_t>(stop);
  job.end = {.byte = taken_bytes_, .in_document = in_document_};
}

/// Continues with the end of the text, if that is for validation, or with the next text.
void TextJobs::end_section() {
  if (end_left_ == 0) {
    close_file();
    return;
  }
  section_left_ = end_left_;
  end_left_ = 0;
  document_validates_ = true;
  buffer_.swap(pending_);
  section_left_ -= static_cast<int64_t>(buffer_.size());
}

void TextJobs::take_text(TextJob& job) {
  bool ends = fill(kJobBytes + kContextBytes);
  size_t cut = 0;
  while (!ends) {
    // A part is long enough for validation_.takes() to decide by its beginning.
    cut = tokenizer_.likely_cut(std::string_view(buffer_).substr(0, kJobBytes));
    if (cut > 0) break;
    if (buffer_.size() > kMaxWholeBytes) {
      input_->refuse(
          concat("is longer than ", kMaxWholeBytes >> 20,
                 " MiB, and the tokenizer needs each document as a whole; split it into several files "
                 "or JSON lines"));
    }
    ends = fill(static_cast<int64_t>(2 * buffer_.size()));
  }
  if (!ends) return add_part(job, cut, false);
  if (end_left_ > 0) end_on_whole_character();
  if (!buffer_.empty() || in_document_) add_part(job, buffer_.size(), true);
  end_section();
}

void TextJobs::take_rows(TextJob& job) {
  while (job.text.size() < kJobBytes) {
    const size_t begin = job.text.size();
    if (rows_->next(job.text) == 0) return close_file();
    job.parts.push_back({.begin = begin,
                         .end = job.text.size(),
                         .stop = job.text.size() - begin,
                         .is_row = true,
                         .place = rows_->place()});
    job.end = {.row = rows_->place().number, .byte = rows_->next_byte()};
  }
}

void TextJobs::close_file() {
  finished_bytes_ = read_bytes();
  rows_.reset();
  input_.reset();
}

int64_t TextJobs::read_bytes() const {
  return finished_bytes_ + (rows_ ? rows_->read_bytes() : input_ ? input_->read_bytes() : 0);
}

}  // namespace fsdp::data
