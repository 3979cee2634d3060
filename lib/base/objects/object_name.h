#pragma once

// Names of objects in stores: "s3://BUCKET/KEY", "gs://BUCKET/KEY", "hf://OWNER/MODEL/FILE",
// "hf://datasets/OWNER/NAME/FILE", "https://HOST/PATH". They may be given wherever a command or a config
// takes a path to read.

#include <string>
#include <string_view>

namespace fsdp::objects {

/// Whether the text names an object or a folder of objects, by its scheme.
bool is_remote(std::string_view text);

/// Throws Error(kUsage) if the name has no bucket or host, contains a password or a signature, which would
/// get into logs and saved configs, or leads out of its folder ("..").
void check_name(const std::string& name);

/// Scheme of a remote name: "s3", "gs", "hf", "http" or "https".
std::string scheme_of(std::string_view name);

/// The name without its scheme: "BUCKET/KEY".
std::string without_scheme(std::string_view name);

/// Returns the name of an object in a folder: both may end or begin with slashes.
std::string joined(std::string_view folder, std::string_view object);

/// Last part of a name: "a.bin" of "s3://bucket/data/a.bin".
std::string last_part(std::string_view name);

/// The folder that contains an object: "s3://bucket/data" of "s3://bucket/data/a.bin".
std::string folder_of(std::string_view name);

}  // namespace fsdp::objects
