#include "support/source_folder.h"

namespace fsdp::testing {

std::string source_folder() { return FSDP_SOURCE_DIR; }

}  // namespace fsdp::testing
