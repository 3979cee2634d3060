#include "nn/hooked.h"

namespace fsdp::nn::detail {

std::string type_name_of(const std::type_info& type) {
  std::string name = c10::demangle(type.name());
  if (const size_t arguments = name.find('<'); arguments != std::string::npos) name.resize(arguments);
  if (const size_t space = name.rfind("::"); space != std::string::npos) name.erase(0, space + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

}  // namespace fsdp::nn::detail
