// Runs the kernels of lib/model/kernels/cuda by the emulator (tests/support/cuda_emulator.h), on the
// arguments with which the program launches them.

#include <cxxabi.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/kernels/cuda/stream_launch.cuh"
#include "numbers_accesses.h"
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

constexpr std::string_view kEntry = "void fsdp::kernels::cuda::entry<", kScope = "fsdp::kernels::cuda::";

std::string entry_of(const std::string& type) {
  return std::string(kEntry) + type + (type.back() == '>' ? " >(" : ">(");
}

/// "SquaresKernel<float, 4>"
std::string short_name(const std::string& entry) {
  const size_t begin = kEntry.size() + kScope.size();
  const size_t after = entry.ends_with(" >(") ? 3 : 2;
  return entry.substr(begin, entry.size() - begin - after);
}

/// A kernel and what it is called in reports.
using Known = std::map<std::string, EmulatedKernel>::value_type;

const Known* find(const char* name) {
  const std::string text = demangled(name);
  auto kernel = kernels().upper_bound(text);
  if (kernel == kernels().begin()) return nullptr;
  --kernel;
  return text.starts_with(kernel->first) ? &*kernel : nullptr;
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
  const Known* known = find(name);
  if (known == nullptr) return {};
  const EmulatedKernel& kernel = known->second;
  const auto* begin = static_cast<const char*>(given[0]);
  std::vector<char> arguments(begin, begin + kernel.bytes);
  kernel.clear_padding(arguments.data());
  translate(name, arguments);
  return [known, grid = fsdp::kernels::cuda::Grid{grid.x, grid.y}, arguments = std::move(arguments)] {
    const AccessRecord record;
    known->second.run(grid, arguments.data());
    const std::vector<Range> ranges = record.ranges();
    standin_accessed(short_name(known->first).c_str(), ranges.data(), static_cast<int>(ranges.size()));
  };
}

[[maybe_unused]] const bool computes = (standin_compute_kernels(made), true);

}  // namespace
}  // namespace standin

bool fsdp::kernels::cuda::add_emulated_kernel(const std::type_info& type, const EmulatedKernel& kernel) {
  standin::kernels()[standin::entry_of(standin::demangled(type.name()))] = kernel;
  return true;
}
