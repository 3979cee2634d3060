#include "nn/decoder_plan.h"

#include "nn/layers.h"

namespace fsdp::nn {

ParallelPlan decoder_plan(const ModelOptions& options, const ParallelOptions& parallel) {
  const Layout between = parallel.sequence_parallel ? Layout(Shard{1}) : Layout(Replicate{});
  const RowwiseParallel last{.output = between};
  const PrepareModuleInput region{.input = between, .desired = Replicate{}};
  const int64_t heads = options.num_attention_heads;
  ParallelPlan plan;
  std::vector<std::string> on_the_cut;
  if (is_gpt2(options)) {
    plan = {{"transformer.wte", RowwiseParallel{.input = Replicate{}, .output = between}},
            {"transformer.h.*.attn", region},
            {"transformer.h.*.attn.c_attn", ColwiseParallel{.blocks = 3, .heads = heads}},
            {"transformer.h.*.attn.c_proj", last},
            {"transformer.h.*.mlp", region},
            {"transformer.h.*.mlp.c_fc", ColwiseParallel{}},
            {"transformer.h.*.mlp.c_proj", last}};
    on_the_cut = {"transformer.wpe", "transformer.h.*.ln_?", "transformer.ln_f"};
  } else {
    const ColwiseParallel keys{.heads = options.num_key_value_heads, .repeats_heads = true};
    plan = {{"model.embed_tokens", RowwiseParallel{.input = Replicate{}, .output = between}},
            {"model.layers.*.self_attn", region},
            {"model.layers.*.self_attn.q_proj", ColwiseParallel{.heads = heads}},
            {"model.layers.*.self_attn.k_proj", keys},
            {"model.layers.*.self_attn.v_proj", keys},
            {"model.layers.*.self_attn.o_proj", last},
            {"model.layers.*.mlp", region},
            {"model.layers.*.mlp.gate_proj", ColwiseParallel{}},
            {"model.layers.*.mlp.up_proj", ColwiseParallel{}},
            {"model.layers.*.mlp.down_proj", last}};
    on_the_cut = {"model.layers.*layernorm", "model.norm"};
  }
  plan.push_back({"lm_head", ColwiseParallel{.input = between}});
  if (parallel.sequence_parallel) {
    for (const std::string& modules : on_the_cut) plan.push_back({modules, SequenceParallel{}});
  }
  return plan;
}

}  // namespace fsdp::nn
