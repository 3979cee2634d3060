#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/embedding.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/stream_launch.cuh"
#include "kernels/cuda/table_parts.h"

namespace fsdp::kernels::cuda {
namespace {

template <typename T>
RowKernels made() {
  RowKernels table{};
  put_rms_norm<T>(table);
  put_layer_norm<T>(table);
  put_activations<T>(table);
  put_losses<T>(table);
  return table;
}

}  // namespace

const RowKernels* row_kernels(Element element) {
  static const RowKernels of_float = made<float>(), of_bfloat16 = made<c10::BFloat16>();
  return element == Element::kFloat ? &of_float : &of_bfloat16;
}

void embedding_backward(Element element, const EmbeddingGradRows& rows) {
  element == Element::kFloat ? embedding_backward<float>(StreamLaunch(), rows)
                             : embedding_backward<c10::BFloat16>(StreamLaunch(), rows);
}

void dropout(Element element, const DropoutRows& rows) {
  element == Element::kFloat ? dropout<float>(StreamLaunch(), rows)
                             : dropout<c10::BFloat16>(StreamLaunch(), rows);
}

}  // namespace fsdp::kernels::cuda
