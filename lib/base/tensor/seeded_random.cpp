#include "base/tensor/seeded_random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "base/util/error.h"
#include "base/util/hash.h"

namespace fsdp::util {
namespace {

constexpr int kWords = 624, kMiddle = 397;  ///< n and m of the paper

uint32_t next_word(uint32_t middle, uint32_t upper, uint32_t lower) {
  const uint32_t joined = (upper & 0x80000000u) | (lower & 0x7fffffffu);
  return middle ^ (joined >> 1) ^ ((0u - (lower & 1u)) & 0x9908b0dfu);
}

/// Replaces the words by the next kWords.
void renew(uint32_t* words) {
  constexpr int kRest = kWords - kMiddle;
  for (int i = 0; i < kRest; ++i) words[i] = next_word(words[i + kMiddle], words[i], words[i + 1]);
  // Each of the new words depends on the one kRest before it, so the compiler may vectorize.
  for (int i = kRest; i < kWords - 1; ++i) words[i] = next_word(words[i - kRest], words[i], words[i + 1]);
  words[kWords - 1] = next_word(words[kMiddle - 1], words[kWords - 1], words[0]);
}

}  // namespace

at::Generator named_generator(uint64_t seed, std::string_view name) {
  return at::detail::createCPUGenerator(hash_of(seed, name));
}

void skip_draws(at::Generator& generator, int64_t count) {
  FSDP_CHECK(count >= 0);
  auto* own = generator.get<at::CPUGeneratorImpl>();
  at::mt19937 engine = own->engine();
  at::mt19937_data_pod data = engine.data();
  // The draw that finds left_ == 1 renews the words, takes the first and sets left_ to kWords.
  const int64_t waiting = std::min<int64_t>(count, data.left_ - 1);
  data.left_ -= static_cast<int>(waiting);
  data.next_ += static_cast<uint32_t>(waiting);
  count -= waiting;
  while (count > 0) {
    renew(data.state_.data());
    const auto taken = static_cast<int>(std::min<int64_t>(count, kWords));
    data.left_ = kWords + 1 - taken;
    data.next_ = static_cast<uint32_t>(taken);
    count -= taken;
  }
  engine.set_data(data);
  own->set_engine(engine);
}

}  // namespace fsdp::util
