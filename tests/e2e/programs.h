#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "support/program_path.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"
#include "support/token_file.h"

namespace fsdp::e2e {

inline std::string program(const std::string& name) { return testing::program_path(name); }

/// Odd on purpose: hidden 40 and a vocabulary of 17 divide by few world sizes; 17 = 4 * 4 + 1.
inline constexpr const char* kOddModel = R"(
[model]
vocab_size = 17
hidden_size = 40
intermediate_size = 54
num_hidden_layers = 3
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 32
initializer_range = 0.1
[data]
sequence_length = 16
micro_batch_size = 2
shuffle = false
[training]
steps = 20
[optimizer]
lr = 1e-3
[fsdp]
min_num_params = 10_000
)";

/// fsdp-launch --nproc-per-node N -- fsdp-train CONFIG overrides...
inline testing::ProgramResult launch_training(int world_size, const std::filesystem::path& config,
                                              const std::vector<std::string>& overrides) {
  std::vector<std::string> command = {program("fsdp-launch"),     "--nproc-per-node",
                                      std::to_string(world_size), "--",
                                      program("fsdp-train"),      config.string()};
  command.insert(command.end(), overrides.begin(), overrides.end());
  return testing::run(command, {.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 120});
}

}  // namespace fsdp::e2e
