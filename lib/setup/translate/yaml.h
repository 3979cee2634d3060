#pragma once

// Reads the part of YAML that configs of other trainers use: maps and lists in blocks, lists and maps in
// brackets on one line, strings in quotes and in blocks (| and >), and the scalars of YAML 1.1 as PyYAML
// reads them, where yes is a boolean and 1e-4 a string.

#include "setup/config/parse.h"

namespace fsdp::config {

/// The text as a table. Throws only SyntaxError: for a text that is not YAML, and for what is not read, such
/// as anchors, tags, several documents and two equal keys.
Literal parse_yaml(const Source& source);

}  // namespace fsdp::config
