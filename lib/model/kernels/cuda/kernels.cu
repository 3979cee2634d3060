#include "model/kernels/cuda/columns.cuh"
#include "model/kernels/cuda/dropout.cuh"
#include "model/kernels/cuda/elements.cuh"
#include "model/kernels/cuda/embedding.cuh"
#include "model/kernels/cuda/float8.cuh"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/rotary.cuh"
#include "model/kernels/cuda/stream_launch.cuh"
#include "model/kernels/element.h"

namespace fsdp::kernels::cuda {
namespace {

template <typename T>
RowKernels made() {
  RowKernels table{};
  put_norms<T>(table);
  put_activations<T>(table);
  put_losses<T>(table);
  return table;
}

}  // namespace

const RowKernels* row_kernels(Element element) {
  return with_element(element, []<typename T>(T) {
    static const RowKernels kernels = made<T>();
    return &kernels;
  });
}

void embedding_backward(Element element, const EmbeddingGradRows& rows) {
  with_element(element, [&]<typename T>(T) { embedding_backward<T>(StreamLaunch(), rows); });
}

void dropout(Element element, const DropoutRows& rows) {
  with_element(element, [&]<typename T>(T) { dropout<T>(StreamLaunch(), rows); });
}

void join_rotary(Element element, const JoinedGradients& gradients) {
  with_element(element, [&]<typename T>(T) { join_rotary<T>(StreamLaunch(), gradients); });
}

void join_rows(Element element, const JoinedGradients& gradients, float* sums, const RowParts& parts) {
  with_element(element, [&]<typename T>(T) { join_rows<T>(StreamLaunch(), gradients, sums, parts); });
}

void adam(Element gradient, const AdamStep& step) {
  with_element(gradient, [&]<typename T>(T) { adam<T>(StreamLaunch(), step); });
}

void decide_outcome(const OutcomeDecision& decision) { decide_outcome(StreamLaunch(), decision); }

void round_to_float8(const Float8Rounding& matrix) { round_to_float8(StreamLaunch(), matrix); }

}  // namespace fsdp::kernels::cuda
