// Runs the kernels of lib/model/kernels/cuda by the emulator (tests/support/cuda_emulator.h), on the
// arguments with which the program launches them.

#include <cxxabi.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/kernels/cuda/stream_launch.cuh"
#include "standin.h"

namespace standin {
namespace {

using fsdp::kernels::cuda::EmulatedKernel;

std::string demangled(const char* name) {
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, nullptr),
                                                    std::free);
  return text ? text.get() : name;
}

/// By the demangled name of the function that launches it, up to its parameters.
std::map<std::string, EmulatedKernel>& kernels() {
  static auto* kernels = new std::map<std::string, EmulatedKernel>;
  return *kernels;
}

std::string entry_of(const std::string& type) {
  return "void fsdp::kernels::cuda::entry<" + type + (type.back() == '>' ? " >(" : ">(");
}

const EmulatedKernel* find(const char* name) {
  const std::string text = demangled(name);
  auto kernel = kernels().upper_bound(text);
  if (kernel == kernels().begin()) return nullptr;
  --kernel;
  return text.starts_with(kernel->first) ? &kernel->second : nullptr;
}

/// Addresses of a device -> the same memory as the stand-in sees it. No other word is such an address, but by
/// a chance of one in millions, where the padding is zero.
void translate(const char* name, std::vector<char>& arguments) {
  for (size_t at = 0; at + sizeof(void*) <= arguments.size(); at += sizeof(void*)) {
    void* word = nullptr;
    std::memcpy(&word, arguments.data() + at, sizeof(word));
    if (!standin_is_of_device(word)) continue;
    word = standin_view(word, 1, name);
    std::memcpy(arguments.data() + at, &word, sizeof(word));
  }
}

std::function<void()> made(const char* name, dim3 grid, void** given) {
  const EmulatedKernel* kernel = find(name);
  if (kernel == nullptr) return {};
  const auto* begin = static_cast<const char*>(given[0]);
  std::vector<char> arguments(begin, begin + kernel->bytes);
  kernel->clear_padding(arguments.data());
  translate(name, arguments);
  return [run = kernel->run, grid = fsdp::kernels::cuda::Grid{grid.x, grid.y},
          arguments = std::move(arguments)] { run(grid, arguments.data()); };
}

[[maybe_unused]] const bool computes = (standin_compute_kernels(made), true);

}  // namespace
}  // namespace standin

bool fsdp::kernels::cuda::add_emulated_kernel(const std::type_info& type, const EmulatedKernel& kernel) {
  standin::kernels()[standin::entry_of(standin::demangled(type.name()))] = kernel;
  return true;
}
