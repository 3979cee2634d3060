#include "tools/launch/command_line.h"

#include <algorithm>
#include <cctype>

#include "base/util/error.h"
#include "base/util/log.h"

namespace fsdp::launch {
namespace {

/// Both spellings of an option that torchrun accepts: "--log-dir" -> "--log-dir,--log_dir".
std::string spellings(const std::string& name) {
  std::string other = name;
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return other == name ? name : name + "," + other;
}

/// torchrun's environment variable of an option: "--log-dir" -> "PET_LOG_DIR".
std::string variable_of(const std::string& name) {
  std::string variable = "PET_" + name.substr(2);
  std::replace(variable.begin(), variable.end(), '-', '_');
  std::transform(variable.begin(), variable.end(), variable.begin(), ::toupper);
  return variable;
}

/// The program in the arguments left over by CLI11: [--] PROGRAM ARGUMENTS.
std::vector<std::string> program_of(std::vector<std::string> rest) {
  if (!rest.empty() && rest.front() == "--") {
    rest.erase(rest.begin());
  } else if (!rest.empty() && rest.front().starts_with("-")) {
    throw CLI::ExtrasError({rest.front()});
  }
  return rest;
}

/// Texts of options that CLI11 does not parse.
struct OptionTexts {
  std::string hosts, nodes = "1", workers = "1", backend = "static", endpoint, conf, redirects = "0",
                     tee = "0", filter, signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2", binding;
  bool standalone = false, no_python = false;
};

/// An option of torchrun that has no meaning here.
struct TorchrunOption {
  const char* name;
  bool is_flag;
  /// Whether the option is refused, because the run would not do what it asks for; otherwise it is ignored.
  bool is_refused;
  const char* why;  ///< reason and, if the option is refused, remedy
};

constexpr const char* kNoCopies =
    "chosen lines are not copied to a file; --log-dir DIR keeps all lines of each rank, for grep";

constexpr TorchrunOption kTorchrunOptions[] = {
    {"--start-method", false, false, "workers are programs, which fork and exec always start"},
    {"--event-log-handler", false, false, "torchelastic's events are not recorded"},
    {"--module", true, true, "PROGRAM is run as it is; write -- python3 -m MODULE in its place"},
    {"--run-path", true, true, "PROGRAM is run as it is; write -- python3 SCRIPT in its place"},
    {"--logs-specs", false, true,
     "it names a class in Python; use --log-dir, --redirects, --tee and --local-ranks-filter"},
    {"--duplicate-stdout-filters", false, true, kNoCopies},
    {"--duplicate-stderr-filters", false, true, kNoCopies},
    {"--virtual-local-rank", true, true,
     "each worker sees all GPUs of its node and takes the one with the number LOCAL_RANK; leave it out"}};

/// Adds torchrun's options that have no meaning here. They are hidden, because --help lists options that have
/// an effect.
void add_torchrun_options(CLI::App& app) {
  for (const TorchrunOption& each : kTorchrunOptions) {
    const std::string name = each.name, names = (name == "--module" ? "-m," : "") + spellings(name);
    CLI::Option* option = each.is_flag ? app.add_flag(names) : app.add_option(names);
    option->envname(variable_of(name))->group("");
  }
}

void answer_torchrun_options(const CLI::App& app) {
  for (const TorchrunOption& each : kTorchrunOptions) {
    const CLI::Option& option = *app.get_option(each.name);
    if (option.count() == 0 || (each.is_flag && !option.as<bool>())) continue;
    if (each.is_refused) {
      fail(ErrorKind::kUsage, "expected no ", each.name, ", an option of torchrun only: ", each.why);
    }
    util::log_warning(concat(each.name, ", an option of torchrun, is ignored: ", each.why));
  }
}

void add_options(CLI::App& app, LaunchOptions& options, OptionTexts& texts) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(spellings(name), value, help)->envname(variable_of(name))->capture_default_str();
  };
  add("--nproc-per-node", texts.workers,
      "processes to start on this node; cpu, gpu, auto: one for each core or GPU");
  // Without an environment variable, which the launcher on localhost would inherit.
  CLI::Option* hosts = app.add_option("--hosts", texts.hosts,
                                      "hosts of the run, HOST,HOST,...: start fsdp-launch with the other "
                                      "options on each, over ssh, but on localhost without it");
  add("--nnodes", texts.nodes, "nodes of the run, or MIN:MAX of them")->excludes(hosts);
  add("--node-rank", options.node_rank, "this node's number, with --rdzv-backend static")->excludes(hosts);
  add("--master-addr", options.master_addr, "address of node 0, with --rdzv-backend static");
  add("--master-port", options.master_port,
      "one node: the port that rank 0 listens on (0: a free one); several: the port where "
      "node 0 meets the others (0: 29500)");
  add("--local-addr", options.local_addr, "address by which other nodes reach this one");
  add("--rdzv-backend", texts.backend, "static: nodes have fixed ranks; c10d: ranks as nodes come and go");
  add("--rdzv-endpoint", texts.endpoint, "HOST[:PORT] of the node where all nodes meet");
  add("--rdzv-id", options.rendezvous.id, "name of the run, the same on all nodes");
  add("--rdzv-conf", texts.conf,
      "KEY=VALUE,...: join_timeout, last_call_timeout, keep_alive_interval (seconds), "
      "keep_alive_max_attempt, is_host, token_file, trust_network");
  app.add_flag("--standalone", texts.standalone, "one node; the options of --rdzv and --master are ignored")
      ->envname("PET_STANDALONE")
      ->excludes(hosts);
  add("--max-restarts", options.max_restarts,
      "how often all processes, or those of each replica, are restarted after a failure");
  add("--replica-size", options.replica_size,
      "processes of a replica, which has the whole state of the run: when a replica is lost the others "
      "go on; 0: a failure ends all processes");
  add("--min-replicas", options.min_replicas, "replicas without which the run does not go on");
  add("--stop-timeout", options.stop_timeout_seconds,
      "seconds that processes have to stop when a replica is lost, before they are lost too");
  add("--monitor-interval", options.monitor_interval_seconds, "seconds between the heartbeats of nodes");
  add("--shutdown-timeout", options.shutdown_timeout_seconds,
      "seconds that workers have to end after SIGTERM before SIGKILL");
  add("--signals-to-handle", texts.signals, "signals that are passed on to the workers");
  add("--log-dir", options.log_dir, "folder for the output of each rank, rank<R>.log");
  app.add_option("-r,--redirects", texts.redirects,
                 "streams that go to a file only: 1 stdout, 2 stderr, 3 both, or LOCAL_RANK:STREAMS,...")
      ->envname("PET_REDIRECTS")
      ->capture_default_str();
  app.add_option("-t,--tee", texts.tee, "streams that go to a file and the console, written like --redirects")
      ->envname("PET_TEE")
      ->capture_default_str();
  add("--local-ranks-filter", texts.filter,
      "local ranks whose output the console shows, such as 0,1; empty: all");
  add("--numa-binding", texts.binding, "cores a worker may use: node, socket, exclusive, core-complex");
  add("--role", options.role, "ROLE_NAME of the workers");
  app.add_flag("--no-python,--no_python", texts.no_python,
               "accepted as in torchrun's command lines: PROGRAM is always run as it is")
      ->envname("PET_NO_PYTHON");
}

void read_texts(const OptionTexts& texts, LaunchOptions& options) {
  options.nproc_per_node = workers_from_text(texts.workers);
  options.nnodes = nodes_from_text(texts.nodes);
  options.redirects = streams_from_text("--redirects", texts.redirects);
  options.tee = streams_from_text("--tee", texts.tee);
  options.local_ranks_filter = ranks_from_text("--local-ranks-filter", texts.filter);
  options.signals = signals_from_text(texts.signals);
  options.numa_binding = numa_binding_from_text(texts.binding);
  RendezvousOptions& rendezvous = options.rendezvous;
  if (texts.standalone) {
    if (options.is_multi_node()) {
      fail(ErrorKind::kUsage, "--standalone is a run of one node, but --nnodes is ", texts.nodes);
    }
    options.master_addr = LaunchOptions().master_addr;
    options.master_port = 0;
    options.node_rank = 0;
    rendezvous = {};
    return;
  }
  rendezvous.backend = backend_from_text(texts.backend);
  read_rendezvous_conf(texts.conf, rendezvous);
  constexpr int kStaticPort = 29500, kC10dPort = 29400;  // torchrun's
  if (rendezvous.is_static()) {
    rendezvous.host = options.master_addr;
    rendezvous.port = options.master_port ? options.master_port : kStaticPort;
  }
  read_endpoint(texts.endpoint, kC10dPort, rendezvous);
}

}  // namespace

std::optional<LaunchOptions> parse_command_line(int argc, const char* const* argv,
                                                const CommandLineHooks& hooks) {
  LaunchOptions options;
  OptionTexts texts;
  CLI::App app(
      "Starts PROGRAM in several processes on this node, with the environment that torchrun sets, and "
      "supervises them: the first that fails ends the run, or restarts all of them (--max-restarts). In a "
      "run of several nodes, start it on each node. Options come before PROGRAM; each can also be set by "
      "torchrun's environment variable for it.",
      "fsdp-launch");
  app.footer(
      "Nodes of a run know each other by a token, which keeps out all others: that in FSDP_LAUNCH_TOKEN, the same "
      "on all nodes; or that in a file which they share (--rdzv-conf token_file=PATH); or else that in "
      "~/.config/fsdp/launch-token, which the first launcher makes. --rdzv-conf trust_network=true does without.");
  app.prefix_command();
  add_options(app, options, texts);
  add_torchrun_options(app);
  if (hooks.prepare && hooks.prepare(app)) return std::nullopt;
  try {
    app.parse(argc, argv);
    options.program = program_of(app.remaining());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      app.exit(error);
      return std::nullopt;
    }
    if (hooks.explain) fail(ErrorKind::kUsage, hooks.explain(app, error));
    fail(ErrorKind::kUsage, error.what(), "; see --help");
  }
  answer_torchrun_options(app);
  if (app.count("--hosts") > 0) {
    // The hosts read the other options: numbers of cores and GPUs are theirs.
    options.on_hosts.hosts = hosts_from_text(texts.hosts);
    const auto words = argc - static_cast<int>(app.remaining().size());
    options.on_hosts.options = options_of_hosts({argv + 1, argv + std::max(words, 1)});
    return options;
  }
  read_texts(texts, options);
  return options;
}

}  // namespace fsdp::launch
