#pragma once

// The small files of a model beside its weights and its config: tokenizer, chat template, generation settings.
// A run keeps copies of those that it is initialized from, so that they can be exported when the original
// folder is gone.

#include <filesystem>
#include <map>
#include <string>

namespace fsdp::checkpoint {

/// The folder of the copies: in a run's output folder, or inside a checkpoint that belongs to no run.
inline constexpr const char* kModelFilesName = "model_files";

/// Name -> path of the original.
using ModelFiles = std::map<std::string, std::filesystem::path>;

/// Those in a folder in Hugging Face's layout, recognized by transformers' names for them. Empty if the folder
/// does not exist.
ModelFiles model_files_in(const std::filesystem::path& folder);

/// Whether a file of this name is part of a tokenizer.
bool is_tokenizer_file(const std::string& name);

/// The folder of the copies for a step's folder: inside it, or in the run's folder around it. Empty if there is
/// none.
std::filesystem::path kept_model_files(const std::filesystem::path& checkpoint_folder);

/// Copies the files into a folder, which is created if there are any. kIo.
void copy_model_files(const ModelFiles& files, const std::filesystem::path& folder);

}  // namespace fsdp::checkpoint
