#pragma once

// Names on the Hugging Face hub where a path is expected.

#include <string>

namespace fsdp::util {

/// The end of a sentence about `name`, a path where nothing is: how to fetch the model, where the name can be
/// one of the hub ("meta-llama/Llama-3.2-1B", "gpt2"); empty for what can only be a path.
std::string hub_remedy(const std::string& name);

}  // namespace fsdp::util
