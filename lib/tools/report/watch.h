#pragma once

// fsdp-train --watch: a run in a terminal, from the files of its folder and the processes of this host.

#include <filesystem>

namespace fsdp::report {

/// On a terminal, redraws the view (watch_view.h) each second until the run has ended, q is pressed, or SIGINT,
/// SIGTERM or SIGHUP comes; waits for a folder or a metrics.jsonl that is not there yet; restores the terminal
/// and prints a last line. With another output, prints the view once; then throws Error(kUsage) where the
/// folder has no metrics.jsonl.
void watch(const std::filesystem::path& folder);

}  // namespace fsdp::report
