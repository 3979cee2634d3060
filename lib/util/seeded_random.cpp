#include "util/seeded_random.h"

#include <ATen/CPUGeneratorImpl.h>

#include "util/hash.h"

namespace fsdp::util {

at::Generator named_generator(uint64_t seed, std::string_view name) {
  return at::detail::createCPUGenerator(hash_of(seed, name));
}

}  // namespace fsdp::util
