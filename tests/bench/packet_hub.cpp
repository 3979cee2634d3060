// Joins the interfaces port0, port1, ... of its network namespace, and passes packets on later:
//
//   packet_hub COUNT DELAY_MS

#include "support/packet_hub.h"

#include <cstdio>
#include <cstdlib>
#include <exception>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: packet_hub COUNT DELAY_MS\n");
    return 1;
  }
  try {
    fsdp::testing::PacketHub hub;
    hub.open(std::atoi(argv[1]));
    hub.delay(std::chrono::milliseconds(std::atoi(argv[2])));
    std::puts("ready");
    std::fflush(stdout);
    hub.run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "packet_hub: %s\n", error.what());
    return 1;
  }
  return 0;
}
