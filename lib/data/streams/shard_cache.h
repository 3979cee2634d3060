#pragma once

// The blocks of one text in a folder that several processes share. An index lists the blocks that have been
// made and the places in the text at which they begin, also after their files have been removed, so that any
// block can be made again by itself. Only the process with the lock makes blocks; all read the index while it
// grows.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/util/descriptor.h"
#include "data/streams/token_block.h"
#include "data/texts/text_jobs.h"

namespace fsdp::data {

/// Tokens of a text, one after another, and the places in the text before and after them.
struct BlockEntry {
  int64_t token = 0;   ///< tokens of the text before the block
  int64_t tokens = 0;  ///< 0: no file
  TextPlace begin = {}, end = {};
  bool is_last = false;  ///< whether the text ends with the block
  int64_t bad_rows = 0;  ///< rows that were left out

  int64_t tokens_end() const { return token + tokens; }
};

nlohmann::json to_json(const TextPlace& place);
/// Throws nlohmann::json::exception for anything else than the result of to_json().
TextPlace place_of(const nlohmann::json& json);

/// The blocks of a text. Not thread-safe.
class ShardCache {
 public:
  /// The folder is created with the first block, or the lock.
  explicit ShardCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Reads what has been added to the index. Returns whether there was anything.
  bool refresh();

  /// Returns the entry of the block with this token of the text; null if it is not known.
  const BlockEntry* find(int64_t token) const;
  /// Returns the last known entry that begins at or before the token; null if there is none.
  const BlockEntry* last_before(int64_t token) const;
  /// Tokens of the text, if its end is known.
  std::optional<int64_t> tokens() const { return tokens_; }
  /// Rows that were left out, as far as blocks are known.
  int64_t bad_rows() const;

  /// Notes a place at which a block may begin, without a block.
  void add_place(int64_t token, const TextPlace& place);

  /// Opens the block of an entry; null if its file is missing, or was damaged and is
  /// removed.
  std::shared_ptr<const TokenBlock> open(const BlockEntry& entry) const;
  bool has_file(const BlockEntry& entry) const;

  /// Takes the lock unless another process has it. Throws Error(kIo).
  bool try_lock();
  void unlock() { lock_.close(); }
  /// Writes a block and adds it to the index of the folder. Returns the bytes of the file. Any thread may
  /// call it. Requires: the lock, and take() follows.
  int64_t write(const BlockEntry& entry, const BlockContent& content) const;
  void take(const BlockEntry& entry);

 private:
  std::filesystem::path block_path(const BlockEntry& entry) const;
  void repair_index();

  std::filesystem::path folder_;
  std::map<int64_t, BlockEntry> entries_;  ///< by BlockEntry::token
  std::optional<int64_t> tokens_;
  int64_t index_bytes_ = 0;  ///< bytes of the index that have been read
  util::Descriptor lock_;
};

/// Name of the files of blocks.
inline constexpr const char* kBlockExtension = ".tokens";

/// Removes the files of blocks below a folder, those first that have not been opened for the longest time,
/// until the rest has at most `most_bytes`.
void limit_blocks(const std::filesystem::path& folder, int64_t most_bytes);

}  // namespace fsdp::data
