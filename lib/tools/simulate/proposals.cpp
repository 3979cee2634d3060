#include "tools/simulate/proposals.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/util/error.h"
#include "base/util/text.h"
#include "tools/plan/text.h"

namespace fsdp::simulate {
namespace {

using nlohmann::ordered_json;

constexpr size_t kShownProposals = 12;

/// A way to cut the state of the model.
struct Cut {
  const char* name;
  std::vector<std::string> overrides;
  bool per_host;  ///< whether each host has a replica
};
const std::vector<Cut>& cuts() {
  static const std::vector<Cut> table = {
      {"full_shard", {"fsdp.strategy=full_shard", "fsdp.hybrid_optimizer=replicated"}, false},
      {"shard_grad_op", {"fsdp.strategy=shard_grad_op", "fsdp.hybrid_optimizer=replicated"}, false},
      {"no_shard", {"fsdp.strategy=no_shard", "fsdp.hybrid_optimizer=replicated"}, false},
      {"hybrid_shard per host", {"fsdp.strategy=hybrid_shard", "fsdp.hybrid_optimizer=replicated"}, true},
      {"hybrid_shard per host, global optimizer",
       {"fsdp.strategy=hybrid_shard", "fsdp.hybrid_optimizer=global"},
       true}};
  return table;
}

/// A way to send fewer bytes for each token, at a price.
struct Saving {
  std::string name;
  std::vector<std::string> overrides;
  bool per_host = false;  ///< whether each host must have a replica
};
/// Ways that differ from the config.
std::vector<Saving> savings(const config::Config& config) {
  std::vector<Saving> ways;
  if (config.training.global_batch_size == 0) {
    const int64_t micro_batches = 4 * std::max<int64_t>(1, config.training.gradient_accumulation_steps);
    ways.push_back({concat(micro_batches, " micro-batches"),
                    {concat("training.gradient_accumulation_steps=", micro_batches)}});
  }
  if (config.mixed_precision.reduce_dtype == util::FloatType::kFloat32) {
    ways.push_back({"gradients in bfloat16", {"mixed_precision.reduce_dtype=bfloat16"}});
  }
  if (config.fsdp.gather_dtype == comm::LinkType::kExact &&
      config.fsdp.reduce_dtype == comm::LinkType::kExact) {
    ways.push_back({"int8 between hosts", {"fsdp.gather_dtype=int8", "fsdp.reduce_dtype=int8"}});
  }
  if (!config.training.has_local_steps()) {
    ways.push_back({"50 local steps", {"training.local_steps=50"}, /*per_host=*/true});
  }
  return ways;
}

void add(Candidate& candidate, const std::string& name, const std::vector<std::string>& overrides) {
  if (!name.empty()) candidate.name += ", " + name;
  candidate.overrides.insert(candidate.overrides.end(), overrides.begin(), overrides.end());
}

bool are_alike(const Proposal& a, const Proposal& b) {
  return a.refusal.empty() && b.refusal.empty() && a.step_seconds == b.step_seconds &&
         a.tokens_per_step == b.tokens_per_step && a.bytes_from_other_hosts == b.bytes_from_other_hosts &&
         a.device_peak == b.device_peak;
}

Proposal simulated(const Candidate& candidate, const plan::Plan& plan, const SimulationOptions& options) {
  const Simulation simulation = simulate(plan, options);
  return {.candidate = candidate,
          .tokens_per_second = simulation.tokens_per_second,
          .step_seconds = simulation.step_seconds,
          .tokens_per_step = plan.tokens_per_step(),
          .bytes_from_other_hosts = std::llround(simulation.bytes_from_other_hosts()),
          .device_peak = plan.memory.device_peak,
          .fits = plan.fits()};
}

/// 0 for proposals that can be used, 1 if memory is lacking, 2 if the config refuses.
int rank_of(const Proposal& proposal) { return !proposal.refusal.empty() ? 2 : proposal.fits ? 0 : 1; }

std::string name_of(const Proposal& proposal) {
  return proposal.candidate.name + (proposal.candidate.changes_training ? " *" : "");
}

std::string row_of(const Proposal& proposal, int width) {
  return util::printed("  %-*s %10s %10s %10s %10s%s\n", width, name_of(proposal).c_str(),
                       util::with_commas(std::llround(proposal.tokens_per_second)).c_str(),
                       plan::duration(proposal.step_seconds).c_str(),
                       plan::decimal_bytes(proposal.bytes_from_other_hosts).c_str(),
                       util::human_bytes(proposal.device_peak).c_str(),
                       proposal.fits ? "" : "  DOES NOT FIT");
}

}  // namespace

Candidate candidate_from_text(const std::string& text) {
  Candidate candidate{.name = text, .changes_training = true, .is_own = true};
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word.find('=') == std::string::npos || word.find('.') > word.find('=')) {
      fail(ErrorKind::kUsage,
           "`candidate` must be overrides section.key=value with spaces between them, but has ",
           util::shell_word(word), "; write for example fsdp.strategy=no_shard");
    }
    candidate.overrides.push_back(word);
  }
  if (candidate.overrides.empty()) {
    fail(
        ErrorKind::kUsage,
        "`candidate` must be overrides section.key=value with spaces between them, but is empty; leave it out, "
        "since the config as it is is a candidate anyway");
  }
  return candidate;
}

std::vector<Candidate> built_in_candidates(const config::Config& config, int64_t world_size,
                                           int64_t ranks_of_host) {
  const int64_t hosts = ranks_of_host > 0 && world_size % ranks_of_host == 0 ? world_size / ranks_of_host : 1;
  const std::vector<Saving> ways = savings(config);
  std::vector<Candidate> candidates = {{.name = "as given"}};
  for (const Cut& cut : cuts()) {
    if (cut.per_host && hosts == 1) continue;
    Candidate whole{.name = cut.name, .overrides = cut.overrides};
    add(whole, "", {concat("mesh.dcn=", cut.per_host ? hosts : 1), "mesh.data=-1"});
    candidates.push_back(whole);
    Candidate all = whole;
    for (const Saving& way : ways) {
      if (way.per_host && !cut.per_host) continue;
      Candidate with = whole;
      for (Candidate* each : {&with, &all}) {
        add(*each, way.name, way.overrides);
        each->changes_training = true;
      }
      candidates.push_back(std::move(with));
    }
    if (ways.size() > 1) candidates.push_back(std::move(all));
  }
  return candidates;
}

std::vector<Proposal> propose(const std::vector<Candidate>& candidates, const ConfigWith& config_with,
                              const Planner& planner, const SimulationOptions& options) {
  std::vector<Proposal> proposals;
  for (const Candidate& candidate : candidates) {
    Proposal proposal{.candidate = candidate};
    try {
      proposal =
          simulated(candidate, planner(config_for(config_with(candidate.overrides), options)), options);
    } catch (const util::Error& error) {
      if (proposals.empty()) throw;
      proposal.refusal = error.what();
    }
    const bool is_known = !candidate.is_own && std::ranges::any_of(proposals, [&](const Proposal& earlier) {
      return are_alike(earlier, proposal);
    });
    if (!is_known) proposals.push_back(std::move(proposal));
  }
  std::ranges::stable_sort(proposals, [](const Proposal& a, const Proposal& b) {
    return rank_of(a) != rank_of(b) ? rank_of(a) < rank_of(b) : a.tokens_per_second > b.tokens_per_second;
  });
  return proposals;
}

std::string proposals_text(const plan::Plan& as_given, const std::vector<Proposal>& proposals) {
  std::vector<const Proposal*> shown;
  size_t refused = 0, slower = 0;
  int width = 0;
  bool changes_training = false;
  for (const Proposal& proposal : proposals) {
    if (!proposal.refusal.empty()) {
      ++refused;
    } else if (shown.size() < kShownProposals || proposal.candidate.overrides.empty()) {
      shown.push_back(&proposal);
      width = std::max(width, static_cast<int>(name_of(proposal).size()));
      changes_training = changes_training || proposal.candidate.changes_training;
    } else {
      ++slower;
    }
  }
  std::string text = plan::plan_subject(as_given) + "\n";
  text += util::printed("  %-*s %10s %10s %10s %10s\n", width, "the fastest first", "tokens/s", "step",
                        "received", "memory");
  for (const Proposal* proposal : shown) text += row_of(*proposal, width);
  text += "received: bytes of a step that each host receives from other hosts; memory: of a rank\n";
  if (changes_training) text += "* changes the batch or the rounding of the config\n";
  if (slower > 0) text += concat(slower, " slower ones are left out; --json has them\n");
  if (refused > 0)
    text += concat(refused, " are left out because the config refuses them; --json has the reasons\n");
  const Proposal& best = proposals.front();
  if (!best.fits) return text + "\nNone fits into the memory.\n";
  if (best.candidate.overrides.empty()) return text + "\nThe config as it is is the fastest of these.\n";
  return text +
         concat("\nTo train as in the first line, add: ", util::join(best.candidate.overrides, " "), "\n");
}

std::string proposals_json(const plan::Plan& as_given, const std::vector<Proposal>& proposals) {
  ordered_json list = ordered_json::array();
  for (const Proposal& proposal : proposals) {
    const bool is_refused = !proposal.refusal.empty();
    ordered_json row = {{"name", proposal.candidate.name},
                        {"overrides", proposal.candidate.overrides},
                        {"changes_training", proposal.candidate.changes_training},
                        {"refusal", is_refused ? ordered_json(proposal.refusal) : ordered_json()}};
    if (!is_refused) {
      row.update({{"tokens_per_second", proposal.tokens_per_second},
                  {"step_seconds", proposal.step_seconds},
                  {"tokens_per_step", proposal.tokens_per_step},
                  {"bytes_from_other_hosts", proposal.bytes_from_other_hosts},
                  {"device_peak_bytes", proposal.device_peak},
                  {"fits", proposal.fits}});
    }
    list.push_back(std::move(row));
  }
  const ordered_json json = {{"parameters", as_given.parameters},
                             {"world_size", as_given.machines.world_size},
                             {"proposals", std::move(list)}};
  return json.dump(2) + "\n";
}

}  // namespace fsdp::simulate
