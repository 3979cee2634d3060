#include "state/convert/dcp_keys.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/util/error.h"
#include "model/families/families.h"

namespace fsdp::checkpoint {

namespace {

constexpr std::string_view kTitanTokens = "tok_embeddings.weight";

using NamePair = std::pair<std::string_view, std::string_view>;  ///< torchtitan's name, this library's name
constexpr std::array<NamePair, 3> kOutside{{{kTitanTokens, "model.embed_tokens.weight"},
                                            {"norm.weight", "model.norm.weight"},
                                            {"output.weight", "lm_head.weight"}}};
constexpr std::array<NamePair, 9> kInLayer{{{"attention.wq.weight", "self_attn.q_proj.weight"},
                                            {"attention.wk.weight", "self_attn.k_proj.weight"},
                                            {"attention.wv.weight", "self_attn.v_proj.weight"},
                                            {"attention.wo.weight", "self_attn.o_proj.weight"},
                                            {"feed_forward.w1.weight", "mlp.gate_proj.weight"},
                                            {"feed_forward.w2.weight", "mlp.down_proj.weight"},
                                            {"feed_forward.w3.weight", "mlp.up_proj.weight"},
                                            {"attention_norm.weight", "input_layernorm.weight"},
                                            {"ffn_norm.weight", "post_attention_layernorm.weight"}}};
constexpr std::string_view kTitanLayers = "layers.", kOurLayers = "model.layers.";

template <typename Pairs>
std::optional<std::string_view> partner(const Pairs& pairs, std::string_view name, bool of_theirs) {
  for (const auto& [theirs, ours] : pairs) {
    if (name == (of_theirs ? theirs : ours)) return of_theirs ? ours : theirs;
  }
  return std::nullopt;
}

std::optional<std::string> translated(std::string_view name, bool of_theirs) {
  if (const auto outside = partner(kOutside, name, of_theirs)) return std::string(*outside);
  const std::string_view from = of_theirs ? kTitanLayers : kOurLayers,
                         to = of_theirs ? kOurLayers : kTitanLayers;
  if (!name.starts_with(from)) return std::nullopt;
  name.remove_prefix(from.size());
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  if (digits == 0 || name.substr(digits, 1) != ".") return std::nullopt;
  const auto inside = partner(kInLayer, name.substr(digits + 1), of_theirs);
  if (!inside) return std::nullopt;
  return concat(to, name.substr(0, digits), ".", *inside);
}

/// The prefix of a key that ends with `name` at a boundary of names.
std::optional<std::string> prefix_of(std::string_view key, std::string_view name) {
  if (!key.ends_with(name)) return std::nullopt;
  key.remove_suffix(name.size());
  if (!key.empty() && key.back() != '.') return std::nullopt;
  return std::string(key);
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Prefixes that a key of optimizer state may have.
template <typename Visit>
void for_each_state_prefix(std::string_view key, const Visit& visit) {
  constexpr std::string_view kState = "state.";
  for (size_t at = key.find(kState); at != std::string_view::npos; at = key.find(kState, at + 1)) {
    if (at == 0 || key[at - 1] == '.') visit(key.substr(0, at));
  }
}

}  // namespace

std::optional<std::string> from_torchtitan(std::string_view name) { return translated(name, true); }
std::optional<std::string> to_torchtitan(std::string_view name) { return translated(name, false); }

int64_t rotated_heads(const nn::ModelOptions& options, std::string_view name) {
  if (name.ends_with(".self_attn.q_proj.weight")) return options.num_attention_heads;
  return name.ends_with(".self_attn.k_proj.weight") ? nn::key_value_heads(options) : 0;
}

std::optional<DcpStateKey> split_state_key(std::string_view key, std::string_view prefix) {
  const std::string state = concat(prefix, "state.");
  const size_t dot = key.rfind('.');
  if (!key.starts_with(state) || dot == std::string_view::npos || dot < state.size()) return std::nullopt;
  return DcpStateKey{std::string(key.substr(state.size(), dot - state.size())),
                     std::string(key.substr(dot + 1))};
}

DcpKeys find_dcp_keys(const std::vector<std::string>& keys, const nn::ModelOptions& options,
                      const std::string& where) {
  const nn::Family& family = nn::family_of(options);
  const std::string tokens = family.token_weight(), inner_tokens = family.tokens + ".weight";
  std::set<std::string> models;
  DcpKeys found;
  for (const std::string& key : keys) {
    auto prefix = prefix_of(key, tokens);
    if (!prefix) prefix = prefix_of(key, inner_tokens);
    if (!prefix && options.architecture == "llama") {
      prefix = prefix_of(key, kTitanTokens);
      if (prefix) found.names = DcpNames::kTorchtitan;
    }
    if (prefix) models.insert(*prefix);
  }
  if (models.size() != 1) {
    fail(ErrorKind::kCheckpoint, where, " must hold one model of architecture ", options.architecture,
         ", but has ",
         models.empty() ? concat("no key that ends with ", inner_tokens,
                                 options.architecture == "llama" ? concat(" or ", kTitanTokens) : "",
                                 "; its parameters must have the names of transformers",
                                 options.architecture == "llama" ? " or of torchtitan's llama" : "")
                        : concat(models.size(), " keys that end with it; save one state dict by itself"));
  }
  found.model = *models.begin();
  const std::set<std::string> all(keys.begin(), keys.end());
  std::set<std::string> optimizers;
  bool has_numbers = false;
  for (const std::string& key : keys) {
    for_each_state_prefix(key, [&](std::string_view prefix) {
      const auto state = split_state_key(key, prefix);
      if (!state) return;
      if (all.contains(found.model + state->parameter)) optimizers.emplace(prefix);
      has_numbers = has_numbers || (is_number(state->parameter) && state->kind == "exp_avg");
    });
  }
  if (optimizers.size() > 1) {
    fail(ErrorKind::kCheckpoint, where, " must hold the state of one optimizer, but holds the states of ",
         optimizers.size(), "; save one by itself");
  }
  if (optimizers.empty() && has_numbers) {
    fail(ErrorKind::kCheckpoint, where,
         " must have optimizer state under the names of parameters, but has it under numbers; save what "
         "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict() returns");
  }
  if (!optimizers.empty()) found.optimizer = *optimizers.begin();
  return found;
}

RenamedTensors::RenamedTensors(std::shared_ptr<const TensorSource> source,
                               std::map<std::string, RenamedTensor> tensors)
    : source_(std::move(source)) {
  std::map<std::string, TensorInfo> infos;
  for (TensorInfo& info : source_->infos()) infos.emplace(info.name, info);
  for (auto& [name, tensor] : tensors) {
    const TensorInfo& info = infos.at(tensor.source_name);
    TensorInfo renamed{name, info.shape, info.dtype};
    // The import refuses a weight of another shape later.
    if (info.shape.size() != 2 || (tensor.heads > 0 && info.shape[0] % (2 * tensor.heads) != 0))
      tensor.heads = 0;
    tensors_.emplace(name, RenamedEntry{std::move(tensor), std::move(renamed)});
  }
}

std::vector<TensorInfo> RenamedTensors::infos() const {
  std::vector<TensorInfo> infos;
  for (const auto& [name, entry] : tensors_) infos.push_back(entry.info);
  return infos;
}

void RenamedTensors::read(const std::string& name, int64_t begin, int64_t end, void* out) const {
  const auto& [tensor, info] = tensors_.at(name);
  if (tensor.heads == 0) return source_->read(tensor.source_name, begin, end, out);
  const int64_t columns = info.shape[1], width = info.shape[0] / tensor.heads, half = width / 2;
  const auto itemsize_bytes = static_cast<int64_t>(c10::elementSize(info.dtype));
  for (int64_t at = begin; at < end;) {
    const int64_t row = at / columns, column = at % columns, count = std::min(columns - column, end - at);
    const int64_t in_head = row % width;
    const int64_t source_row =
        row - in_head +
        (tensor.as_neighbours ? in_head % 2 * half + in_head / 2 : in_head % half * 2 + in_head / half);
    const int64_t from = source_row * columns + column;
    source_->read(tensor.source_name, from, from + count,
                  static_cast<char*>(out) + (at - begin) * itemsize_bytes);
    at += count;
  }
}

}  // namespace fsdp::checkpoint
