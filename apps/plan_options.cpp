#include "plan_options.h"

#include "base/cli/program.h"
#include "base/cli/usage_error.h"
#include "base/util/error.h"
#include "planning_line.h"

namespace fsdp::apps {

void add_plan_options(CLI::App& app, PlanArguments& arguments, const std::string& condition) {
  plan::GivenMachines& machines = arguments.machines;
  app.add_option("--world-size,--gpus", machines.world_size,
                 condition + "number of ranks; may be omitted if [mesh] gives the size of every axis");
  app.add_option("--gpu", machines.gpu,
                 condition +
                     "take memory, speed and links from the data sheet of this GPU, such as h100; explicit "
                     "options take precedence")
      ->check(cli::not_empty());
  app.add_option(
      "--efficiency", machines.efficiency,
      condition +
          "with --gpu: the share of the data sheet's rate that matrix products reach; a plan adds the "
          "time of everything else, 0.4 of theirs; default: 0.7");
  app.add_option("--gpu-memory-gib", machines.memory_gib,
                 condition + "memory of a rank's device; default: 80, or that of the GPU");
  app.add_option("--gpus-per-node", machines.gpus_per_node,
                 condition +
                     "ranks per node, connected by --node-bandwidth-gbps; "
                     "default: all ranks, or 8 with --gpu")
      ->check(cli::at_least(1));
  app.add_option("--node-bandwidth-gbps", machines.node_bandwidth_gbps,
                 condition +
                     "Gbit/s that a rank receives from its own node; default: as from other nodes, "
                     "or the links of --gpu")
      ->check(cli::above(0));
  app.add_option("--bandwidth-gbps", machines.bandwidth_gbps,
                 condition + "Gbit/s that a rank receives; with --gpus-per-node or --gpu from other nodes")
      ->capture_default_str();
  app.add_option("--dcn-bandwidth-gbps", machines.dcn_bandwidth_gbps,
                 condition + "Gbit/s that a rank receives from other replicas")
      ->capture_default_str();
  app.add_option("--host-memory-gib", machines.host_memory_gib,
                 condition + "memory of its host that a rank may take for activations")
      ->capture_default_str();
  app.add_option(
         "--host-bandwidth-gbps", machines.host_bandwidth_gbps,
         condition +
             "Gbit/s between a device and the memory of its host, each way; default: 200, or 0.8 of the data "
             "sheet's with --gpu")
      ->check(cli::above(0));
  app.add_option("--flops-tflops", machines.flops_tflops,
                 condition +
                     "TFLOP/s that a rank reaches; 8-bit products (training.float8) take half the time; "
                     "default: 150, or by --gpu and --efficiency");
  app.add_option("--tokens", machines.tokens,
                 condition + "also print how long training on this many tokens takes, such as 15T");
  app.add_flag("--json", arguments.json, condition + "print one JSON object instead of text");
}

plan::Plan make_plan(const config::Config& config, const PlanArguments& arguments) {
  const PlanningLine line(util::progress_on_stderr());
  try {
    return plan::make_plan(config, plan::machines_of(config, arguments.machines));
  } catch (const util::Error& error) {
    throw util::Error(error.kind(), cli::with_flags(error.what(), {{"memory_gib", "--gpu-memory-gib"}}));
  }
}

const std::vector<std::string>& plan_option_names() {
  static const std::vector<std::string> names = {"--world-size",
                                                 "--gpu",
                                                 "--efficiency",
                                                 "--gpu-memory-gib",
                                                 "--gpus-per-node",
                                                 "--node-bandwidth-gbps",
                                                 "--bandwidth-gbps",
                                                 "--dcn-bandwidth-gbps",
                                                 "--flops-tflops",
                                                 "--tokens",
                                                 "--json"};
  return names;
}

}  // namespace fsdp::apps
