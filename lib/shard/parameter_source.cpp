#include "shard/parameter_source.h"

#include <c10/util/accumulate.h>

namespace fsdp::shard {

std::vector<util::Rectangle> NamedParameter::parts_of(const util::Rectangle& local) const {
  if (!part) return {local};
  return util::compose(c10::multiply_integers(part->whole_shape), local, part->range);
}

}  // namespace fsdp::shard
