// The reader of shard files, with the data sets of the seeds. (In use a file's hash is compared with the
// manifest's before HDF5 sees it.)

#include <vector>

#include "fuzz/fuzz_target.h"
#include "state/weights/shard_file.h"

namespace fsdp::fuzz {

int shard_file(const uint8_t* data, size_t size) {
  MemoryFile file(data, size);
  static const checkpoint::DatasetSpec specs[] = {{"model/a.weight", at::kFloat, 6},
                                                  {"model/b.weight", at::kBFloat16, 5},
                                                  {"optimizer/a.weight/exp_avg", at::kFloat, 6}};
  refuse_or_read([&] {
    checkpoint::ShardFile shard(file.path());
    for (const checkpoint::DatasetSpec& spec : specs) {
      shard.check(spec);
      std::vector<char> bytes(static_cast<size_t>(spec.numel) * c10::elementSize(spec.dtype));
      shard.read(spec, {.count = spec.numel}, bytes.data());
    }
  });
  return 0;
}

}  // namespace fsdp::fuzz
