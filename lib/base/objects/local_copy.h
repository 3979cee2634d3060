#pragma once

// Copies of objects on the local disk, for everything that reads files by their paths: configs, tokenizers,
// weights, checkpoints.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/objects/object_store.h"
#include "base/util/progress_bar.h"

namespace fsdp::objects {

/// Returns a path at which an object or a folder of objects can be read; the path itself if it is not remote.
///
/// An object is copied into the cache with the small files beside it that its readers may ask for, such as
/// the chat template of a tokenizer. Of a folder that is a checkpoint (it has a manifest or .metadata)
/// everything is copied, of other folders those files that describe a model and contain its weights, as
/// safetensors if there are such. Each process asks once whether its copies are still those of the store, and
/// copies what is not. Processes that want the same copy wait for one of them. Throws Error(kData) if the
/// object does not exist, kIo if the store or the disk fails. Not collective. Thread-safe.
std::filesystem::path local_copy(const std::string& path_or_name, const util::ByteProgress& progress = {});

/// Returns a path at which one file can be read: the path itself, or the copy of an object alone. Throws
/// Error(kData) if the object does not exist.
std::filesystem::path file_copy(const std::filesystem::path& path_or_name);

/// Returns the copy of an object alone; nothing if it does not exist.
std::optional<std::filesystem::path> copy_if_there(const std::string& name);

/// The objects of a listed folder that local_copy() takes.
std::vector<ListedObject> needed_objects(const std::vector<ListedObject>& listed);

}  // namespace fsdp::objects
