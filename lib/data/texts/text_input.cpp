#include "data/texts/text_input.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/objects/object_name.h"
#include "base/objects/object_store.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "data/options/text_names.h"
#include "data/texts/mds_rows.h"
#include "data/tokenizers/utf8.h"
#include "data/tokens/file_patterns.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

constexpr size_t kHeadBytes = 512;
constexpr size_t kCompressedBytes = 1 << 17;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // byte order mark of UTF-8

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// Adds the texts of a folder, sorted, or the shards that its index lists.
void add_folder(const std::string& folder, std::vector<std::string>& files) {
  if (const auto shards = mds_shards(folder)) {
    files.insert(files.end(), shards->begin(), shards->end());
    return;
  }
  std::vector<std::string> found;
  try {
    for (fs::recursive_directory_iterator at(folder), end; at != end; ++at) {
      if (is_hidden(at->path())) {
        at.disable_recursion_pending();
      } else if (at->is_regular_file() && is_text_name(at->path().string())) {
        found.push_back(at->path().string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    fail(ErrorKind::kData, "the folder ", folder, " cannot be read (", error.code().message(), ", at ",
         error.path1().string(), "); give one that you may read");
  }
  if (found.empty()) {
    fail(
        ErrorKind::kData, "the folder ", folder,
        " has no text in it: no .txt, .jsonl, .jsonlines, .jl, .ndjson, .tar or .mds, with or without .gz or .zst, and "
        "no .parquet; give files of other names by a pattern, for example ",
        folder, "/*");
  }
  std::sort(found.begin(), found.end());
  files.insert(files.end(), found.begin(), found.end());
}

/// Whether a name of a data set's file says that it is of the part for training: "train-00000.parquet",
/// "en/train.jsonl".
bool is_of_training(std::string_view name) {
  constexpr std::string_view kTrain = "train", kAround = "-_./";
  for (size_t at = name.find(kTrain); at != std::string_view::npos; at = name.find(kTrain, at + 1)) {
    const size_t end = at + kTrain.size();
    const bool begins = at == 0 || kAround.find(name[at - 1]) != std::string_view::npos;
    if (begins && (end == name.size() || kAround.find(name[end]) != std::string_view::npos)) return true;
  }
  return false;
}

/// Adds the texts of a folder in a store, sorted. Of a data set on the hub, or another folder with files that
/// are named for training, those alone are added.
void add_remote_folder(const std::string& folder, std::vector<std::string>& files) {
  std::vector<std::string> found;
  for (const objects::ListedObject& object : objects::object_store(folder).list(folder)) {
    if (is_text_name(object.name) && object.size_bytes > 0) found.push_back(object.name);
  }
  if (found.empty()) {
    fail(ErrorKind::kData, "the folder ", folder,
         " has no text in it: no .txt, .jsonl, .parquet, .tar or .mds; correct the name, or name the texts");
  }
  const size_t all = found.size();
  if (std::ranges::any_of(found, is_of_training)) std::erase_if(found, std::not_fn(is_of_training));
  if (found.size() < all) {
    util::log_info(
        concat("of the ", all, " texts in ", folder, ", the ", found.size(), " named train are read"));
  }
  std::ranges::sort(found);
  for (const std::string& name : found) files.push_back(objects::joined(folder, name));
}

}  // namespace

std::vector<std::string> expand_texts(const std::vector<std::string>& texts) {
  std::vector<std::string> files;
  for (const std::string& path : expand_patterns(texts)) {
    std::error_code error;
    if (objects::is_remote(path) && !is_text_name(path) && !objects::scheme_of(path).starts_with("http")) {
      add_remote_folder(path, files);
    } else if (path != kStandardInput && fs::is_directory(path, error)) {
      add_folder(path, files);
    } else {
      files.push_back(path);
    }
  }
  return files;
}

InputFile::InputFile(const std::string& path) : path_(path) {
  if (path_ == kStandardInput) {
    path_ = "standard input";
    return;
  }
  source_ = open_bytes(path);
  size_bytes_ = source_->size_bytes();
}

size_t InputFile::read(size_t bytes, char* to) {
  if (source_) {
    bytes = std::min(bytes, static_cast<size_t>(std::max<int64_t>(size_bytes_ - read_bytes_, 0)));
    const size_t done = source_->read_at(read_bytes_, bytes, to);
    read_bytes_ += static_cast<int64_t>(done);
    if (done < bytes) refuse("became shorter while it was read; run again when nothing writes to it");
    return done;
  }
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::read(STDIN_FILENO, to + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse("cannot be read (" + util::errno_text(errno) + "); check the disk and run again");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  read_bytes_ += static_cast<int64_t>(done);
  return done;
}

void InputFile::refuse(const std::string& reason) const { refuse_text(path_, reason); }

TextInput::TextInput(const std::string& path, TextKind kind) : file_(path), kind_(kind) {
  // Standard input is not read before the first call, because it may be opened more than once.
  if (file_.size_bytes() >= 0) begin();
}

/// Reads the beginning, which determines the kind of the text.
void TextInput::begin() {
  begun_ = true;
  head_.resize(kHeadBytes);
  head_.resize(file_.read(head_.size(), head_.data()));
  decompressor_ = make_decompressor(head_);
  if (decompressor_) {
    compressed_.swap(head_);
    head_.resize(kHeadBytes);
    head_.resize(decompress(head_.size(), head_.data()));
    if (head_.empty()) refuse("is empty when decompressed; leave it out");
  } else if (is_named_compressed(path())) {
    refuse(
        "is named like a compressed file, but its content is not compressed by gzip or zstd; correct its name");
  } else {
    size_bytes_ = file_.size_bytes();
  }
  if (kind_ == TextKind::kBinary) return;
  if (const auto foreign = foreign_to_text(head_, uncompressed_name(path()), kind_)) {
    if (decompressor_) {
      refuse(concat("holds a compressed file that ", foreign->found, "; ",
                    foreign->is_json ? foreign->remedy : "unpack it first"));
    }
    refuse(concat(foreign->found, "; ", foreign->remedy));
  }
  if (!std::string_view(head_).starts_with(kByteOrderMark)) return;
  has_mark_ = true;
  head_.erase(0, kByteOrderMark.size());
  checked_bytes_ = static_cast<int64_t>(kByteOrderMark.size());
  if (size_bytes_ >= 0) size_bytes_ -= checked_bytes_;
  if (size_bytes_ == 0) refuse("has only a byte order mark; leave it out");
}

int64_t TextInput::read_bytes() const {
  const size_t waiting = decompressor_ ? compressed_.size() - decompressed_ : head_.size();
  return file_.read_bytes() - static_cast<int64_t>(waiting);
}

int64_t TextInput::read(int64_t bytes, std::string& buffer) {
  if (!begun_) begin();
  const auto wanted = static_cast<size_t>(bytes);
  const size_t before = buffer.size(), of_head = std::min(wanted, head_.size());
  buffer.append(head_, 0, of_head);
  head_.erase(0, of_head);
  buffer.resize(before + wanted);
  char* const rest = buffer.data() + before + of_head;
  const size_t got = decompressor_ ? decompress(wanted - of_head, rest) : file_.read(wanted - of_head, rest);
  buffer.resize(before + of_head + got);
  if (std::exchange(has_mark_, false)) {
    util::log_info(concat("left out the byte order mark at the beginning of ", path()));
  }
  const bool ends = of_head + got < wanted;
  if (kind_ == TextKind::kPlain) check_utf8(std::string_view(buffer).substr(before), ends);
  return static_cast<int64_t>(of_head + got);
}

std::optional<std::string> TextInput::read_exactly(int64_t bytes) {
  constexpr int64_t kPiece = 1 << 16;
  std::string content;
  while (bytes > 0) {
    const int64_t wanted = std::min(bytes, kPiece);
    if (read(wanted, content) < wanted) return std::nullopt;
    bytes -= wanted;
  }
  return content;
}

void TextInput::skip(int64_t bytes) {
  has_mark_ = false;
  checked_bytes_ += bytes;
  if (!decompressor_) {
    const int64_t mark = checked_bytes_ - bytes;
    head_.clear();
    file_.seek(mark + bytes);
    return;
  }
  const auto of_head = static_cast<size_t>(std::min(bytes, static_cast<int64_t>(head_.size())));
  head_.erase(0, of_head);
  std::string ignored(kCompressedBytes, '\0');
  for (int64_t left = bytes - static_cast<int64_t>(of_head); left > 0;) {
    const size_t got = decompress(std::min(ignored.size(), static_cast<size_t>(left)), ignored.data());
    if (got == 0) refuse("became shorter since it was read before; run again when nothing writes to it");
    left -= static_cast<int64_t>(got);
  }
}

/// Refuses text that is not UTF-8, with the position. `ends` is whether nothing follows.
void TextInput::check_utf8(std::string_view text, bool ends) {
  const std::string part = cut_character_.append(text);
  const size_t valid = valid_utf8_prefix(part);
  cut_character_ = part.substr(valid);
  checked_bytes_ += static_cast<int64_t>(valid);
  ends = ends ||
         (size_bytes_ >= 0 && checked_bytes_ + static_cast<int64_t>(cut_character_.size()) >= file_bytes());
  const bool may_go_on = !ends && incomplete_utf8_tail(cut_character_) == cut_character_.size();
  if (cut_character_.empty() || may_go_on) return;
  const std::string byte = util::printed("0x%02X", static_cast<unsigned char>(cut_character_.front()));
  refuse(
      concat("must be UTF-8, but the byte ", byte, " at offset ", checked_bytes_,
             decompressor_ ? " of its decompressed text" : "",
             " begins no character; convert it first, from Latin-1 for example by iconv -f LATIN1 -t UTF-8 ",
             util::shell_word(path()), " > NEW"));
}

size_t TextInput::decompress(size_t bytes, char* to) {
  size_t done = 0;
  while (done < bytes) {
    if (decompressed_ == compressed_.size()) {
      compressed_.resize(kCompressedBytes);
      compressed_.resize(file_.read(compressed_.size(), compressed_.data()));
      decompressed_ = 0;
    }
    const bool file_ends = compressed_.empty();
    if (file_ends && decompressor_->at_end()) break;
    Decompressor::Step step;
    try {
      step =
          decompressor_->step(std::string_view(compressed_).substr(decompressed_), to + done, bytes - done);
    } catch (const DecompressorError& error) {
      refuse(concat(error.what(), " at byte ", util::with_commas(read_bytes()), " of the file; ",
                    error.remedy()));
    }
    if (file_ends && step.written == 0) {
      refuse(concat("is cut short: the file ends at byte ", util::with_commas(read_bytes()),
                    ", within compressed data; fetch it again"));
    }
    decompressed_ += step.read;
    done += step.written;
    growth_.add(static_cast<int64_t>(step.written));
    if (const auto excess = growth_.excess(read_bytes())) {
      refuse(*excess + ", or give its content as - if it is meant");
    }
  }
  return done;
}

}  // namespace fsdp::data
