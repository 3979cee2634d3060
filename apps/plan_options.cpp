#include "plan_options.h"

namespace fsdp::apps {

void add_plan_options(CLI::App& app, PlanArguments& arguments, const std::string& condition) {
  plan::PlanOptions& machines = arguments.machines;
  app.add_option("--world-size", machines.world_size,
                 condition + "ranks; may be left out where [mesh] gives every axis a size");
  app.add_option("--gpu-memory-gib", machines.memory_gib, condition + "memory of a rank's device")
      ->capture_default_str();
  app.add_option("--bandwidth-gbps", machines.bandwidth_gbps, condition + "Gbit/s that a rank receives")
      ->capture_default_str();
  app.add_option("--dcn-bandwidth-gbps", machines.dcn_bandwidth_gbps, condition + "the same between replicas")
      ->capture_default_str();
  app.add_option(
         "--flops-tflops", machines.flops_tflops,
         condition +
             "TFLOP/s that a rank sustains; products in 8 bits (training.float8) take half their time")
      ->capture_default_str();
  app.add_flag("--json", arguments.json, condition + "one JSON object in place of text");
}

const std::vector<std::string>& plan_option_names() {
  static const std::vector<std::string> names = {"--world-size",     "--gpu-memory-gib",
                                                 "--bandwidth-gbps", "--dcn-bandwidth-gbps",
                                                 "--flops-tflops",   "--json"};
  return names;
}

}  // namespace fsdp::apps
