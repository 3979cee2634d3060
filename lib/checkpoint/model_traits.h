#pragma once

// What a config.json of Hugging Face can ask for and the models of this library do not do.

#include <nlohmann/json.hpp>
#include <string>

namespace fsdp::checkpoint {

/// kCheckpoint that starts with `where` and names all traits of the config that would compute something else
/// here: norms of queries and keys, multipliers, soft caps, layers without rotary positions, experts, ...
/// What another "model_type" has without a key for it is told by unsupported_type().
void refuse_unsupported_traits(const nlohmann::json& config, const std::string& where);

/// What models of this "model_type" have that those here do not: "it norms queries and keys"; empty for types
/// that nothing is known of.
std::string unsupported_type(const std::string& model_type);

}  // namespace fsdp::checkpoint
