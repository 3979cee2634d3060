// fsdp-ckpt: looks at, checks and converts checkpoints.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <string>

#include "checkpoint/consolidate.h"
#include "checkpoint/folders.h"
#include "checkpoint/inspect.h"
#include "checkpoint/manifest.h"
#include "util/dtype.h"
#include "util/error.h"
#include "util/log.h"
#include "util/text.h"

namespace {

namespace fs = std::filesystem;
using namespace fsdp;
using util::ErrorKind;

/// The step folder that the user means; says so when it is one of several.
fs::path chosen_checkpoint(const std::string& path) {
  std::error_code error;
  if (fs::exists(fs::path(path) / checkpoint::kManifestName, error)) return path;  // whole or not
  fs::path folder = checkpoint::checkpoint_folder(path);
  if (folder != fs::path(path)) util::log_info("using the newest complete checkpoint, " + folder.string());
  return folder;
}

int run_consolidate(const std::string& source, const std::string& output, const std::string& dtype,
                    bool force) {
  checkpoint::ConsolidateOptions options{.dtype = {}, .overwrite = force};
  if (!dtype.empty()) options.dtype = util::dtype_from_name(dtype);
  checkpoint::ConsolidateResult result = checkpoint::consolidate(chosen_checkpoint(source), output, options);
  std::cout << result.weights.string() << ": " << result.tensors << " tensors, "
            << util::human_bytes(result.bytes) << "\n";
  if (result.config) std::cout << result.config->string() << ": the model's config\n";
  return 0;
}

int run_verify(const std::string& source) {
  fs::path folder = chosen_checkpoint(source);
  std::vector<std::string> damage = checkpoint::find_damage(folder);
  for (const std::string& line : damage) util::log_error(line);
  if (!damage.empty()) {
    util::fail(ErrorKind::kCheckpoint, folder.string(), " is not whole: ", damage.size(),
               " problem(s); use another checkpoint or restore the files named above");
  }
  std::cout << folder.string() << " is whole: hashes match, every element of every tensor is there once\n";
  return 0;
}

int run_inspect(const std::string& path, bool as_json) {
  nlohmann::json description = checkpoint::describe(path);
  std::cout << (as_json ? description.dump(2) + "\n" : checkpoint::describe_as_text(description));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return util::run_guarded([&] {
    CLI::App app("Looks at, checks and converts checkpoints.", "fsdp-ckpt");
    app.require_subcommand(1);
    std::string source, output, dtype;
    bool force = false, as_json = false;
    const char* about_source = "a step's folder, or a run's output folder (its newest complete checkpoint)";

    CLI::App* consolidate = app.add_subcommand("consolidate", "writes the weights as one safetensors file");
    consolidate->add_option("CHECKPOINT", source, about_source)->required();
    consolidate->add_option("OUTPUT", output, "a .safetensors file, or a folder (gets config.json too)")
        ->required();
    consolidate->add_option("--dtype", dtype, "cast floating-point weights to this type")
        ->check(CLI::IsMember({"float32", "bfloat16", "float16", "float64"}));
    consolidate->add_flag("--force", force, "overwrite what is there");

    CLI::App* inspect = app.add_subcommand("inspect", "lists names, shapes, types and sizes");
    inspect->add_option("PATH", source, "a checkpoint, a run's output folder, or safetensors")->required();
    inspect->add_flag("--json", as_json, "as JSON");

    CLI::App* verify = app.add_subcommand("verify", "compares all hashes and proves that nothing is missing");
    verify->add_option("CHECKPOINT", source, about_source)->required();

    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : static_cast<int>(ErrorKind::kUsage);
    }
    int code = *consolidate ? run_consolidate(source, output, dtype, force)
               : *inspect   ? run_inspect(source, as_json)
                            : run_verify(source);
    // A result that could not be printed (a full disk behind a redirection) is a failure.
    if (!std::cout.flush()) util::fail(ErrorKind::kIo, "cannot write to standard output");
    return code;
  });
}
