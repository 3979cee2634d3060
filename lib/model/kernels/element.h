#pragma once

// The C++ types of elements (model/kernels/rows.h).

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "model/kernels/rows.h"

namespace fsdp::kernels {

/// Calls use(T()) for the type T of the elements.
template <typename Use>
decltype(auto) with_element(Element element, const Use& use) {
  if (element == Element::kBFloat16) return use(c10::BFloat16());
  return element == Element::kHalf ? use(c10::Half()) : use(float());
}

}  // namespace fsdp::kernels
