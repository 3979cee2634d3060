#pragma once

// What kind of weights lie at a path.

#include <filesystem>

namespace fsdp::checkpoint {

inline constexpr const char* kSingleFileName = "model.safetensors";
inline constexpr const char* kIndexFileName = "model.safetensors.index.json";

enum class WeightsFormat { kSafetensors, kCheckpoint };

/// Of a file, a folder as Hugging Face lays it out, a step's folder or a run's. kCheckpoint when it is
/// nothing of these kinds, with the remedy for what is often given in their place: a name of the Hugging Face
/// hub, and pickled PyTorch files, which are never read.
WeightsFormat format_of(const std::filesystem::path& path);

}  // namespace fsdp::checkpoint
