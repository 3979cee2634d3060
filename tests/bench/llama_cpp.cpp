// llama.cpp's training on the CPU, as its examples/training/finetune.cpp sets it up, on the bench's tokens;
// tests/bench/llama_cpp.py builds it.
//
//   llama_cpp MODEL.gguf TOKENS SEQUENCE COUNT THREADS    prints an object for each of COUNT sequences
//
// A step of llama.cpp is one sequence: keys and values have gradients only where a whole context is one
// micro-batch.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "ggml-opt.h"
#include "llama.h"

namespace {

using Clock = std::chrono::steady_clock;
Clock::time_point step_began;
double losses = 0;  ///< sum of those so far

void tell(bool, ggml_opt_context_t, ggml_opt_dataset_t, ggml_opt_result_t result, int64_t step, int64_t,
          int64_t) {
  double mean = 0, uncertainty = 0;
  ggml_opt_result_loss(result, &mean, &uncertainty);
  const auto now = Clock::now();
  std::printf("{\"step\": %lld, \"loss\": %.9g, \"seconds\": %.6f}\n", static_cast<long long>(step),
              mean * static_cast<double>(step) - losses,
              std::chrono::duration<double>(now - step_began).count());
  std::fflush(stdout);
  losses = mean * static_cast<double>(step);
  step_began = now;
}

ggml_opt_optimizer_params adamw(void* user) {
  ggml_opt_optimizer_params params = ggml_opt_get_default_optimizer_params(user);
  params.adamw = {3e-4F, 0.9F, 0.95F, 1e-8F, 0.1F};
  return params;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6)
    return std::fprintf(stderr, "usage: llama_cpp MODEL.gguf TOKENS SEQUENCE COUNT THREADS\n"), 2;
  const int64_t length = std::atoll(argv[3]), count = std::atoll(argv[4]);
  llama_backend_init();
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_WARN) std::fputs(text, stderr);
      },
      nullptr);
  llama_model_params of_model = llama_model_default_params();
#ifdef FSDP_LLAMA_LOAD_MODE
  of_model.load_mode = LLAMA_LOAD_MODE_NONE;  // writable weights
#else
  of_model.use_mmap = false;
#endif
  llama_model* model = llama_model_load_from_file(argv[1], of_model);
  if (model == nullptr) return 1;
  llama_context_params of_context = llama_context_default_params();
  of_context.n_ctx = of_context.n_batch = of_context.n_ubatch = static_cast<uint32_t>(length);
  of_context.n_threads = of_context.n_threads_batch = std::atoi(argv[5]);
  of_context.type_k = of_context.type_v = GGML_TYPE_F32;
  of_context.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, of_context);
  if (context == nullptr) return 1;

  std::ifstream file(argv[2], std::ios::binary);
  std::vector<uint16_t> tokens(static_cast<size_t>(count * length + 1));
  file.read(reinterpret_cast<char*>(tokens.data()),
            static_cast<std::streamsize>(tokens.size() * sizeof(uint16_t)));
  if (!file) return std::fprintf(stderr, "%s has fewer than %zu tokens\n", argv[2], tokens.size()), 1;
  ggml_opt_dataset_t dataset = ggml_opt_dataset_init(GGML_TYPE_I32, GGML_TYPE_I32, length, length, count, 1);
  auto* inputs = static_cast<int32_t*>(ggml_opt_dataset_data(dataset)->data);
  auto* labels = static_cast<int32_t*>(ggml_opt_dataset_labels(dataset)->data);
  for (int64_t i = 0; i < count * length; ++i) {
    inputs[i] = tokens[static_cast<size_t>(i)];
    labels[i] = tokens[static_cast<size_t>(i) + 1];
  }

  llama_opt_params params{};
  params.param_filter = llama_opt_param_filter_all;
  params.get_opt_pars = adamw;
  params.optimizer_type = GGML_OPT_OPTIMIZER_TYPE_ADAMW;
  llama_opt_init(context, model, params);
  step_began = Clock::now();
  llama_opt_epoch(context, dataset, ggml_opt_result_init(), ggml_opt_result_init(), count, tell, nullptr);
  std::printf("{\"engine\": \"llama.cpp\"}\n");
  std::fflush(stdout);
  std::_Exit(0);
}
