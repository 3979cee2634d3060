#pragma once

// Kinds of texts by the names of their files, in any case.

#include <string>

namespace fsdp::data {

/// Returns the name without .gz, .zst or .zstd.
std::string uncompressed_name(const std::string& path);

/// Whether the file is compressed, by its name: .gz, .tgz, .zst or .zstd.
bool is_named_compressed(const std::string& path);

/// Whether the file has one JSON object per line: .jsonl, .jsonlines, .jl or .ndjson, also compressed.
bool is_json_lines(const std::string& path);

bool is_parquet(const std::string& path);
/// Whether the file is an archive of WebDataset: .tar, also compressed.
bool is_tar(const std::string& path);
/// Whether the file is a shard of MosaicML's streaming: .mds, also compressed.
bool is_mds(const std::string& path);

/// Whether the file has rows: JSON lines, a table, an archive or a shard.
bool has_rows(const std::string& path);

/// Whether the file is a text: .txt, also compressed, or has rows.
bool is_text_name(const std::string& path);

/// Whether an entry of data.train may be a text: by its name, or because folders have such names too.
bool may_be_text(const std::string& entry);

}  // namespace fsdp::data
