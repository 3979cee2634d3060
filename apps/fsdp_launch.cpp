// fsdp-launch: starts the processes of a training run on this node and watches them, as torchrun does.

#include "launch/command_line.h"
#include "launch/supervisor.h"
#include "util/error.h"

int main(int argc, char** argv) {
  return fsdp::util::run_guarded([&] {
    const auto options = fsdp::launch::parse_command_line(argc, argv);
    return options ? fsdp::launch::launch(*options) : 0;
  });
}
