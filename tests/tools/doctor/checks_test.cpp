#include "tools/doctor/checks.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>

#include "base/util/system.h"
#include "model/families/families.h"
#include "state/hugging_face/hugging_face_config.h"
#include "support/program_path.h"
#include "support/run_program.h"
#include "support/safetensors_files.h"
#include "support/temporary_folder.h"
#include "support/tiny_models.h"
#include "tools/doctor/doctor.h"

namespace fsdp::doctor {
namespace {

namespace fs = std::filesystem;

const Finding& of(const Findings& findings, const std::string& subject) {
  const auto found = std::find_if(findings.begin(), findings.end(),
                                  [&](const Finding& finding) { return finding.subject == subject; });
  if (found == findings.end()) throw std::runtime_error("no finding of " + subject);
  return *found;
}

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

TEST(Report, HasALineAFindingAndItsRemedy) {
  const Findings findings = {{FindingVerdict::kOk, "cpu", "fast", ""},
                             {FindingVerdict::kFail, "disk", "full", "free it"}};
  EXPECT_EQ(report_text(findings),
            "ok    cpu               fast\n"
            "fail  disk              full\n"
            "                        -> free it\n"
            "1 ok, 0 warnings, 1 failed\n");
  EXPECT_EQ(exit_code(findings), 1);
  EXPECT_EQ(exit_code({{FindingVerdict::kWarn, "cpu", "slow", "wait"}}), 0);
}

TEST(ControlGroup, LimitsAreTheSmallestOfTheGroupAndItsParents) {
  testing::TemporaryFolder root;
  write(root / "proc/self/cgroup", "0::/job/step\n");
  EXPECT_FALSE(memory_limit(root.path()));
  write(root / "sys/fs/cgroup/job/step/memory.max", "max\n");
  write(root / "sys/fs/cgroup/job/memory.max", "1048576\n");
  write(root / "sys/fs/cgroup/job/step/cpu.max", "150000 100000\n");
  write(root / "sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(memory_limit(root.path()), 1048576);
  EXPECT_EQ(util::cpu_time_quota(root.path()), 1.5);
}

TEST(ControlGroup, OfVersionOneIsReadToo) {
  testing::TemporaryFolder root;
  write(root / "proc/self/cgroup", "5:cpu,cpuacct:/box\n4:memory:/box\n");
  write(root / "sys/fs/cgroup/memory/box/memory.limit_in_bytes", "4096\n");
  write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write(root / "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
  write(root / "sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(memory_limit(root.path()), 4096);
  EXPECT_FALSE(util::cpu_time_quota(root.path()));
}

TEST(Memory, IsLittleWhereTheControlGroupGrantsLittle) {
  testing::TemporaryFolder root;
  write(root / "proc/meminfo", "MemTotal:  16777216 kB\nMemAvailable:   8388608 kB\nSwapTotal: 0 kB\n");
  EXPECT_EQ(of(check_memory(root.path()), "memory").verdict, FindingVerdict::kOk);
  write(root / "proc/self/cgroup", "0::/\n");
  write(root / "sys/fs/cgroup/memory.max", "536870912\n");
  const Findings findings = check_memory(root.path());
  EXPECT_EQ(of(findings, "memory").verdict, FindingVerdict::kWarn);
  EXPECT_NE(of(findings, "memory").text.find("8.0 GiB available of 16.0 GiB"), std::string::npos);
  EXPECT_NE(of(findings, "memory").text.find("grants 512.0 MiB"), std::string::npos);
}

TEST(Limits, OfOpenFilesAreTooLowBelowAThousand) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const Finding finding = of(check_limits(), "limit nofile");
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(finding.verdict, FindingVerdict::kWarn);
  EXPECT_EQ(finding.text, "256");
  EXPECT_NE(finding.remedy.find("ulimit -n"), std::string::npos);
}

TEST(Accelerators, AreNamedWithTheirDriver) {
  testing::TemporaryFolder root;
  write(root / "proc/driver/nvidia/version", "NVRM version: Kernel Module  580.1\nGCC version: 12\n");
  EXPECT_EQ(of(check_accelerators(root.path()), "gpu driver").text, "Kernel Module  580.1");
  EXPECT_NE(of(check_accelerators("/nonexistent"), "gpu driver").text.find("none"), std::string::npos);
}

TEST(Float8, NeedsGpusThatHaveMatrixUnitsForIt) {
  const auto found = [](const std::string& device, const std::vector<std::string>& capabilities) {
    config::Config config;
    config.training.float8 = "tensorwise";
    config.training.device = device;
    std::vector<util::CudaDevice> gpus;
    for (const std::string& capability : capabilities) {
      gpus.push_back({.name = "GPU " + capability, .capability = capability, .bus_id = ""});
    }
    return of(check_float8(config, gpus), "training.float8");
  };
  EXPECT_EQ(found("auto", {"8.9", "9.0", "12.0"}).verdict, FindingVerdict::kOk);
  const Finding old = found("auto", {"9.0", "8.6"});
  EXPECT_EQ(old.verdict, FindingVerdict::kFail);
  EXPECT_EQ(
      old.text,
      "tensorwise, and GPU 8.6, of compute capability 8.6, has no matrix units for 8-bit floating point");
  EXPECT_NE(old.remedy.find("8.9, 9.0 or later"), std::string::npos);
  EXPECT_EQ(found("cpu", {"8.6"}).verdict, FindingVerdict::kWarn) << "the GPU is not used";
  EXPECT_EQ(found("auto", {}).verdict, FindingVerdict::kWarn);
  EXPECT_EQ(found("cuda", {}).verdict, FindingVerdict::kFail);
  EXPECT_TRUE(check_float8({}, {{.name = "GPU", .capability = "7.0", .bus_id = ""}}).empty());
}

TEST(Disk, IsTriedBelowTheNearestFolderThatIsThere) {
  testing::TemporaryFolder folder;
  config::Config config;
  config.run.output_dir = folder / "a/b/c";
  const Findings findings = check_disk(config);
  EXPECT_NE(of(findings, "disk speed").verdict, FindingVerdict::kFail);
  EXPECT_NE(of(findings, "disk space").text.find("a checkpoint takes about"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder.path())) << "nothing is left";
  write(folder / "file", "x");
  config.run.output_dir = folder / "file/below";
  EXPECT_EQ(of(check_disk(config), "output folder").verdict, FindingVerdict::kFail);
}

TEST(Disk, IsTooSmallForAModelOfATrillionParameters) {
  testing::TemporaryFolder folder;
  config::Config config;
  config.run.output_dir = folder / "out";
  config.model.hidden_size = 25600;
  config.model.intermediate_size = 102400;
  config.model.num_hidden_layers = 1000;
  EXPECT_EQ(of(check_disk(config), "disk space").verdict, FindingVerdict::kFail);
}

TEST(Files, ThatAreNotThereFailByName) {
  config::Config config;
  config.data.train = {"/nonexistent/none.bin"};
  const Finding finding = of(check_files(config), "files");
  EXPECT_EQ(finding.verdict, FindingVerdict::kFail);
  EXPECT_NE(finding.text.find("/nonexistent/none.bin"), std::string::npos);
}

TEST(Files, HaveNoIdsBeyondTheVocabulary) {
  testing::TemporaryFolder folder;
  config::Config config;
  config.model.vocab_size = 300;
  write(folder / "train-0.bin", std::string("\x01\x00\x02\x00", 4));
  write(folder / "train-1.bin", std::string("\x03\x00\x2b\x01", 4));  // 299
  config.data.train = {folder / "train-*.bin"};
  const Finding fits = of(check_files(config), "training data");
  EXPECT_EQ(fits.verdict, FindingVerdict::kOk) << fits.text;
  EXPECT_NE(fits.text.find("4 tokens, the largest id 299"), std::string::npos) << fits.text;
  config.data.validation = config.data.train;
  config.model.vocab_size = 299;
  for (const char* subject : {"training data", "validation data"}) {
    const Finding beyond = of(check_files(config), subject);
    EXPECT_EQ(beyond.verdict, FindingVerdict::kFail);
    EXPECT_NE(beyond.remedy.find("at least 300"), std::string::npos) << beyond.remedy;
  }
}

TEST(Files, ThatNoPatternFitsFail) {
  config::Config config;
  config.data.train = {"/nonexistent/*.bin"};
  EXPECT_EQ(of(check_files(config), "files").verdict, FindingVerdict::kFail);
}

TEST(Files, HaveTheWeightsOfTheModelAndNothingElse) {
  testing::TemporaryFolder folder;
  config::Config config;
  config.model = testing::tiny_options();
  write(folder / "train.bin", "");
  config.data.train = {folder / "train.bin"};
  testing::NamedTensors weights;
  for (const auto& [name, shape] : nn::weight_shapes(config.model)) {
    weights.emplace_back(name, at::zeros(shape));
  }
  config.model.init_from = folder / "model.safetensors";
  testing::write_safetensors(folder / "model.safetensors", weights);
  EXPECT_EQ(of(check_files(config), "first weights").verdict, FindingVerdict::kOk);
  weights.emplace_back("model.layers.0.self_attn.q_norm.weight", at::zeros({3}));
  testing::write_safetensors(folder / "model.safetensors", weights);
  const Finding unused = of(check_files(config), "first weights");
  EXPECT_EQ(unused.verdict, FindingVerdict::kFail);
  EXPECT_NE(unused.text.find("q_norm"), std::string::npos) << unused.text;
  config.model.init_unused = {"*q_norm*"};
  EXPECT_EQ(of(check_files(config), "first weights").verdict, FindingVerdict::kOk);
  nlohmann::json described = checkpoint::hugging_face_config(config.model);
  described["model_type"] = "granitemoe";
  write(folder / "config.json", described.dump());
  EXPECT_NE(of(check_files(config), "first weights").text.find("granite"), std::string::npos);
}

/// The program, because a second process is started by it.
TEST(Doctor, ExaminesThisMachine) {
  const auto result = testing::run({testing::program_path("fsdp-train"), "doctor"});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  for (const char* subject :
       {"build ", "cpu ", "kernels ", "cores ", "OMP_NUM_THREADS ", "memory ", "limit nofile ",
        "shared memory ", "loopback ", "host name ", "reverse lookup ", "port 29500 ", "gpu ", "nccl "}) {
    EXPECT_NE(result.out.find(std::string("  ") + subject), std::string::npos) << subject << result.out;
  }
  EXPECT_NE(result.out.find("a second process wrote to memory of this process"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find(" 0 failed\n"), std::string::npos);
}

TEST(Doctor, SaysWhatIsWrongWithARun) {
  testing::TemporaryFolder folder;
  write(folder / "c.toml", "[data]\ntrain = [\"none.bin\"]\n");
  const std::string program = testing::program_path("fsdp-train");
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {program, "doctor", "c.toml"});
    return testing::run(more, {.working_folder = folder.path()});
  };
  auto result = run({});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("fail  files             none.bin"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("disk speed"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("training.float8"), std::string::npos) << result.out;
  result = run({"training.float8=tensorwise", "mixed_precision.param_dtype=bfloat16", "training.device=cpu"});
  EXPECT_NE(result.out.find("warn  training.float8   tensorwise on the CPU"), std::string::npos)
      << result.out;
  result = run({"training.stps=3"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("fail  config"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace fsdp::doctor
