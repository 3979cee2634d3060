// llm.c's GPT-2 on the CPU with the interface of torch_peer.py; tests/bench/llm_c.py builds it beside llm.c's sources.
//
//   llm_c WEIGHTS TOKENS BATCH SEQUENCE STEPS
//
// The loop is that of train_gpt2.c, which clips no gradients, with this bench's tokens and numbers of AdamW.

#define TESTING  // without train_gpt2.c's main()
#include "train_gpt2.c"

int main(int argc, char **argv) {
    if (argc != 6) { fprintf(stderr, "usage: llm_c WEIGHTS TOKENS BATCH SEQUENCE STEPS\n"); return 2; }
    const int B = atoi(argv[3]), T = atoi(argv[4]), steps = atoi(argv[5]);
    GPT2 model;
    gpt2_build_from_checkpoint(&model, argv[1]);
    FILE *file = fopenCheck(argv[2], "rb");
    fseekCheck(file, 0, SEEK_END);
    const size_t count = (size_t)ftell(file) / sizeof(uint16_t), samples = (count - 1) / T;
    uint16_t *tokens = (uint16_t*)mallocCheck(count * sizeof(uint16_t));
    fseekCheck(file, 0, SEEK_SET);
    freadCheck(tokens, sizeof(uint16_t), count, file);
    fcloseCheck(file);
    int *inputs = (int*)mallocCheck(B * T * sizeof(int)), *targets = (int*)mallocCheck(B * T * sizeof(int));

    for (int step = 0; step < steps; step++) {
        struct timespec start, end;
        clock_gettime(CLOCK_MONOTONIC, &start);
        for (int b = 0; b < B; b++) {
            const uint16_t *row = tokens + ((size_t)step * B + b) % samples * T;
            for (int t = 0; t < T; t++) { inputs[b * T + t] = row[t]; targets[b * T + t] = row[t + 1]; }
        }
        gpt2_forward(&model, inputs, targets, B, T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, step + 1);
        clock_gettime(CLOCK_MONOTONIC, &end);
        const double seconds = (end.tv_sec - start.tv_sec) + (end.tv_nsec - start.tv_nsec) / 1e9;
        printf("{\"step\": %d, \"loss\": %.9g, \"seconds\": %.6f}\n", step + 1, model.mean_loss, seconds);
        fflush(stdout);
    }
    printf("{\"engine\": \"llm.c\"}\n");
    return 0;
}
