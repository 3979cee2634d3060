// streaming TOKENIZER TOKENS FOLDER TEXTS...: megabytes of text a second that become samples in order of a
// training set of these texts, read without pause up to so many tokens, with an empty FOLDER for the blocks;
// then the same from the blocks. Numbers a line, for streaming.py.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "data/loading/loader.h"
#include "data/streams/stream_samples.h"
#include "data/texts/text_input.h"
#include "data/tokenizers/tokenizer.h"

namespace {

using namespace fsdp::data;
using Clock = std::chrono::steady_clock;

int run(int argc, char** argv) {
  if (argc < 5) fsdp::fail(fsdp::ErrorKind::kUsage, "usage: streaming TOKENIZER TOKENS FOLDER TEXTS...");
  read_texts_as_data_sets();
  DataOptions options;
  options.tokenizer = argv[1];
  options.cache_folder = argv[3];
  options.train.assign(argv + 4, argv + argc);
  options.sequence_length = 1024;
  options.micro_batch_size = 8;
  options.shuffle = false;
  const int64_t vocab_size = make_tokenizer(options.tokenizer)->vocab_size() + 1;
  const int64_t samples = std::atoll(argv[2]) / options.sequence_length;
  int64_t sum = 0;  // so that nothing is left out
  for (int round = 0; round < 2; ++round) {
    const TrainLoader loader(options, vocab_size, 1, {});
    const auto begin = Clock::now();
    for (int64_t i = 0; i + options.micro_batch_size <= samples; i += options.micro_batch_size) {
      sum += *loader.batch(i, 0).inputs.const_data_ptr<int64_t>();
    }
    std::printf("%.3f\n", std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return sum == 0;
}

}  // namespace

int main(int argc, char** argv) {
  return fsdp::util::run_guarded([&] { return run(argc, argv); });
}
