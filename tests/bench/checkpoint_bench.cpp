// checkpoint_bench FOLDER [MiB a rank] [ranks]: how fast checkpoints are saved and loaded in that folder,
// beside dd on the same disk, and what an asynchronous save costs the training loop. Not a test: figures of
// a disk vary, so they are printed and not judged.

#include <ATen/Functions.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>

#include "base/util/log.h"
#include "run/train/checkpointer.h"
#include "run/train/run_parts.h"
#include "state/checkpoint/load.h"
#include "state/checkpoint/state_slices.h"
#include "support/checkpoint_fixtures.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::NamedTensors;

double seconds_of(const std::function<void()>& body) {
  auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void shell(const std::string& line) {
  if (std::system(line.c_str()) != 0) throw std::runtime_error("this failed: " + line);
}

/// So that the next reader meets the disk.
void drop_from_cache(const fs::path& path) {
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

/// `reference`: what the same round took with dd; the ratio is the median of the rounds'.
void report(const char* what, double bytes, const std::vector<double>& seconds,
            const std::vector<double>& reference = {}) {
  double typical = median(seconds);
  std::printf("%-34s %6.2f s  %8.1f MB/s", what, typical, bytes / typical / 1e6);
  std::vector<double> ratios;
  for (size_t i = 0; i < reference.size(); ++i) ratios.push_back(reference[i] / seconds[i]);
  if (!ratios.empty()) std::printf("  %.2f of dd", median(ratios));
  std::printf("\n");
}

void bandwidth(const fs::path& folder, int64_t mib, int ranks) {
  // 16 tensors; random bits, because disks may be clever about zeros.
  NamedTensors tensors, loaded;
  for (int i = 0; i < 16; ++i) {
    at::Tensor tensor = at::empty({mib * ranks * (1 << 20) / 16 / 4}, at::kInt).random_();
    tensors.emplace_back("model/tensor" + std::to_string(i), tensor.view(at::kFloat));
    loaded.emplace_back(tensors.back().first, at::zeros_like(tensors.back().second));
  }
  const double bytes = static_cast<double>(mib) * ranks * (1 << 20);
  const fs::path source = fs::path("/dev/shm") / ("fsdp-bench-" + std::to_string(::getpid()));
  {
    std::ofstream file(source, std::ios::binary);
    for (const auto& [name, tensor] : tensors) {
      file.write(static_cast<const char*>(tensor.const_data_ptr()), static_cast<int64_t>(tensor.nbytes()));
    }
  }
  std::vector<double> dd_write, dd_read, save, load;
  for (int i = 0; i < 5; ++i) {
    const fs::path raw = folder / "raw";
    fs::create_directories(raw);
    dd_write.push_back(seconds_of([&] {
      shell("dd if=" + source.string() + " of=" + (raw / "file").string() + " bs=4M conv=fsync status=none");
    }));
    drop_from_cache(raw);
    dd_read.push_back(
        seconds_of([&] { shell("dd if=" + (raw / "file").string() + " of=/dev/null bs=4M status=none"); }));
    fs::remove_all(raw);

    fs::path step;
    save.push_back(seconds_of([&] { step = testing::save_checkpoint(folder / "run", tensors, ranks); }));
    drop_from_cache(step);
    load.push_back(seconds_of([&] {
      checkpoint::Manifest manifest = checkpoint::read_manifest(step);
      comm::run_ranks_as_threads(ranks, [&](comm::Communicator& communicator) {
        checkpoint::load_slices(step, manifest, testing::slices_of(loaded, communicator.rank(), ranks));
      });
    }));
    fs::remove_all(folder / "run");
  }
  fs::remove(source);
  std::printf("%d ranks, %ld MiB each; median of %zu\n", ranks, static_cast<long>(mib), save.size());
  report("dd, write and fsync", bytes, dd_write);
  report("save (with hash and manifest)", bytes, save, dd_write);
  report("dd, read, not in the cache", bytes, dd_read);
  report("load (with hash), not in the cache", bytes, load, dd_read);
}

/// Seconds of ordinary steps, of what a save takes of the loop at its step, and of the other steps while it
/// is under way.
void stall(const fs::path& folder, bool asynchronous) {
  testing::TemporaryFolder data;
  config::Config config = testing::tiny_config(data);
  config.run.output_dir = folder / "run";
  config.model.vocab_size = 16384;
  config.model.hidden_size = 512;
  config.model.intermediate_size = 1024;
  config.model.num_attention_heads = config.model.num_key_value_heads = 8;
  config.data.validation.clear();
  config.data.sequence_length = 64;
  config.fsdp.min_num_params = 1 << 20;
  config.checkpoint.asynchronous = asynchronous;
  config.checkpoint.keep_last = 1;
  config.model.max_position_embeddings = 64;
  std::vector<double> ordinary, calls, beside, copies;
  int64_t state_bytes = 0;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    data::TrainLoader loader = train::open_training_data(config, communicator);
    train::RunParts parts =
        train::build_run_parts(config, comm::Mesh(config.mesh, testing::borrowed(communicator)), nullptr);
    const auto step = train::make_train_step(config, parts, loader);
    train::Checkpointer checkpointer(config, {*parts.engine, *parts.optimizer, nullptr}, communicator, {});
    train::RunPosition position = checkpointer.restore();
    bool under_way = false;
    for (int64_t i = 1; i <= 60; ++i) {
      double of_step = seconds_of(
          [&] { step->run({.step = i, .first_global_sample = position.samples_seen, .lr = 1e-3}); });
      position = {i, position.samples_seen + loader.samples_per_step(), 0};
      bool saves = i % 20 == 10;
      double of_save = seconds_of([&] { saves ? checkpointer.save(position) : checkpointer.poll(); });
      if (communicator.rank() == 0 && i > 3) {
        if (saves) calls.push_back(of_save);
        if (!saves) (under_way ? beside : ordinary).push_back(of_step + of_save);
      }
      under_way = asynchronous && checkpointer.saved_step().value_or(0) < (i - 10) / 20 * 20 + 10 && i >= 10;
    }
    checkpointer.finish();
    checkpointer.require_last_save();
    auto slices = checkpoint::state_slices(*parts.engine, *parts.optimizer, checkpoint::SlicePurpose::kSave);
    checkpoint::HostCopies buffer;
    buffer.prepare(slices);
    for (int i = 0; i < 5; ++i) {
      communicator.barrier({.unit = "copy"});
      double seconds = seconds_of([&] { buffer.take(slices); });
      if (communicator.rank() == 0) copies.push_back(seconds);
    }
    if (communicator.rank() == 0) state_bytes = buffer.bytes();
  });
  fs::remove_all(folder / "run");
  std::printf("%s, %.0f MB of state a rank: an ordinary step %.0f ms; the save takes %.0f ms of its step",
              asynchronous ? "asynchronous" : "synchronous", static_cast<double>(state_bytes) / 1e6,
              1e3 * median(ordinary), 1e3 * median(calls));
  if (asynchronous && !beside.empty()) {
    std::printf(" (the copy alone %.0f ms); the %zu steps beside the writing %.0f ms", 1e3 * median(copies),
                beside.size(), 1e3 * median(beside));
  }
  std::printf("\n");
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: checkpoint_bench FOLDER [MiB a rank] [ranks]\n";
    return 2;
  }
  using namespace fsdp;
  return util::run_guarded([&] {
    util::set_log_level(util::LogLevel::kWarning);
    const auto folder = std::filesystem::path(argv[1]) / ("bench-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    bandwidth(folder, argc > 2 ? std::atoll(argv[2]) : 256, argc > 3 ? std::atoi(argv[3]) : 2);
    stall(folder, false);
    stall(folder, true);
    std::filesystem::remove_all(folder);
    return 0;
  });
}
