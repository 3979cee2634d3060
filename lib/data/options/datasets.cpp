#include "data/options/datasets.h"

namespace fsdp::data {

util::Registry<OpenSamples>& datasets() {
  static util::Registry<OpenSamples> datasets("data set", {{kTokenFiles, nullptr}});
  return datasets;
}

OpenSamples& open_texts() {
  static OpenSamples open;
  return open;
}

}  // namespace fsdp::data
