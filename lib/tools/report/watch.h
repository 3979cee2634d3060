#pragma once

// fsdp-train --watch: shows a run in a terminal, from the files of its folder and the processes of this host.

#include <filesystem>
#include <string>

namespace fsdp::report {

/// Shows the run. On a terminal, redraws the view (watch_view.h) each second until the run has ended, q is
/// pressed, or SIGINT, SIGTERM or SIGHUP arrives. Waits for a folder or a metrics.jsonl that does not exist
/// yet. At the end restores the terminal and prints a last line. On another output, prints the view once, and
/// throws Error(kUsage) if the folder has no metrics.jsonl.
void watch(const std::filesystem::path& folder);

/// The state of the run as one JSON object (docs/schemas/fsdp-train-watch.json). Throws Error(kUsage) if the
/// folder has no metrics.jsonl.
std::string watch_json(const std::filesystem::path& folder);

}  // namespace fsdp::report
