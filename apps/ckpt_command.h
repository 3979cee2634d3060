#pragma once

// The common parts of the commands of fsdp-ckpt: their options, and the printing of results.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/cli/program.h"
#include "base/util/progress_bar.h"
#include "ckpt_commands.h"
#include "state/convert/consolidate.h"
#include "state/convert/sharded_writer.h"

namespace fsdp::apps {

inline constexpr const char* kAboutCheckpoint =
    "a step's folder, or a run's output folder (its newest complete checkpoint)";
inline constexpr const char* kAboutAny =
    "a checkpoint, a run's output folder, a safetensors file or a folder of them";

/// The options of all commands.
struct Arguments {
  std::string source, other, output, dtype, config, format = "safetensors", max_shard_size, type, tokenizer;
  std::string layout, model_key, optimizer_key;
  std::vector<std::string> sources;
  std::optional<double> tolerance, t, density, lambda;
  std::vector<double> weights;
  std::string method = "linear", base, normalize;
  std::optional<int64_t> last, samples_seen, parts;
  int64_t world_size = 1;
  bool force = false, saturate = false, optimizer = false, ema = false, adapter = false, merge = false,
       as_json = false;
};

/// A command under construction.
class Command {
 public:
  Command(CLI::App& app, const char* name, const char* about)
      : parser_(app.add_subcommand(name, about)), arguments_(std::make_shared<Arguments>()) {
    parser_->add_flag("--json", arguments_->as_json, "print the result as JSON");
  }
  Arguments* operator->() const { return arguments_.get(); }
  CLI::Option* positional(const char* name, std::string& value, const char* about) const {
    return parser_->add_option(name, value, about)->required()->check(cli::not_empty());
  }
  template <typename Value>
  CLI::Option* option(const char* name, Value& value, const char* about) const {
    return parser_->add_option(name, value, about);
  }
  void flag(const char* name, bool& value, const char* about) const { parser_->add_flag(name, value, about); }
  void dtype_option(const char* about = "cast floating-point weights to this type") const {
    option("--dtype", arguments_->dtype, about)
        ->check(cli::one_of({"float32", "bfloat16", "float16", "float64"}));
    flag(
        "--saturate", arguments_->saturate,
        "values that are too large for the type, as beyond 65504 for float16, become its largest one; default: refuse "
        "them");
  }
  void size_option() const {
    option("--max-shard-size", arguments_->max_shard_size,
           "split into files of at most this size, such as 5GB, with model.safetensors.index.json");
  }
  CLI::Option* world_size_option() const {
    return option("--world-size", arguments_->world_size, "number of files to shard the tensors into");
  }
  /// Sets the command's action. `body` gets the arguments and the output for progress.
  CkptCommand runs(std::function<int(const Arguments&, const util::ByteProgress&)> body) const {
    return {parser_, [arguments = arguments_, body = std::move(body)] {
              util::ByteProgressBar bar(util::progress_on_stderr());
              return body(*arguments, [&bar](auto phase, int64_t done_bytes, int64_t total_bytes) {
                bar.show(phase, done_bytes, total_bytes);
                if (done_bytes == total_bytes) bar.clear();
              });
            }};
  }

 private:
  CLI::App* parser_;
  std::shared_ptr<Arguments> arguments_;
};

/// Returns the step folder that the user means; logs it if it is one of several.
std::filesystem::path chosen_checkpoint(const std::string& path);

std::optional<c10::ScalarType> chosen_dtype(const Arguments& arguments);
int64_t chosen_max_bytes(const Arguments& arguments);

/// Returns JSON as printable text. Paths and names from files may contain bytes that are no text.
std::string text_of(const nlohmann::json& value);

/// Throws for options that have no meaning with the chosen format.
void refuse_options(const std::vector<std::pair<const char*, std::string>>& options, const char* needed);

/// Each of these returns the exit code.
int print(const checkpoint::ConsolidateResult& result, bool as_json,
          const char* about_config = "the model's config");
int print(const checkpoint::ShardedResult& result, bool as_json);

CkptCommand add_export(CLI::App& app);
CkptCommand add_import(CLI::App& app);

}  // namespace fsdp::apps
