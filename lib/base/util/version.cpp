#include "base/util/version.h"

namespace fsdp::util {

std::string version() { return FSDP_VERSION; }

}  // namespace fsdp::util
