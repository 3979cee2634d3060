#include "run/train/fault_injection.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <sstream>
#include <thread>

#include "base/util/error.h"

namespace fsdp::train {
namespace {

constexpr const char* kForm =
    "FSDP_INJECT_FAULT: expected rank=R,step=S|FIRST-LAST,"
    "at=step|forward|collective|save|copy|write|validation|transfer,"
    "do=kill|stop|throw|exit:CODE|sleep:SECONDS; found \"";

/// Injects faults in the forward of the root stage, in which this rank computes while others wait for it.
class FaultsInForward final : public nn::StageHook {
 public:
  FaultsInForward(const FaultInjection& faults, comm::Communicator& communicator, const int64_t& steps_done)
      : faults_(faults), communicator_(communicator), steps_done_(steps_done) {}

  at::Tensor around(nn::Stage&, const at::Tensor& input, const Next& next) override {
    int64_t step = steps_done_ + 1;
    if (faults_.is_due(FaultPlace::kCollective, step)) {
      communicator_.enqueue([this, step] { faults_.at(FaultPlace::kCollective, step); });
    }
    at::Tensor output = next(input);
    faults_.at(FaultPlace::kForward, step);
    return output;
  }

 private:
  const FaultInjection& faults_;
  comm::Communicator& communicator_;
  const int64_t& steps_done_;
};

[[noreturn]] void refuse(const std::string& text) { fail(ErrorKind::kUsage, kForm, text, "\""); }

double number(const std::string& text, const std::string& whole) {
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= 0)) refuse(whole);
  return value;
}

}  // namespace

FaultInjection FaultInjection::from_environment(int rank) {
  const char* variable = std::getenv("FSDP_INJECT_FAULT");
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const bool is_restart = restarts != nullptr && std::atoi(restarts) > 0;
  FaultInjection injection;
  std::istringstream texts(variable == nullptr ? "" : variable);
  for (std::string text; std::getline(texts, text, ';');) {
    const std::optional<Fault> fault = parsed(text, rank);
    if (fault && !is_restart) injection.faults_.push_back(*fault);
  }
  return injection;
}

/// Returns nullopt for a fault of another rank.
std::optional<FaultInjection::Fault> FaultInjection::parsed(const std::string& text, int rank) {
  std::map<std::string, std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    size_t equals = part.find('=');
    if (equals == std::string::npos) refuse(text);
    parts[part.substr(0, equals)] = part.substr(equals + 1);
  }
  const std::map<std::string, FaultPlace> places = {{"step", FaultPlace::kStep},
                                                    {"forward", FaultPlace::kForward},
                                                    {"collective", FaultPlace::kCollective},
                                                    {"save", FaultPlace::kSave},
                                                    {"copy", FaultPlace::kCopy},
                                                    {"write", FaultPlace::kWrite},
                                                    {"validation", FaultPlace::kValidation},
                                                    {"transfer", FaultPlace::kTransfer}};
  if (parts.size() != 4 || !parts.contains("rank") || !parts.contains("step") || !parts.contains("do") ||
      !places.contains(parts["at"])) {
    refuse(text);
  }
  Fault fault;
  fault.place = places.at(parts["at"]);
  const std::string& steps = parts["step"];
  const size_t dash = steps.find('-', 1);
  fault.first_step = static_cast<int64_t>(number(steps.substr(0, dash), text));
  fault.last_step = dash == std::string::npos ? fault.first_step
                                              : static_cast<int64_t>(number(steps.substr(dash + 1), text));
  fault.action = parts["do"].substr(0, parts["do"].find(':'));
  bool needs_argument = fault.action == "exit" || fault.action == "sleep";
  bool known = needs_argument || fault.action == "kill" || fault.action == "stop" || fault.action == "throw";
  bool has_argument = parts["do"].size() > fault.action.size();
  if (!known || needs_argument != has_argument) refuse(text);
  if (has_argument) fault.argument = number(parts["do"].substr(fault.action.size() + 1), text);
  if (number(parts["rank"], text) != rank) return std::nullopt;
  return fault;
}

bool FaultInjection::is_due(FaultPlace place, int64_t step) const {
  return std::ranges::any_of(faults_, [&](const Fault& fault) { return fault.is_due(place, step); });
}

void FaultInjection::at(FaultPlace place, int64_t step) const {
  for (const Fault& fault : faults_) {
    if (!fault.is_due(place, step)) continue;
    if (fault.action == "kill") ::kill(::getpid(), SIGKILL);
    if (fault.action == "stop") ::kill(::getpid(), SIGSTOP);
    if (fault.action == "exit") ::_exit(static_cast<int>(fault.argument));
    if (fault.action == "sleep") {
      std::this_thread::sleep_for(std::chrono::duration<double>(fault.argument));
    }
    if (fault.action == "throw") throw std::runtime_error("injected by FSDP_INJECT_FAULT");
  }
}

void FaultInjection::attach_to(nn::Stage& model, comm::Communicator& communicator,
                               const int64_t& steps_done) const {
  if (!faults_.empty()) model.attach(std::make_shared<FaultsInForward>(*this, communicator, steps_done));
}

}  // namespace fsdp::train
