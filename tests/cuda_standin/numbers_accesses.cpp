#include "numbers_accesses.h"

#include <algorithm>

namespace standin {
namespace {

thread_local AccessRecord* recording = nullptr;

void note(const void* at, size_t bytes, bool writes) {
  if (recording != nullptr) recording->note(at, bytes, writes);
}

}  // namespace

void Pieces::open_another(const Piece& piece) {
  constexpr size_t kManyPieces = size_t{1} << 16;
  if (closed_.size() >= kManyPieces) closed_ = merged();
  if (open_[next_].begin != nullptr) closed_.push_back(open_[next_]);
  open_[next_] = piece;
  next_ = (next_ + 1) % kOpen;
}

std::vector<Pieces::Piece> Pieces::merged() const {
  std::vector<Piece> all = closed_;
  std::copy_if(std::begin(open_), std::end(open_), std::back_inserter(all),
               [](const Piece& piece) { return piece.begin != nullptr; });
  std::sort(all.begin(), all.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  std::vector<Piece> merged;
  for (const Piece& piece : all) {
    if (merged.empty() || piece.begin > merged.back().end) {
      merged.push_back(piece);
    } else {
      merged.back().end = std::max(merged.back().end, piece.end);
    }
  }
  return merged;
}

AccessRecord::AccessRecord() : memory_(standin_current_memory()) { recording = this; }
AccessRecord::~AccessRecord() { recording = nullptr; }

std::vector<Range> AccessRecord::ranges() const {
  std::vector<Range> ranges;
  for (const Pieces* pieces : {&read_, &written_}) {
    for (const auto& [begin, end] : pieces->merged()) {
      ranges.push_back(
          {memory_.given + (begin - memory_.seen), static_cast<size_t>(end - begin), pieces == &written_});
    }
  }
  return ranges;
}

}  // namespace standin

// The functions that the compiler calls.
#define STANDIN_ACCESSES(bytes)                                                          \
  void __tsan_read##bytes(void* at) { standin::note(at, bytes, false); }                 \
  void __tsan_write##bytes(void* at) { standin::note(at, bytes, true); }                 \
  void __tsan_unaligned_read##bytes(const void* at) { standin::note(at, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* at) { standin::note(at, bytes, true); }

extern "C" {
STANDIN_ACCESSES(1)
STANDIN_ACCESSES(2)
STANDIN_ACCESSES(4)
STANDIN_ACCESSES(8)
STANDIN_ACCESSES(16)
void __tsan_read_range(void* at, size_t bytes) { standin::note(at, bytes, false); }
void __tsan_write_range(void* at, size_t bytes) { standin::note(at, bytes, true); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}

// Atomic operations are left to these functions altogether. Kernels have none.
using Byte = unsigned char;
Byte __tsan_atomic8_load(const volatile Byte* at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
void __tsan_atomic8_store(volatile Byte* at, Byte value, int) {
  __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_fetch_add(volatile int* at, int value, int) {
  return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_fetch_sub(volatile int* at, int value, int) {
  return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);
}
}
