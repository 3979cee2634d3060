#include "torch_backend/tensor_collectives.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/util/error.h"
#include "comm/api/memory_operations.h"
#include "comm/shm/shm_communicator.h"

namespace fsdp::comm {
namespace {

using Tensors = TensorCollectives::Tensors;
using RedOp = TensorCollectives::Op;

/// Bytes that a rank shows at once: they stay in a core's L2 cache.
constexpr int64_t kShownBytes = 512 << 10;
/// Elements of each rank that are gathered at once to be combined.
constexpr int64_t kGatheredElements = 256 << 10;
/// ShmGroup::Record::op, behind those of the communicator.
constexpr int32_t kShowOp = 64;

int64_t byte_count(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }
std::byte* memory_of_dense(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

/// The memory of a contiguous tensor, which must outlive it, as bytes.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), {byte_count(tensor)}, at::TensorOptions().dtype(at::kByte));
}

Tensors dense(const Tensors& tensors) {
  Tensors contiguous;
  for (const at::Tensor& tensor : tensors) contiguous.push_back(tensor.contiguous());
  return contiguous;
}

/// `from` is `to` itself or its contiguous copy.
void write_back(const at::Tensor& to, const at::Tensor& from) {
  if (!from.is_same(to)) to.copy_(from);
}
void write_back(const Tensors& to, const Tensors& from) {
  for (size_t i = 0; i < to.size(); ++i) write_back(to[i], from[i]);
}

int64_t total_bytes(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += byte_count(tensor);
  return bytes;
}

/// Bytes [begin, begin + length) of contiguous tensors, one after another.
void copy_part(const Tensors& tensors, int64_t begin, std::byte* to, int64_t length) {
  for (const at::Tensor& tensor : tensors) {
    const int64_t bytes = byte_count(tensor);
    if (begin < bytes && length > 0) {
      const int64_t part = std::min(bytes - begin, length);
      copy_memory(to, memory_of_dense(tensor) + begin, part);
      to += part;
      length -= part;
    }
    begin = std::max<int64_t>(begin - bytes, 0);
  }
}

/// Whether the communicator takes sums and maxima of this type.
bool is_of_communicator(at::ScalarType dtype) {
  constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte,
                                       at::kChar,  at::kShort,  at::kInt,  at::kLong,     at::kBool};
  return std::ranges::find(kTypes, dtype) != std::end(kTypes);
}

const char* name_of_reduction(RedOp op) {
  constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",        "MAX",
                                    "BAND", "BOR", "BXOR",    "PREMUL_SUM", "UNUSED"};
  return kNames[static_cast<size_t>(op)];
}

void check_op(RedOp op) {
  if (op <= c10d::ReduceOp::BXOR) return;
  fail(ErrorKind::kUsage, "fsdp_shm reduces by SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and BXOR, but found ",
       name_of_reduction(op),
       "; multiply the tensors before a SUM (with FSDP2: set_force_sum_reduction_for_comms(True))");
}

/// Reverses the order of all values, so that a minimum is a maximum.
void flip(const at::Tensor& tensor) {
  at::isFloatingType(tensor.scalar_type()) ? tensor.neg_() : tensor.bitwise_not_();
}

void combine(const at::Tensor& result, const at::Tensor& next, RedOp op) {
  at::Tensor into = result;
  if (op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG) into.add_(next);
  if (op == c10d::ReduceOp::PRODUCT) into.mul_(next);
  if (op == c10d::ReduceOp::MIN) at::minimum_out(into, into, next);
  if (op == c10d::ReduceOp::MAX) at::maximum_out(into, into, next);
  if (op == c10d::ReduceOp::BAND) into.bitwise_and_(next);
  if (op == c10d::ReduceOp::BOR) into.bitwise_or_(next);
  if (op == c10d::ReduceOp::BXOR) into.bitwise_xor_(next);
}

void check_alike(const char* name, const at::Tensor& tensor, const at::Tensor& other) {
  if (tensor.scalar_type() == other.scalar_type() && tensor.numel() == other.numel()) return;
  fail(ErrorKind::kUsage, name, " expects tensors of one type and size from and for each rank, found ",
       shown(tensor), " and ", shown(other));
}

void check_count(const char* name, const Tensors& tensors, int64_t expected) {
  if (static_cast<int64_t>(tensors.size()) == expected) return;
  fail(ErrorKind::kUsage, name, " expects ", expected, " tensors, one for each rank, found ", tensors.size());
}

}  // namespace

std::string shown(const at::Tensor& tensor) {
  return concat(c10::toString(tensor.scalar_type()), "[", tensor.numel(), "]");
}

TensorCollectives::TensorCollectives(const std::shared_ptr<ShmGroup>& group, std::string name)
    : group_(group), name_(std::move(name)), communicator_(make_shm_communicator(group)) {}

CallSite TensorCollectives::site(const at::Tensor& tensor) const {
  return {.unit = shown(tensor), .pass = name_.c_str()};
}

void TensorCollectives::barrier() { communicator_->barrier({.unit = "all ranks", .pass = name_.c_str()}); }

void TensorCollectives::broadcast(const at::Tensor& tensor, int root) {
  if (tensor.numel() == 0) return;
  const at::Tensor contiguous = tensor.contiguous();
  communicator_->broadcast(as_bytes(contiguous), root, site(tensor))->wait();
  write_back(tensor, contiguous);
}

void TensorCollectives::divide(const at::Tensor& sums) const {
  if (at::isFloatingType(sums.scalar_type())) {
    sums.div_(size());
  } else {
    sums.div_(size(), "trunc");
  }
}

void TensorCollectives::all_reduce(const at::Tensor& tensor, Op op) {
  check_op(op);
  if (tensor.numel() == 0) return;
  const bool is_sum = op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG;
  const at::Tensor contiguous = tensor.contiguous();
  // Sums treat a complex number as two numbers.
  const at::Tensor data = contiguous.is_complex() && is_sum ? at::view_as_real(contiguous) : contiguous;
  const bool is_extreme = op == c10d::ReduceOp::MIN || op == c10d::ReduceOp::MAX;
  if (is_of_communicator(data.scalar_type()) && (is_sum || is_extreme)) {
    if (op == c10d::ReduceOp::MIN) flip(data);
    communicator_->all_reduce(data, is_sum ? ReduceOp::kSum : ReduceOp::kMax, site(tensor))->wait();
    if (op == c10d::ReduceOp::MIN) flip(data);
  } else {
    combine_gathered(data.view({-1}), op);
  }
  if (op == c10d::ReduceOp::AVG) divide(data);
  write_back(tensor, contiguous);
}

void TensorCollectives::combine_gathered(const at::Tensor& flat, Op op) {
  for (int64_t begin = 0; begin < flat.numel(); begin += kGatheredElements) {
    const at::Tensor part = flat.narrow(0, begin, std::min(kGatheredElements, flat.numel() - begin));
    const at::Tensor all = at::empty({size(), part.numel()}, part.options());
    communicator_->all_gather(as_bytes(all), as_bytes(part), site(flat))->wait();
    part.copy_(all[0]);
    for (int rank = 1; rank < size(); ++rank) combine(part, all[rank], op);
  }
}

void TensorCollectives::reduce(const at::Tensor& tensor, Op op, int root) {
  all_reduce(rank() == root ? tensor : tensor.clone(), op);
}

void TensorCollectives::reduce_scatter(const at::Tensor& output, const at::Tensor& input, Op op) {
  check_op(op);
  if (input.scalar_type() != output.scalar_type() || input.numel() != output.numel() * size()) {
    fail(ErrorKind::kUsage, "reduce_scatter expects an input ", size(),
         " times as large as the output, of its type, found ", shown(input), " and ", shown(output));
  }
  if (output.numel() == 0) return;
  const bool is_mean = op == c10d::ReduceOp::AVG;
  if ((op != c10d::ReduceOp::SUM && !is_mean) || !is_of_communicator(output.scalar_type())) {
    const at::Tensor all = input.clone(at::MemoryFormat::Contiguous);
    all_reduce(all, op);
    output.copy_(all.view({-1}).narrow(0, rank() * output.numel(), output.numel()).view(output.sizes()));
    return;
  }
  const at::Tensor contiguous = output.contiguous(), from = input.contiguous();
  if (is_mean && output.scalar_type() == at::kFloat) {
    const auto ranks = static_cast<float>(size());
    const auto mean = [ranks](float* sums, int64_t n) {
      for (int64_t i = 0; i < n; ++i) sums[i] /= ranks;
    };
    communicator_->reduce_scatter_and_finish(contiguous, from, mean, site(input))->wait();
  } else {
    communicator_->reduce_scatter(contiguous, from, site(input))->wait();
    if (is_mean) divide(contiguous);
  }
  write_back(output, contiguous);
}

void TensorCollectives::reduce_scatter(const at::Tensor& output, const Tensors& inputs, Op op) {
  check_count("reduce_scatter", inputs, size());
  check_alike("reduce_scatter", output, inputs[static_cast<size_t>(rank())]);
  const auto is_as_large = [&](const at::Tensor& input) { return input.numel() == inputs[0].numel(); };
  if (std::ranges::all_of(inputs, is_as_large)) {
    Tensors flat;
    for (const at::Tensor& input : inputs) flat.push_back(input.reshape({-1}));
    return reduce_scatter(output, at::cat(flat), op);
  }
  for (int root = 0; root < size(); ++root) {
    const at::Tensor& input = inputs[static_cast<size_t>(root)];
    const at::Tensor sums = input.clone();
    all_reduce(sums, op);
    if (root == rank()) output.copy_(sums.reshape_as(output));
  }
}

void TensorCollectives::all_gather(const at::Tensor& output, const at::Tensor& input) {
  if (output.scalar_type() != input.scalar_type() || output.numel() != input.numel() * size()) {
    fail(ErrorKind::kUsage, "all_gather expects an output ", size(),
         " times as large as the input, of its type, found ", shown(output), " and ", shown(input));
  }
  if (input.numel() == 0) return;
  const at::Tensor contiguous = output.contiguous(), from = input.contiguous();
  communicator_->all_gather(as_bytes(contiguous), as_bytes(from), site(input))->wait();
  write_back(output, contiguous);
}

TensorCollectives::Show TensorCollectives::show_of(const char* name, const at::Tensor& tensor) const {
  return {.what = described(name, site(tensor)),
          .dtype = static_cast<int32_t>(tensor.scalar_type()),
          .longest = byte_count(tensor)};
}

void TensorCollectives::all_gather(const Tensors& outputs, const at::Tensor& input) {
  check_count("all_gather", outputs, size());
  gather_from_all("all_gather", outputs, input, 0);
}

void TensorCollectives::gather(const Tensors& outputs, const at::Tensor& input, int root) {
  check_count("gather", outputs, rank() == root ? size() : 0);
  gather_from_all("gather", outputs, input, root);
}

void TensorCollectives::gather_from_all(const char* name, const Tensors& outputs, const at::Tensor& input,
                                        int root) {
  for (const at::Tensor& output : outputs) check_alike(name, output, input);
  const Tensors contiguous = dense(outputs);
  Show call = show_of(name, input);
  call.root = root;
  call.mine = {input.contiguous()};
  for (int i = 0; i < static_cast<int>(outputs.size()); ++i) {
    const int peer = (rank() + i) % size();  // not all read the same memory at once
    call.wanted.push_back({peer, 0, contiguous[static_cast<size_t>(peer)]});
  }
  show(call);
  write_back(outputs, contiguous);
}

void TensorCollectives::scatter(const at::Tensor& output, const Tensors& inputs, int root) {
  check_count("scatter", inputs, rank() == root ? size() : 0);
  for (const at::Tensor& input : inputs) check_alike("scatter", output, input);
  const at::Tensor contiguous = output.contiguous();
  Show call = show_of("scatter", output);
  call.root = root;
  call.mine = dense(inputs);
  call.wanted.push_back({root, rank() * call.longest, contiguous});
  call.longest *= size();
  show(call);
  write_back(output, contiguous);
}

void TensorCollectives::all_to_all(const Tensors& outputs, const Tensors& inputs) {
  check_count("all_to_all", outputs, size());
  check_count("all_to_all", inputs, size());
  const Tensors contiguous = dense(outputs);
  // Before its tensors each rank shows the bytes that it sends to each rank, and then the bytes that it
  // expects from each.
  const int64_t ranks = size();
  const at::Tensor own = at::empty({(2 * ranks + 7) / 8 * 8}, at::kLong);  // whole cache lines
  for (int64_t i = 0; i < ranks; ++i) {
    own.data_ptr<int64_t>()[i] = byte_count(inputs[static_cast<size_t>(i)]);
    own.data_ptr<int64_t>()[ranks + i] = byte_count(outputs[static_cast<size_t>(i)]);
  }
  Show call = show_of("all_to_all", inputs.front());
  call.longest = 0;  // not known yet
  call.mine.push_back(own);
  // Each rank shows the next rank's tensor first, so that all have something to read at any time. A rank only
  // copies its own tensor.
  for (int64_t step = 1; step < ranks; ++step) {
    call.mine.push_back(inputs[static_cast<size_t>((rank() + step) % ranks)].contiguous());
  }
  FSDP_CHECK(byte_count(own) <= kShownBytes);
  show_piece(call, 0);
  std::vector<const int64_t*> bytes;
  for (int from = 0; from < size(); ++from) bytes.push_back(reinterpret_cast<const int64_t*>(shown_by(from)));
  for (int64_t from = 0; from < ranks; ++from) {
    int64_t shows = byte_count(own);
    for (int64_t step = 1; step <= ranks; ++step) {
      const int64_t to = (from + step) % ranks;
      const int64_t sent = bytes[static_cast<size_t>(from)][to];
      const int64_t expected = bytes[static_cast<size_t>(to)][ranks + from];
      if (sent != expected) {
        fail(ErrorKind::kUsage, "all_to_all: rank ", from, " sends ", sent, " bytes to rank ", to,
             ", which expects ", expected);
      }
      if (to == from) break;
      if (to == rank()) {
        call.wanted.push_back({static_cast<int>(from), shows, contiguous[static_cast<size_t>(from)]});
      }
      shows += sent;
    }
    call.longest = std::max(call.longest, shows);
  }
  take_piece(call, 0);
  const auto own_place = static_cast<size_t>(rank());
  const at::Tensor kept = inputs[own_place].contiguous();
  copy_memory(memory_of_dense(contiguous[own_place]), memory_of_dense(kept), byte_count(kept));
  show(call, kShownBytes);
  write_back(outputs, contiguous);
}

void TensorCollectives::show(const Show& call, int64_t begin) {
  for (; begin < call.longest; begin += kShownBytes) {
    show_piece(call, begin);
    take_piece(call, begin);
  }
}

/// Shows a piece through the ranks' stages, with one meeting, as ShmCommunicator does with tensors outside
/// shared memory.
void TensorCollectives::show_piece(const Show& call, int64_t begin) {
  ShmGroup::Record record;
  record.op = kShowOp;
  record.dtype = call.dtype;
  record.numel = call.longest;
  record.root = call.root;
  std::strncpy(record.unit, call.what.c_str(), sizeof(record.unit) - 1);
  const int64_t length = std::min(kShownBytes, total_bytes(call.mine) - begin);
  if (length > 0) {
    copy_part(call.mine, begin, group_->stage(length), length);
    record.offset = group_->stage_offset();
  }
  group_->meet(record, call.what);
}

void TensorCollectives::take_piece(const Show& call, int64_t begin) {
  for (const Wanted& wanted : call.wanted) {
    const int64_t first = std::max(begin, wanted.begin);
    const int64_t last = std::min(begin + kShownBytes, wanted.begin + byte_count(wanted.to));
    if (first >= last) continue;
    copy_memory(memory_of_dense(wanted.to) + (first - wanted.begin), shown_by(wanted.from) + (first - begin),
                last - first);
  }
}

const std::byte* TensorCollectives::shown_by(int peer) const {
  return group_->memory_of(peer, group_->record(peer).offset);
}

}  // namespace fsdp::comm
