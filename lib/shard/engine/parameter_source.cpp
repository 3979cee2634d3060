#include "shard/engine/parameter_source.h"

#include <c10/util/accumulate.h>

#include "base/util/error.h"

namespace fsdp::shard {

std::vector<util::Rectangle> NamedParameter::parts_of(const util::Rectangle& local) const {
  if (!part) return {local};
  return util::compose(c10::multiply_integers(part->whole_shape), local, part->range);
}

void require_source(const Materialize& materialize, const std::string& parameter) {
  if (materialize.source != nullptr) return;
  fail(ErrorKind::kUsage, "parameter ", parameter,
       ": expected values; found a tensor on the meta device, which has none; build the model on a "
       "real device or give fully_shard() a ParameterSource");
}

}  // namespace fsdp::shard
