#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp::fuzz {

/// Each runs one reader over the bytes and returns 0.
int json(const uint8_t* data, size_t size);
int safetensors(const uint8_t* data, size_t size);
int gguf_file(const uint8_t* data, size_t size);
int manifest(const uint8_t* data, size_t size);
int shard_file(const uint8_t* data, size_t size);
int token_file(const uint8_t* data, size_t size);
int tokenizer_json(const uint8_t* data, size_t size);
int text_input(const uint8_t* data, size_t size);
int parquet(const uint8_t* data, size_t size);
int archive_rows(const uint8_t* data, size_t size);
int dcp_metadata(const uint8_t* data, size_t size);
int torch_object(const uint8_t* data, size_t size);
int sentencepiece_model(const uint8_t* data, size_t size);
int rank_vocabulary(const uint8_t* data, size_t size);

// Of linked_targets.cpp:
int config_toml(const uint8_t* data, size_t size);
int foreign_config(const uint8_t* data, size_t size);
int model_config(const uint8_t* data, size_t size);
int run_folder(const uint8_t* data, size_t size);

}  // namespace fsdp::fuzz
