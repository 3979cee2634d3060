#pragma once

// Token files back to text.

#include <cstdint>
#include <functional>
#include <string_view>

#include "data/token_files.h"
#include "data/tokenizer.h"

namespace fsdp::data {

/// Hands the text of the tokens [begin, begin + count) to `write`, piece by piece. Throws Error(kData) for an
/// id that the tokenizer does not have.
void decode(const TokenFiles& files, const Tokenizer& tokenizer, int64_t begin, int64_t count,
            const std::function<void(std::string_view)>& write);

}  // namespace fsdp::data
