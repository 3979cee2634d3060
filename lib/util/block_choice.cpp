#include "util/block_choice.h"

namespace fsdp::util {
namespace {

/// A block may be an eighth larger than what is asked for. With more, units of different sizes would sit in
/// each other's blocks, and the pool would hold more than is ever in use at once.
bool fits(int64_t capacity, int64_t nbytes) { return capacity >= nbytes && capacity - nbytes <= nbytes / 8; }

}  // namespace

BlockChoice choose_block(const std::vector<int64_t>& waiting, int64_t nbytes, int64_t held, int64_t most,
                         int64_t largest_reuse) {
  BlockChoice choice;
  auto consider = [&](size_t i) {
    if (!choice.reuse || waiting[i] < waiting[*choice.reuse]) choice.reuse = i;
  };
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (fits(waiting[i], nbytes)) consider(i);
  }
  if (choice.reuse || held + nbytes <= most) return choice;
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i] >= nbytes && waiting[i] <= nbytes * largest_reuse) consider(i);
  }
  if (choice.reuse) return choice;
  // Blocks that wait in vain make room: the pool holds no more than was ever in use at once.
  while (choice.give_up < waiting.size() && held + nbytes > most) held -= waiting[choice.give_up++];
  return choice;
}

}  // namespace fsdp::util
