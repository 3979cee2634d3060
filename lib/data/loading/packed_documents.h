#pragma once

// Batches of preferences without padding: the documents of all rows, one after another in one row.

#include <vector>

#include "data/loading/loader.h"

namespace fsdp::data {

/// Packs a batch whose row i has the documents `rows[i]`. Rows that do not count have none. Documents with
/// another document's completion go to Batch::exchanged if `exchanges`. inputs and targets become [1, tokens
/// of all documents]; a batch without any has one token, whose target does not count.
Batch packed_documents(const Batch& batch, const std::vector<std::vector<ScoredDocument>>& rows,
                       bool exchanges);

/// Appends padding to the row of a batch, and to that of its exchanged documents, until their lengths are
/// multiples of `multiple`. The padding is a document of its own.
void pad_packed(Batch& batch, int64_t multiple);

}  // namespace fsdp::data
