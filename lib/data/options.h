#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::data {

struct DataOptions {
  std::vector<std::string> train;       ///< token files, read as if they were joined
  std::vector<std::string> validation;  ///< token files; empty: no validation
  std::string tokenizer = "bytes";      ///< what the tokens are; batches do not depend on it
  int64_t sequence_length = 256;        ///< T: tokens a sample; the sample also reads the token after
  int64_t micro_batch_size = 4;         ///< B: sequences a rank a micro-step
  bool shuffle = true;
};

}  // namespace fsdp::data
