// Two towers that embed the two sides of a pair close to each other: one for queries and one for documents,
// trained together. The document tower runs twice in a pass (on the right and a wrong document), the reranker
// only in every other step.

#include <fsdp/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "training.h"

namespace {

constexpr int64_t kTokens = 40, kWidth = 16;

/// ids: [B, T] int64, weights: [B, T] or nothing -> [B, kWidth], unit vectors
struct TowerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& ids, const std::optional<at::Tensor>& weights = std::nullopt) {
    at::Tensor x = tokens(ids);
    if (weights) x = x * weights->unsqueeze(-1);
    x = out(at::gelu(in(x.mean(1))));
    return x / x.norm(2, -1, /*keepdim=*/true);
  }
  torch::nn::Embedding tokens = register_module("tokens", torch::nn::Embedding(kTokens, kWidth));
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kWidth, 32));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, kWidth));
};

struct RerankerImpl : torch::nn::Module {
  at::Tensor forward(const std::pair<at::Tensor, at::Tensor>& both) {
    return last(at::tanh(first(both.first * both.second))).squeeze(-1);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(kWidth, 32));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(32, 1));
};

/// Ids of queries and their right and wrong documents, [B, T] each.
struct Pairs {
  at::Tensor queries, right, wrong;

  template <typename Visit>
  void visit_tensors(Visit&& visit) {
    visit(queries);
    visit(right);
    visit(wrong);
  }
};

struct RetrieverImpl : torch::nn::Module {
  /// Returns the margins of right over wrong documents, by name: [B] each.
  std::map<std::string, at::Tensor> forward(const Pairs& pairs, bool reranks) {
    const at::Tensor query = queries(pairs.queries, at::ones({pairs.queries.size(0), pairs.queries.size(1)}));
    const at::Tensor right = documents(pairs.right), wrong = documents(pairs.wrong);
    std::map<std::string, at::Tensor> margins = {
        {"towers", (query * right).sum(-1) - (query * wrong).sum(-1)}};
    if (reranks) margins["reranker"] = reranker(std::pair(query, right)) - reranker(std::pair(query, wrong));
    return margins;
  }
  fsdp::Hooked<TowerImpl> queries = register_module("queries", fsdp::Hooked<TowerImpl>());
  fsdp::Hooked<TowerImpl> documents = register_module("documents", fsdp::Hooked<TowerImpl>());
  fsdp::Hooked<RerankerImpl> reranker = register_module("reranker", fsdp::Hooked<RerankerImpl>());
};

}  // namespace

int main() {
  torch::manual_seed(1);  // the same first weights on every rank
  fsdp::Hooked<RetrieverImpl> retriever;
  return examples::train(retriever, [&](int64_t first, int64_t rows, int64_t step) {
    const at::Tensor row = at::arange(first, first + rows).view({-1, 1}), token = at::arange(5);
    const Pairs pairs{.queries = (row * 5 + token) % kTokens,
                      .right = (row * 5 + token * 2 + 1) % kTokens,
                      .wrong = (row * 7 + token * 3 + 11) % kTokens};
    at::Tensor loss = at::zeros({});
    for (const auto& [name, margin] : retriever(pairs, /*reranks=*/step % 2 == 1)) {
      loss = loss - at::log_sigmoid(4 * margin).mean();
    }
    return loss;
  });
}
