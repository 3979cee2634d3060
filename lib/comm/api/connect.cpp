#include "comm/api/connect.h"

#include "base/util/error.h"

namespace fsdp::comm {

void refuse_backend(RunToConnect& run, const std::string& expected, const std::string& found) {
  leave_store(run.store, run.environment);
  const BackendRow& row = row_of(run.options.backend);
  util::fail(ErrorKind::kUsage, "comm.backend = \"", row.name, "\" requires ", expected, ", but ", found,
             "; set it to ", row.traits.over_mpi ? "mpi" : "auto or gloo");
}

}  // namespace fsdp::comm
