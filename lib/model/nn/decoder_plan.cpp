#include "model/nn/decoder_plan.h"

#include "base/util/error.h"
#include "model/families/families.h"

namespace fsdp::nn {
namespace {

/// Reason why ranks cannot share the layers; empty if they can.
std::string obstacle(const ModelOptions& options, const Family& family) {
  if (family.has_experts()) return "each of its experts is computed by one process";
  if (family.query_key_norm == QueryKeyNorm::kOfAll)
    return "its norms of queries and keys are of all heads together";
  if (family.qkv_form == QkvForm::kSideBySide && key_value_heads(options) != options.num_attention_heads) {
    return "one weight has its queries, keys and values, of different numbers of heads";
  }
  return "";
}

}  // namespace

ParallelPlan decoder_plan(const ModelOptions& options, const ParallelOptions& parallel) {
  const Family& family = family_of(options);
  if (const std::string reason = obstacle(options, family); !reason.empty()) {
    fail(ErrorKind::kUsage, "mesh.model must be 1 with this model of architecture ", options.architecture,
         ", because ", reason, "; give the processes to mesh.data");
  }
  const Layout between = parallel.sequence_parallel ? Layout(Shard{1}) : Layout(Replicate{});
  const RowwiseParallel last{.output = between};
  const PrepareModuleInput region{.input = between, .desired = Replicate{}};
  const int64_t heads = options.num_attention_heads;
  const std::string inner = family.inner + ".", block = inner + family.blocks + ".*.",
                    attention = block + family.attention, feed_forward = block + family.feed_forward;
  ParallelPlan plan = {
      {inner + family.tokens, RowwiseParallel{.input = Replicate{}, .output = between}},
      {attention, region},
      {attention + "." + family.output, last},
      {feed_forward, region},
      {feed_forward + "." + family.up, ColwiseParallel{.blocks = family.joined_gate ? 2 : 1}},
      {feed_forward + "." + family.down, last},
      {family.head, ColwiseParallel{.input = between}}};
  if (!family.gate.empty()) plan.push_back({feed_forward + "." + family.gate, ColwiseParallel{}});
  const std::string queries = attention + "." + family.queries;
  if (family.qkv_form == QkvForm::kSeparate) {
    const ColwiseParallel keys{.heads = key_value_heads(options), .repeats_heads = true};
    plan.push_back({queries, ColwiseParallel{.heads = heads}});
    plan.push_back({attention + "." + family.keys, keys});
    plan.push_back({attention + "." + family.values, keys});
  } else {
    const bool side_by_side = family.qkv_form == QkvForm::kSideBySide;
    plan.push_back({queries, ColwiseParallel{.blocks = side_by_side ? 3 : 1, .heads = heads}});
  }
  // Each rank has the gradients by way of its own heads.
  if (family.query_key_norm == QueryKeyNorm::kOfHead) {
    for (const char* norm : {".q_norm", ".k_norm"}) plan.push_back({attention + norm, SequenceParallel{}});
  }
  if (!parallel.sequence_parallel) return plan;
  if (!family.is_rotary()) plan.push_back({inner + family.positions, SequenceParallel{}});
  plan.push_back({inner + family.last_norm, SequenceParallel{}});
  for (const std::string* norm : {&family.norm_before_attention, &family.norm_after_attention,
                                  &family.norm_before_feed_forward, &family.norm_after_feed_forward}) {
    if (!norm->empty()) plan.push_back({block + *norm, SequenceParallel{}});
  }
  return plan;
}

}  // namespace fsdp::nn
