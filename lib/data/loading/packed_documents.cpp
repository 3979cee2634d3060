#include "data/loading/packed_documents.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace fsdp::data {
namespace {

/// A document, and its row in the batch.
struct Placed {
  int64_t row;
  const ScoredDocument* document;
};

/// Packs documents. Sets inputs, targets and what describes their tokens and documents.
Batch pack(const Batch& batch, const std::vector<Placed>& documents) {
  int64_t tokens = 0;
  for (const Placed& each : documents) tokens += each.document->end - each.document->begin;
  const int64_t length = std::max<int64_t>(tokens, 1), count = std::ssize(documents);
  Batch packed;
  packed.inputs = at::zeros({1, length}, at::kLong);
  packed.targets = at::full({1, length}, kIgnoredTarget, at::kLong);
  packed.row_tokens = {tokens};
  ScoredCompletions scored{.of_targets = at::full({1, length}, -1, at::kLong),
                           .preferred = at::empty({count}, at::kBool),
                           .references = at::empty({count}, at::kDouble)};
  std::vector<int64_t> starts;
  int64_t at = 0;
  bool has_references = count > 0;
  for (int64_t number = 0; number < count; ++number) {
    const auto& [row, document] = documents[static_cast<size_t>(number)];
    const int64_t size = document->end - document->begin;
    packed.inputs[0].narrow(0, at, size).copy_(batch.inputs[row].narrow(0, document->begin, size));
    packed.targets[0].narrow(0, at, size).copy_(batch.targets[row].narrow(0, document->begin, size));
    const auto* targets = packed.targets.const_data_ptr<int64_t>() + at;
    auto* of_targets = scored.of_targets.mutable_data_ptr<int64_t>() + at;
    for (int64_t i = 0; i < size; ++i) {
      if (document->completes[static_cast<size_t>(i)]) of_targets[i] = number;
      if (document->preferred && targets[i] != kIgnoredTarget) ++packed.preferred_targets;
    }
    scored.preferred.mutable_data_ptr<bool>()[number] = document->preferred;
    scored.references.mutable_data_ptr<double>()[number] = document->reference;
    has_references = has_references && !std::isnan(document->reference);
    starts.push_back(at);
    at += size;
  }
  if (starts.empty()) starts.push_back(0);
  if (!has_references) scored.references = at::Tensor();
  packed.document_starts = std::make_shared<std::vector<std::vector<int64_t>>>(1, std::move(starts));
  packed.scored = std::make_shared<ScoredCompletions>(std::move(scored));
  return packed;
}

}  // namespace

Batch packed_documents(const Batch& batch, const std::vector<std::vector<ScoredDocument>>& rows,
                       bool exchanges) {
  std::vector<Placed> own, exchanged;
  for (size_t row = 0; row < rows.size(); ++row) {
    for (const ScoredDocument& document : rows[row]) {
      (document.exchanged ? exchanged : own).push_back({static_cast<int64_t>(row), &document});
    }
  }
  Batch packed = pack(batch, own);
  packed.valid_rows = packed.counted = batch.valid_rows;
  packed.first_row = batch.first_row;
  if (exchanges) packed.exchanged = std::make_shared<Batch>(pack(batch, exchanged));
  return packed;
}

void pad_packed(Batch& batch, int64_t multiple) {
  if (batch.exchanged) pad_packed(*batch.exchanged, multiple);
  const int64_t length = batch.inputs.size(1), padding = (multiple - length % multiple) % multiple;
  if (padding == 0) return;
  const auto pad = [&](at::Tensor& row, int64_t value) {
    row = at::cat({row, at::full({1, padding}, value, row.options())}, 1);
  };
  pad(batch.inputs, 0);
  pad(batch.targets, kIgnoredTarget);
  pad(batch.scored->of_targets, -1);
  auto starts = std::make_shared<std::vector<std::vector<int64_t>>>(*batch.document_starts);
  starts->front().push_back(length);
  batch.document_starts = std::move(starts);
}

}  // namespace fsdp::data
