#include "comm/gpu_place.h"

#include <map>
#include <utility>

#include "util/error.h"

namespace fsdp::comm {

std::string GpuPlace::text() const { return host + " " + bus_id; }

GpuPlace GpuPlace::parse(const std::string& text) {
  const size_t space = text.rfind(' ');
  FSDP_CHECK(space != std::string::npos, "a rank says of its GPU: ", text);
  return {.host = text.substr(0, space), .bus_id = text.substr(space + 1)};
}

std::string shared_gpu(const std::vector<GpuPlace>& places) {
  std::map<std::pair<std::string, std::string>, size_t> first_ranks;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const GpuPlace& place = places[rank];
    if (place.bus_id.empty()) continue;
    const auto [known, is_new] = first_ranks.try_emplace({place.host, place.bus_id}, rank);
    if (!is_new) {
      return util::concat("ranks ", known->second, " and ", rank, " share a GPU (", place.bus_id, ")");
    }
  }
  return "";
}

}  // namespace fsdp::comm
