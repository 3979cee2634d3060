#include "base/util/error.h"
#include "model/families/architectures.h"
#include "model/families/families.h"
#include "setup/config/checks.h"
#include "setup/config/division.h"

namespace fsdp::config {
namespace {

void check_context_of(const Config& config, const comm::MeshShape& mesh) {
  if (mesh.context == 1) return;
  const int64_t tokens = config.data.sequence_length, chunks = 2 * mesh.context;
  if (tokens % chunks != 0) {
    const int64_t below = tokens / chunks * chunks;
    fail(ErrorKind::kUsage, "data.sequence_length must be a multiple of 2 * mesh.context = ", chunks,
         ", because each of ", mesh.context, " processes gets two chunks of a sequence, but is ",
         division(tokens, chunks), "; set it to ", below > 0 ? concat(below, " or ") : "", below + chunks);
  }
  const nn::ModelOptions& model = config.model;
  const auto refuse_attention = [&](const char* key, const auto& value) {
    fail(ErrorKind::kUsage, "mesh.context must be 1 with ", key, " = ", value,
         ", which attention over parts of sequences does not know, but is ", mesh.context,
         "; give the processes to mesh.data");
  };
  if (model.sliding_window > 0 && model.sliding_window < tokens) {
    refuse_attention("model.sliding_window", model.sliding_window);
  }
  if (model.attn_logit_softcapping > 0) {
    refuse_attention("model.attn_logit_softcapping", model.attn_logit_softcapping);
  }
  const int64_t rows = config.data.micro_batch_size, part = rows * tokens / mesh.context;
  if (config.training.float8 != Float8Recipe::kNone && part % 16 != 0) {
    fail(ErrorKind::kUsage,
         "training.float8 requires the number of tokens of a process in a micro-batch to be a multiple of "
         "16, because of its 8-bit matrix products, but that is ",
         rows, " (data.micro_batch_size) * ", tokens, " (data.sequence_length) / ", mesh.context,
         " (mesh.context) = ", division(part, 16), "; change one of the three");
  }
}

/// Checks that ranks of mesh.model have equal parts of layers.
void check_model_of(const Config& config, const comm::MeshShape& mesh) {
  const int64_t ranks = mesh.model;
  if (ranks == 1) return;
  const nn::ModelOptions& model = config.model;
  const auto divides = [&](const char* key, int64_t size, const char* what) {
    if (size % ranks == 0) return;
    fail(ErrorKind::kUsage, key, " must be a multiple of mesh.model = ", ranks, ", because each of ", ranks,
         " processes gets ", what, ", but is ", division(size, ranks), "; change one of the two");
  };
  const bool is_built_in =
      nn::is_built_in_architecture(model.architecture);  // others' plans are checked later
  if (is_built_in) {
    divides("model.num_attention_heads", model.num_attention_heads, "as many heads");
    divides("model.intermediate_size", model.intermediate_size, "as many features");
  }
  const int64_t keys = nn::key_value_heads(model);
  if (is_built_in && nn::family_of(model).qkv_form == nn::QkvForm::kSeparate && keys % ranks != 0 &&
      ranks % keys != 0) {
    fail(ErrorKind::kUsage,
         "model.num_key_value_heads must divide, or be a multiple of, mesh.model = ", ranks,
         ", because processes get whole heads, but is ", division(keys, ranks), "; change one of the two");
  }
  if (!config.mesh.sequence_parallel) return;
  const int64_t parts = ranks * mesh.context, tokens = config.data.sequence_length;
  if (tokens % parts == 0) return;
  fail(ErrorKind::kUsage, "data.sequence_length must be a multiple of ",
       mesh.context > 1 ? "mesh.context * " : "", "mesh.model = ", parts, ", because each of ", parts,
       " processes gets a part of a sequence, but is ", division(tokens, parts),
       "; change one of the two or set mesh.sequence_parallel = false");
}

}  // namespace

comm::MeshShape check_world(const Config& config, int world_size) {
  const comm::MeshShape mesh = comm::resolve_mesh(config.mesh, world_size);
  check_context_of(config, mesh);
  check_model_of(config, mesh);
  return mesh;
}

}  // namespace fsdp::config
