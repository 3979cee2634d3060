// The recipes for clusters and services (scripts/launch_k8s.yaml, scripts/launch_slurm.sbatch and
// scripts/recipes). Each is run dry: the commands, arguments and variables that it gives to two pods or nodes
// are used on this machine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "base/util/error.h"
#include "e2e/programs.h"
#include "setup/config/source.h"
#include "setup/translate/yaml.h"
#include "state/manifest/folders.h"
#include "support/free_port.h"
#include "support/source_folder.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;
using config::Literal;
using testing::ProgramResult;
using testing::RunningProgram;
using testing::TemporaryFolder;

std::string text_of_recipe(const std::string& name) {
  std::ifstream file(testing::source_folder() + "/scripts/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A value of a manifest, found by the names of fields and the positions in lists.
class ManifestNode {
 public:
  explicit ManifestNode(Literal literal) : literal_(std::move(literal)) {}

  bool has(const std::string& name) const { return find(name) != nullptr; }
  ManifestNode operator[](const std::string& name) const {
    const Literal* value = find(name);
    if (value == nullptr) throw std::runtime_error("the manifest has no " + name);
    return ManifestNode(*value);
  }
  ManifestNode operator[](size_t index) const { return ManifestNode(literal_.items.at(index)); }
  size_t size() const { return literal_.items.size(); }
  /// Each entry of a list.
  std::vector<ManifestNode> items() const { return {literal_.items.begin(), literal_.items.end()}; }
  std::string text() const {
    return literal_.kind == Literal::Kind::kInteger ? std::to_string(literal_.integer) : literal_.text;
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> found;
    for (const ManifestNode& item : items()) found.push_back(item.text());
    return found;
  }
  int64_t integer() const { return literal_.integer; }

 private:
  const Literal* find(const std::string& name) const {
    for (const Literal::Field& field : literal_.fields) {
      if (field.name == name) return &field.value;
    }
    return nullptr;
  }

  Literal literal_;
};

/// The manifest of that kind among those of a file.
ManifestNode manifest(const std::string& file, const std::string& kind) {
  std::istringstream lines(text_of_recipe(file));
  std::vector<std::string> texts(1);
  for (std::string line; std::getline(lines, line);) {
    if (line == "---") {
      texts.emplace_back();
    } else {
      texts.back() += line + "\n";
    }
  }
  for (const std::string& text : texts) {
    try {
      ManifestNode found(config::parse_yaml(config::Source::from_text(file, text)));
      if (found["kind"].text() == kind) return found;
    } catch (const config::SyntaxError& error) {
      throw std::runtime_error(file + ": " + error.message);
    }
  }
  throw std::runtime_error(file + " has no " + kind);
}

std::set<int64_t> codes_of_action(const ManifestNode& job, const std::string& action) {
  std::set<int64_t> codes;
  for (const ManifestNode& rule : job["podFailurePolicy"]["rules"].items()) {
    if (rule["action"].text() != action || !rule.has("onExitCodes")) continue;
    for (const ManifestNode& code : rule["onExitCodes"]["values"].items()) codes.insert(code.integer());
  }
  return codes;
}

/// What the two pods of a recipe have in common.
struct PodRecipe {
  ManifestNode job;                               ///< spec of the Job
  ManifestNode container;                         ///< the container that trains
  std::vector<std::string> command;               ///< command and arguments
  std::map<std::string, std::string> more_env{};  ///< variables that a controller adds
  std::string first_host;                         ///< name of pod 0
};

class ClusterRecipe : public ::testing::Test {
 protected:
  void SetUp() override { testing::write_token_file(folder_ / "train.bin", 20'000, 17); }

  void write_config(int64_t steps) const {
    folder_.write("config.toml",
                  concat(kOddModel, "[logging]\ninterval_steps = 1\n[checkpoint]\ninterval_steps = ",
                         10 * steps, "\n[run]\noutput_dir = \"", (folder_ / "run").string(), "\"\n"));
    std::string text = folder_.read("config.toml");
    text.replace(text.find("steps = 20"), 10, "steps = " + std::to_string(steps));
    text.replace(text.find("[data]\n"), 7,
                 "[data]\ntrain = [\"" + (folder_ / "train.bin").string() + "\"]\n");
    folder_.write("config.toml", text);
  }

  /// The container of pod `index`, started as a kubelet would, but on this host and with one process.
  std::unique_ptr<RunningProgram> start_pod(const PodRecipe& recipe, int index) {
    std::map<std::string, std::string> env = recipe.more_env;
    env["JOB_COMPLETION_INDEX"] = std::to_string(index);
    for (const ManifestNode& variable : recipe.container["env"].items()) {
      env[variable["name"].text()] = value_of_variable(variable, index);
    }
    for (auto& [name, value] : env) value = on_this_host(recipe, value);
    if (env.contains("PET_NODE_RANK")) env["PET_NODE_RANK"] = std::to_string(index);
    env["PET_MASTER_PORT"] = std::to_string(port_);
    std::vector<std::string> words;
    for (std::string word : recipe.command) {
      for (const auto& [name, value] : env) {  // $(NAME), as Kubernetes has it
        const std::string reference = "$(" + name + ")";
        if (const size_t at = word.find(reference); at != std::string::npos) {
          word.replace(at, reference.size(), value);
        }
      }
      words.push_back(on_this_host(recipe, word));
    }
    testing::RunOptions options{.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 120};
    for (const auto& [name, value] : env) options.env[name] = value;
    return std::make_unique<RunningProgram>(words, options);
  }

  static std::string value_of_variable(const ManifestNode& variable, int index) {
    if (variable.has("value")) return variable["value"].text();
    const ManifestNode from = variable["valueFrom"];
    if (from.has("secretKeyRef")) return "0123456789abcdef0123456789abcdef";
    const std::string field = from["fieldRef"]["fieldPath"].text();
    if (field != "metadata.annotations['batch.kubernetes.io/job-completion-index']") {
      throw std::runtime_error("no pod has the field " + field);
    }
    return std::to_string(index);
  }

  std::string on_this_host(const PodRecipe& recipe, std::string word) const {
    const std::vector<std::pair<std::string, std::string>> places = {
        {recipe.first_host, "127.0.0.1"},
        {"--nproc-per-node=auto", "--nproc-per-node=1"},
        {"/data/", folder_.path().string() + "/"}};
    if (word == "auto") return "1";
    if (word == "fsdp-launch" || word == "fsdp-train") return program(word);
    for (const auto& [from, to] : places) {
      if (const size_t at = word.find(from); at != std::string::npos) word.replace(at, from.size(), to);
    }
    return word;
  }

  /// Two pods train, one of them is evicted, both are started again, and finish.
  void expect_eviction_costs_nothing(const PodRecipe& recipe) {
    EXPECT_EQ(recipe.job["completionMode"].text(), "Indexed");
    const std::set<int64_t> ignored = codes_of_action(recipe.job, "Ignore"),
                            fatal = codes_of_action(recipe.job, "FailJob");
    EXPECT_EQ(ignored, (std::set<int64_t>{5, 75}));
    EXPECT_EQ(fatal, (std::set<int64_t>{2, 3, 4, 8}));
    write_config(1'000'000);
    {
      const auto first = start_pod(recipe, 0), second = start_pod(recipe, 1);
      ASSERT_TRUE(first->wait_for("step 5/")) << first->out() << first->err();
      second->send(SIGTERM);
      const ProgramResult evicted = second->wait(), other = first->wait();
      EXPECT_EQ(evicted.exit_code, 75) << evicted.err;
      EXPECT_TRUE(ignored.contains(other.exit_code)) << other.exit_code << other.out << other.err;
    }
    const fs::path saved = checkpoint::checkpoint_folder(folder_ / "run");
    const int64_t step = std::stoll(saved.filename().string().substr(std::string("step-").size()));
    EXPECT_GE(step, 5);
    write_config(step + 3);
    const auto first = start_pod(recipe, 0), second = start_pod(recipe, 1);
    for (RunningProgram* pod : {first.get(), second.get()}) {
      const ProgramResult result = pod->wait();
      EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    }
    EXPECT_NE((first->out() + first->err()).find("step " + std::to_string(step + 1) + "/"), std::string::npos)
        << first->err();
  }

  TemporaryFolder folder_;
  int port_ = testing::free_port();
};

std::vector<std::string> command_of(const ManifestNode& container) {
  std::vector<std::string> words = container["command"].texts();
  if (!container.has("args")) return words;
  for (const std::string& word : container["args"].texts()) words.push_back(word);
  return words;
}

TEST_F(ClusterRecipe, OfAKubernetesJobTrainsOverItsPods) {
  const ManifestNode job = manifest("launch_k8s.yaml", "Job"),
                     service = manifest("launch_k8s.yaml", "Service");
  const ManifestNode spec = job["spec"], pod = spec["template"]["spec"];
  const std::string name = job["metadata"]["name"].text(), subdomain = pod["subdomain"].text();
  EXPECT_EQ(service["metadata"]["name"].text(), subdomain);
  EXPECT_EQ(service["spec"]["selector"]["job-name"].text(), name);
  EXPECT_EQ(spec["completions"].integer(), 2);
  EXPECT_EQ(spec["parallelism"].integer(), 2);
  const ManifestNode container = pod["containers"][size_t{0}];
  const PodRecipe recipe{.job = spec,
                         .container = container,
                         .command = command_of(container),
                         .first_host = name + "-0." + subdomain};
  EXPECT_THAT(recipe.command, ::testing::Contains("--master-addr=" + recipe.first_host));
  expect_eviction_costs_nothing(recipe);
}

TEST_F(ClusterRecipe, OfAJobSetTrainsOverItsPods) {
  const ManifestNode set = manifest("recipes/jobset.yaml", "JobSet");
  const ManifestNode replicated = set["spec"]["replicatedJobs"][size_t{0}],
                     spec = replicated["template"]["spec"];
  const std::string name = set["metadata"]["name"].text();
  const ManifestNode container = spec["template"]["spec"]["containers"][size_t{0}];
  const PodRecipe recipe{.job = spec,
                         .container = container,
                         .command = command_of(container),
                         .first_host = name + "-" + replicated["name"].text() + "-0-0." + name};
  EXPECT_EQ(spec["completions"].integer(), 2);
  EXPECT_EQ(spec["parallelism"].integer(), 2);
  bool names_the_first = false;
  for (const ManifestNode& variable : container["env"].items()) {
    names_the_first = names_the_first || (variable["name"].text() == "PET_MASTER_ADDR" &&
                                          variable["value"].text() == recipe.first_host);
  }
  EXPECT_TRUE(names_the_first);
  expect_eviction_costs_nothing(recipe);
}

TEST_F(ClusterRecipe, OfKubeflowTrainerTrainsOverItsPods) {
  const ManifestNode runtime = manifest("recipes/kubeflow-trainer.yaml", "ClusterTrainingRuntime"),
                     train_job = manifest("recipes/kubeflow-trainer.yaml", "TrainJob");
  EXPECT_EQ(train_job["spec"]["runtimeRef"]["name"].text(), runtime["metadata"]["name"].text());
  EXPECT_TRUE(runtime["spec"]["mlPolicy"].has("torch"));
  const ManifestNode replicated = runtime["spec"]["template"]["spec"]["replicatedJobs"][size_t{0}];
  const ManifestNode spec = replicated["template"]["spec"];
  const ManifestNode container = spec["template"]["spec"]["containers"][size_t{0}];
  EXPECT_EQ(replicated["name"].text(), "node");
  EXPECT_EQ(container["name"].text(), "node");
  const std::string name = train_job["metadata"]["name"].text(), first_host = name + "-node-0-0." + name;
  std::vector<std::string> command = container["command"].texts();
  for (const std::string& word : train_job["spec"]["trainer"]["args"].texts()) command.push_back(word);
  // Variables as the plug-in `torch` of Trainer sets them.
  expect_eviction_costs_nothing({.job = spec,
                                 .container = container,
                                 .command = command,
                                 .more_env = {{"PET_NNODES", train_job["spec"]["trainer"]["numNodes"].text()},
                                              {"PET_NPROC_PER_NODE", "auto"},
                                              {"PET_NODE_RANK", ""},
                                              {"PET_MASTER_ADDR", first_host},
                                              {"PET_MASTER_PORT", "29500"}},
                                 .first_host = first_host});
}

TEST_F(ClusterRecipe, OfKubernetesHasTheFieldsOfItsKinds) {
  const char* chosen = std::getenv("FSDP_TEST_PYTHON");
  const std::string python = chosen == nullptr ? "python3" : chosen;
  if (testing::run({python, "-c", "import kubernetes_validate, yaml"}).exit_code != 0) {
    GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has kubernetes-validate";
  }
  const ProgramResult result =
      testing::run({python, testing::source_folder() + "/tests/e2e/validate_manifests.py"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  for (const char* kind : {"Service", "Job", "JobSet", "ClusterTrainingRuntime", "TrainJob"}) {
    EXPECT_NE(result.out.find(std::string(kind) + " is valid"), std::string::npos) << result.out;
  }
}

// The two programs of SLURM that scripts/launch_slurm.sbatch uses, on this host. tests/e2e/slurm_trial uses
// the real ones.
constexpr const char* kSrun = R"sh(#!/bin/bash
group=
while [[ $1 == --* ]]; do [[ $1 == --het-group=* ]] && group=$1; shift; done
echo "$group" > "$FAKE/group"
echo $$ > "$FAKE/pid"
pids=()
for node in $NODES; do SLURMD_NODENAME=$node "$@" & pids+=($!); done
trap 'kill -TERM "${pids[@]}"' TERM
code=0
for pid in "${pids[@]}"; do
  while wait "$pid"; one=$?; kill -0 "$pid" 2>/dev/null; do :; done
  [ $one -gt $code ] && code=$one
done
exit $code
)sh";
constexpr const char* kScontrol = R"sh(#!/bin/bash
case $1 in
  show) printf '%s\n' $3 ;;
  requeue) echo "$2" > "$FAKE/requeued" ;;
esac
)sh";

TEST_F(ClusterRecipe, OfSlurmTrainsOverTheNodesOfAllComponentsAndIsQueuedAgainAfterASignal) {
  for (const auto& [file, text] : {std::pair{"srun", kSrun}, {"scontrol", kScontrol}}) {
    fs::permissions(folder_.write(file, text), fs::perms::owner_all);
  }
  const std::string nodes = "127.0.0.1 127.0.0.2", job_id = std::to_string(::getpid());
  testing::RunOptions options{.env = {{"PATH", folder_.path().string() + ":" + std::getenv("PATH")},
                                      {"FAKE", folder_.path().string()},
                                      {"NODES", nodes},
                                      {"FSDP_LAUNCH", program("fsdp-launch")},
                                      {"FSDP_LAUNCH_OPTIONS", "--nproc-per-node 1"},
                                      {"OMP_NUM_THREADS", "1"},
                                      {"SLURM_JOB_ID", job_id},  // determines the port
                                      {"SLURM_JOB_NODELIST", nodes}},
                              .timeout_seconds = 120};
  const std::vector<std::string> job = {"bash", testing::source_folder() + "/scripts/launch_slurm.sbatch",
                                        program("fsdp-train"), (folder_ / "config.toml").string()};
  write_config(1'000'000);
  {
    RunningProgram running(job, options);
    ASSERT_TRUE(running.wait_for("step 5/")) << running.out() << running.err();
    ::kill(std::stoi(folder_.read("pid")), SIGTERM);  // SLURM signals the tasks, not the script
    const ProgramResult result = running.wait();
    EXPECT_EQ(result.exit_code, 75) << result.out << result.err;
    EXPECT_EQ(folder_.read("requeued"), job_id + "\n");
    EXPECT_EQ(folder_.read("group"), "\n");
  }
  const fs::path saved = checkpoint::checkpoint_folder(folder_ / "run");
  write_config(std::stoll(saved.filename().string().substr(5)) + 3);
  options.env.erase("SLURM_JOB_NODELIST");
  options.env["SLURM_HET_SIZE"] = "2";
  options.env["SLURM_JOB_NODELIST_HET_GROUP_0"] = "127.0.0.1";
  options.env["SLURM_JOB_NODELIST_HET_GROUP_1"] = "127.0.0.2";
  const ProgramResult result = testing::run(job, options);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(folder_.read("group"), "--het-group=0-1\n");
}

/// The values of a setting of a unit of systemd, which may occur several times.
std::vector<std::string> unit_settings(const std::string& text, const std::string& name) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + "=")) found.push_back(line.substr(name.size() + 1));
  }
  return found;
}

constexpr const char* kUnit = "recipes/fsdp-train@.service";

TEST_F(ClusterRecipe, OfSystemdSavesWhenItStopsAndContinues) {
  const std::string unit = text_of_recipe(kUnit);
  ASSERT_EQ(unit_settings(unit, "ExecStart").size(), 1U);
  std::istringstream start(unit_settings(unit, "ExecStart").front());
  std::vector<std::string> command;
  for (std::string word; start >> word;) {
    command.push_back(word.starts_with("/usr/bin/") ? program(word.substr(9)) : word);
  }
  const testing::RunOptions options{.env = {{"OMP_NUM_THREADS", "1"}, {"PET_NPROC_PER_NODE", "2"}},
                                    .working_folder = folder_.path(),
                                    .timeout_seconds = 120};
  ASSERT_EQ(unit_settings(unit, "KillSignal"), std::vector<std::string>{"SIGTERM"});
  ASSERT_EQ(unit_settings(unit, "KillMode"), std::vector<std::string>{"mixed"});
  write_config(1'000'000);
  {
    RunningProgram running(command, options);
    ASSERT_TRUE(running.wait_for("step 5/")) << running.out() << running.err();
    running.send(SIGTERM);
    const std::vector<std::string> code = {std::to_string(running.wait().exit_code)};
    EXPECT_EQ(unit_settings(unit, "SuccessExitStatus"), code);
    EXPECT_EQ(unit_settings(unit, "RestartForceExitStatus"), code);
  }
  const fs::path saved = checkpoint::checkpoint_folder(folder_ / "run");
  write_config(std::stoll(saved.filename().string().substr(5)) + 3);
  const ProgramResult finished = testing::run(command, options);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  folder_.write("config.toml", "[training]\nstps = 1\n");
  const ProgramResult mistaken = testing::run(command, options);
  EXPECT_THAT(" " + unit_settings(unit, "RestartPreventExitStatus").front() + " ",
              ::testing::HasSubstr(" " + std::to_string(mistaken.exit_code) + " "));
}

TEST_F(ClusterRecipe, OfSystemdIsValid) {
  if (testing::run({"sh", "-c", "command -v systemd-analyze"}).exit_code != 0) {
    GTEST_SKIP() << "no systemd-analyze here (Debian: systemd)";
  }
  std::string unit = text_of_recipe(kUnit);
  for (const char* name : {"fsdp-launch", "fsdp-train"}) {
    const std::string installed = std::string("/usr/bin/") + name;
    unit.replace(unit.find(installed), installed.size(), program(name));
  }
  const auto verify = [&](const std::string& text) {
    return testing::run(
        {"systemd-analyze", "verify", "--man=no", folder_.write("fsdp-train@run.service", text).string()});
  };
  const ProgramResult result = verify(unit);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_NE(verify(unit + "\n[Service]\nRestart=sometimes\n").err, "") << "the check must find mistakes";
}

}  // namespace
}  // namespace fsdp::e2e
