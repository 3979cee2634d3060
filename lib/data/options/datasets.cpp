#include "data/options/datasets.h"

namespace fsdp::data {

util::Registry<OpenSamples>& datasets() {
  static util::Registry<OpenSamples> datasets("data set", {{kTokenFiles, nullptr}});
  return datasets;
}

}  // namespace fsdp::data
