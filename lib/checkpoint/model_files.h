#pragma once

// The small files that make a whole of a model beside its weights and its config: tokenizer, chat template,
// how texts are generated. A run keeps copies of those that it begins with, so that they can be exported when
// the folder that they came from is gone.

#include <filesystem>
#include <map>
#include <string>

namespace fsdp::checkpoint {

/// The folder of the copies: in a run's output folder, or in that of a checkpoint which belongs to no run.
inline constexpr const char* kModelFilesName = "model_files";

/// Name -> path of what is copied.
using ModelFiles = std::map<std::string, std::filesystem::path>;

/// Of a folder as Hugging Face lays it out, by the names that transformers gives such files. Empty for one
/// that is not there.
ModelFiles model_files_in(const std::filesystem::path& folder);

/// Whether a file of this name is part of a tokenizer.
bool is_tokenizer_file(const std::string& name);

/// Where the copies of a checkpoint are, a step's folder: in it, or in the run's folder around it. Empty when
/// there are none.
std::filesystem::path kept_model_files(const std::filesystem::path& checkpoint_folder);

/// Copies the files into a folder, which is made when there are any. kIo.
void copy_model_files(const ModelFiles& files, const std::filesystem::path& folder);

}  // namespace fsdp::checkpoint
