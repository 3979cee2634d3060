#include "run/train/profile_start.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"
#include "run/train/trainer.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

/// A folder among the system's temporary files, with the same path on all ranks.
class TemporaryOutput {
 public:
  explicit TemporaryOutput(comm::Communicator& communicator) {
    std::string path;
    comm::agree(communicator, "output folder", [&] {
      if (communicator.rank() != 0) return;
      path = (fs::temp_directory_path() / "fsdp-start-XXXXXX").string();
      if (::mkdtemp(path.data()) == nullptr) {
        fail(ErrorKind::kIo, "cannot make the folder ", path, ": ", util::errno_text(errno),
             "; name a place that can be written to with TMPDIR");
      }
    });
    path_ = comm::all_gather_text(communicator, path, {.unit = "output folder"}).front();
  }
  ~TemporaryOutput() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryOutput(const TemporaryOutput&) = delete;
  TemporaryOutput& operator=(const TemporaryOutput&) = delete;

  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

double total(const std::vector<util::StartPhase>& phases) {
  double seconds = 0;
  for (const util::StartPhase& phase : phases) seconds += phase.seconds;
  return seconds;
}

}  // namespace

std::vector<util::StartPhase> profile_start(config::Config config,
                                            std::shared_ptr<comm::Communicator> communicator) {
  const TemporaryOutput output(*communicator);
  config.run.output_dir = output.path();
  config.checkpoint.schedule = checkpoint::SaveTimes::kInterval;
  config.checkpoint.interval_steps = 0;
  config.checkpoint.interval_minutes = 0;
  config.checkpoint.save_at_end = false;
  if (config.checkpoint.resume == "auto") config.checkpoint.resume = "never";
  Trainer(config, std::move(communicator), {}, {.stop_requested = [] { return true; }}).run();
  return util::start_record();
}

std::string start_text(const std::vector<util::StartPhase>& phases) {
  const double all = total(phases);
  std::string text = concat("rank 0 from its start to the end of the first step, where nothing is saved\n\n");
  const auto add = [&](const std::string& name, double seconds) {
    text +=
        util::printed("%-46s %8.3f s %5.1f %%\n", name.c_str(), seconds, 100 * seconds / std::max(all, 1e-9));
  };
  for (const util::StartPhase& phase : phases) add(phase.name, phase.seconds);
  add("total", all);
  return text;
}

std::string start_json(const std::vector<util::StartPhase>& phases) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const util::StartPhase& phase : phases)
    list.push_back({{"name", phase.name}, {"seconds", phase.seconds}});
  const double all = total(phases);
  return nlohmann::ordered_json{{"phases", std::move(list)},
                                {"seconds_to_first_step", all - (phases.empty() ? 0 : phases.back().seconds)},
                                {"seconds", all}}
             .dump(2) +
         "\n";
}

}  // namespace fsdp::train
