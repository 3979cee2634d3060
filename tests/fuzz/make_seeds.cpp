// Writes the first seeds of the corpora: make_seeds FOLDER. Files that a fuzzer found are added by hand.

#include <ATen/Functions.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_file.h"
#include "util/file.h"

namespace fs = std::filesystem;
using namespace fsdp::checkpoint;

namespace {

void write_safetensors(const fs::path& path, const std::vector<TensorInfo>& infos) {
  SafetensorsWriter writer(path, infos);
  for (const TensorInfo& info : writer.infos()) {
    int64_t numel = checked_numel(info.shape, 1);
    std::string bytes(static_cast<size_t>(numel) * c10::elementSize(info.dtype), 'x');
    writer.append(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  writer.finish();
}

Manifest small_manifest(int64_t world_size) {
  Manifest manifest{.step = 7, .world_size = world_size, .layout = "flat"};
  for (int64_t rank = 0; rank < world_size; ++rank) {
    manifest.files.push_back({"rank" + std::to_string(rank) + ".h5", 4096, "0123456789abcdef"});
  }
  for (const char* name : {"model/a.weight", "optimizer/a.weight/exp_avg"}) {
    TensorEntry entry{.shape = {2, 3}, .dtype = at::kFloat};
    for (int64_t rank = 0; rank < world_size; ++rank) {
      entry.ranges.push_back({.begin = 6 * rank / world_size,
                              .end = 6 * (rank + 1) / world_size,
                              .file = static_cast<size_t>(rank)});
    }
    manifest.tensors.emplace(name, entry);
  }
  manifest.training = {{"samples", 28}, {"loss_scaler", {{"scale", 65536.0}, {"growth_tracker", 3}}}};
  manifest.model = {{"model_type", "llama"}, {"hidden_size", 2}};
  return manifest;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_seeds FOLDER\n";
    return 2;
  }
  fs::path folder = argv[1];
  for (const char* target : {"safetensors", "manifest", "shard_file"})
    fs::create_directories(folder / target);

  write_safetensors(folder / "safetensors/empty", {});
  write_safetensors(folder / "safetensors/one", {{"a", {2, 3}, at::kFloat}});
  write_safetensors(
      folder / "safetensors/types",
      {{"a", {2}, at::kFloat}, {"b", {3}, at::kBFloat16}, {"c", {}, at::kHalf}, {"d", {0, 4}, at::kLong}});

  for (int64_t world : {1, 2, 5}) {
    std::ofstream(folder / "manifest" / ("world" + std::to_string(world)))
        << manifest_text(small_manifest(world));
  }

  at::Tensor six = at::arange(6, at::kFloat), five = at::arange(5, at::kFloat).to(at::kBFloat16);
  write_shard_file(
      folder / "shard_file/all",
      {{"model/a.weight", {six}}, {"model/b.weight", {five}}, {"optimizer/a.weight/exp_avg", {six}}});
  write_shard_file(folder / "shard_file/other_type", {{"model/a.weight", {six.to(at::kDouble)}}});
  write_shard_file(folder / "shard_file/other_size", {{"model/a.weight", {six, six}}});
  return 0;
}
