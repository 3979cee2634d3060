// Optimizer: the update of one parameter, its average, and values in 16 bits.

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "base/util/hash.h"
#include "model/kernels/stochastic_rounding.h"
#include "state/optim/optimizer.h"

namespace fsdp::optim {
namespace {

// libtorch's CPU kernels compute whole vectors of up to 16 floats (AVX-512) in float and the remaining
// elements one by one, partly in double, so an element's last bits would depend on its distance to the
// tensor's end. Kernels therefore get multiples of 16 elements only, and the rest of a range is updated in a
// padded copy.
constexpr int64_t kVectorFloats = 16;

}  // namespace

// ema = decay * ema + (1 - decay) * value, beginning with the first step's values.
void Optimizer::update_average(size_t i) {
  open_->averaged[i] = true;
  const at::Tensor& average = states_[state_index(kEmaState)][i].numbers;
  if (average.numel() == 0) return;
  if (step_count_ == 1) {
    average.copy_(parameters_[i].value);
    return;
  }
  read_value(i, 0, average.numel(), [&](const at::Tensor& value, int64_t first) {
    if (!options_.fused || !value.is_cpu()) {
      average.narrow(0, first, value.numel()).lerp_(value, 1 - options_.ema_decay);
      return;
    }
    // A plain loop. libtorch's kernel may round the elements after the last whole vector differently, and
    // which elements come after it depends on the sharding.
    const auto share = static_cast<float>(1 - options_.ema_decay);
    float* to = average.data_ptr<float>() + first;
    const float* from = value.const_data_ptr<float>();
    util::parallel_for(0, value.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) to[k] += share * (from[k] - to[k]);
    });
  });
}

// ---- values in 16 bits

bool Optimizer::is_rounded(size_t i) const { return parameters_.at(i).value.scalar_type() != at::kFloat; }

void Optimizer::read_value(size_t i, int64_t begin, int64_t end, PieceFunction read) const {
  const at::Tensor& value = parameters_.at(i).value;
  if (!is_rounded(i)) return read(value.narrow(0, begin, end - begin), begin);
  const at::Tensor memory = at::empty({std::min(kPiece, end - begin)}, value.options().dtype(at::kFloat));
  for (; begin < end; begin += kPiece) {
    const int64_t count = std::min(kPiece, end - begin);
    read(memory.narrow(0, 0, count).copy_(value.narrow(0, begin, count)), begin);
  }
}

void Optimizer::change_value(size_t i, int64_t begin, int64_t end, PieceFunction change) {
  read_value(i, begin, end, [&](const at::Tensor& piece, int64_t first) {
    change(piece, first);
    if (is_rounded(i)) {
      round_back(i, piece, first, parameters_[i].value.narrow(0, first, piece.numel()));
    }
  });
}

void Optimizer::change_state(const std::string& name, size_t i, int64_t begin, int64_t end,
                             PieceFunction change) {
  if (state_kinds_[state_index(name)].type == StateType::kFloat32) {
    return change(state_of(name, i, begin, end).data, begin);
  }
  for_each_piece(i, begin, end, kPiece, [&](int64_t from, int64_t to) {
    const StateView stored = state_of(name, i, from, to);
    const at::Tensor piece = stored.numbers().to(at::kFloat);
    change(piece, from);
    store_state(name, i, from, piece, stored);
  });
}

void Optimizer::for_each_piece(size_t i, int64_t begin, int64_t end, int64_t most,
                               c10::function_ref<void(int64_t, int64_t)> visit) const {
  for_each_part(i, begin, end, "", [&](int64_t from, int64_t to, const kernels::RoundedElements& elements) {
    const int64_t place = kernels::phase_of(elements.part, elements.columns) + elements.first;
    int64_t next = from + most - place % kernels::kCodedBlock;
    for (; from < to; from = std::exchange(next, next + most)) visit(from, std::min(next, to));
  });
}

void Optimizer::store_state(const std::string& name, size_t i, int64_t begin, const at::Tensor& numbers,
                            const StateView& to) {
  if (to.is_coded()) return kernels::encode(numbers, to.codes);
  if (to.data.scalar_type() == at::kFloat) {
    if (!numbers.is_same(to.data)) at::Tensor(to.data).copy_(numbers);
    return;
  }
  round_back(i, numbers, begin, to.data, name);
}

void Optimizer::for_each_part(
    size_t i, int64_t begin, int64_t end, const std::string& state,
    c10::function_ref<void(int64_t, int64_t, const kernels::RoundedElements&)> visit) const {
  const FlatParameter& parameter = parameters_[i];
  int64_t visited = 0;
  for (const FlatParameter::Tensor& tensor : parameter.tensors) {
    if (tensor.begin >= end || tensor.end() <= begin) continue;
    const std::string name = state.empty() ? tensor.name : concat(state, "/", tensor.name);
    const uint64_t key = util::mix64(util::hash_of(options_.rounding_seed, name) ^
                                     util::mix64(static_cast<uint64_t>(step_count_)));
    int64_t first = tensor.begin;
    for (const util::Rectangle& part : tensor.parts) {
      const int64_t from = std::max(begin, first), to = std::min(end, first + part.numel());
      if (from < to) {
        visit(from, to,
              {.key = key,
               .columns = c10::multiply_integers(tensor.shape) / part.rows,
               .part = part,
               .first = from - first});
        visited += to - from;
      }
      first += part.numel();
    }
  }
  FSDP_CHECK(visited == end - begin, parameter.name, " has elements from ", begin, " to ", end,
             " that are in none of its tensors");
}

void Optimizer::round_back(size_t i, const at::Tensor& piece, int64_t begin, const at::Tensor& to,
                           const std::string& state) {
  for_each_part(i, begin, begin + piece.numel(), state,
                [&](int64_t from, int64_t end, const kernels::RoundedElements& elements) {
                  kernels::round_stochastically(piece.narrow(0, from - begin, end - from),
                                                to.narrow(0, from - begin, end - from), elements);
                });
}

// ---- elements

void Optimizer::update_alike(size_t i, const at::Tensor& gradient, const Treatment& treatment,
                             double gradient_scale) {
  Update numbers;
  numbers.weight_decay = weight_decay_of(options_, treatment);
  numbers.lr = lr_of(options_, treatment, open_->lr);
  numbers.step = step_counts_[i];
  numbers.gradient_scale = gradient_scale;
  numbers.scale_on_device = open_->scale_on_device;
  const StateType type = state_type(treatment);
  std::vector<FlatParameter::Range> ranges;
  for (const FlatParameter::Range& range : parameters_[i].ranges) {
    if (!(range.treatment == treatment)) continue;
    if (type == StateType::kFloat32) {
      ranges.push_back(range);
      continue;
    }
    // The elements of a part of a tensor are rounded alike, and share blocks.
    for_each_part(i, range.begin, range.end, "",
                  [&](int64_t begin, int64_t end, const kernels::RoundedElements&) {
                    ranges.push_back({begin, end, treatment});
                  });
  }
  if (ranges.empty()) return;
  if (is_streamed(i)) return update_streamed(i, ranges, gradient, numbers);
  const auto& copy = parameters_[i].copy;
  if (!is_rounded(i) && (type == StateType::kFloat32 || takes_stored_states())) {
    const at::Tensor written = copy && is_updated_in_one_pass(i) ? copy->values() : at::Tensor();
    return update_piece(i, {.value = parameters_[i].value, .gradient = gradient, .copy = written}, ranges,
                        numbers);
  }
  const auto update_part = [&](int64_t first, int64_t last) {
    change_value(i, first, last, [&](const at::Tensor& piece, int64_t begin) {
      const at::Tensor written =
          copy && is_updated_in_one_pass(i) ? copy->values().narrow(0, begin, piece.numel()) : at::Tensor();
      update_piece(i, {.value = piece, .begin = begin, .gradient = gradient, .copy = written},
                   {{begin, begin + piece.numel(), treatment}}, numbers);
    });
  };
  for (const auto& [begin, end, same_treatment] : ranges) {
    type == StateType::kFloat32 ? update_part(begin, end)
                                : for_each_piece(i, begin, end, kPiece, update_part);
  }
}

void Optimizer::update_streamed(size_t i, const std::vector<FlatParameter::Range>& ranges,
                                const at::Tensor& gradient, const Update& numbers) {
  const Treatment& treatment = ranges.front().treatment;
  const bool in_one_pass = is_updated_in_one_pass(i);
  std::vector<std::pair<int64_t, int64_t>> pieces;
  const auto add = [&pieces](int64_t begin, int64_t end) { pieces.emplace_back(begin, end); };
  for (const FlatParameter::Range& range : ranges) {
    if (is_rounded(i) || state_type(treatment) != StateType::kFloat32) {
      for_each_piece(i, range.begin, range.end, kStreamedPiece, add);
      continue;
    }
    for (int64_t begin = range.begin; begin < range.end; begin += kStreamedPiece) {
      add(begin, std::min(begin + kStreamedPiece, range.end));
    }
  }
  const auto fetched_piece = [&](size_t k) {
    return fetched(i, pieces[k].first, pieces[k].second, treatment, gradient);
  };
  Update of_piece = numbers;
  if (!in_one_pass) of_piece.gradient_scale = 1;
  std::optional<StreamedPiece> next = fetched_piece(0);
  for (size_t k = 0; k < pieces.size(); ++k) {
    StreamedPiece now = *std::exchange(next, std::nullopt);
    if (k + 1 < pieces.size()) next.emplace(fetched_piece(k + 1));
    staged_->wait_for(now.set);
    Piece& piece = now.piece;
    const at::Tensor stored = piece.value, copy = piece.copy;
    if (is_rounded(i)) piece.value = stored.to(at::kFloat);
    if (!in_one_pass) {
      piece.gradient = piece.gradient.to(at::kFloat);
      if (numbers.gradient_scale != 1) piece.gradient = piece.gradient * numbers.gradient_scale;
      piece.copy.reset();
    }
    update_piece(i, piece, {{piece.begin, piece.begin + stored.numel(), treatment}}, of_piece);
    if (is_rounded(i)) round_back(i, piece.value, piece.begin, stored);
    if (!in_one_pass && copy.defined()) copy.copy_(stored);
    staged_->send_back(std::move(now.set));
  }
}

Optimizer::StreamedPiece Optimizer::fetched(size_t i, int64_t begin, int64_t end, const Treatment& treatment,
                                            const at::Tensor& gradient) {
  const FlatParameter& parameter = parameters_[i];
  StreamedPiece streamed{.set = staged_->make_set(), .piece = {.begin = begin, .gradient_begin = begin}};
  const auto bring = [&](const at::Tensor& whole, bool changes) {
    return streamed.set.add(whole.narrow(0, begin, end - begin), changes);
  };
  Piece& piece = streamed.piece;
  piece.value = bring(parameter.value, true);
  piece.gradient = bring(gradient, false);
  if (parameter.copy) piece.copy = bring(parameter.copy->values(), true);
  for (const StateKind& kind : state_kinds_) {
    StateView& state = piece.states.emplace_back();
    if (kind.name == kEmaState || !kind.covers(treatment)) continue;
    state = state_of(kind.name, i, begin, end);
    state.data = streamed.set.add(state.data, true);
    state.codes.codes = streamed.set.add(state.codes.codes, true);
    state.codes.scales = streamed.set.add(state.codes.scales, true);
  }
  staged_->fetch(streamed.set);
  return streamed;
}

void Optimizer::update_piece(size_t i, const Piece& piece, const std::vector<FlatParameter::Range>& ranges,
                             Update todo) {
  const bool streamed = is_streamed(i);
  FSDP_CHECK(!streamed || ranges.size() == 1);
  // A tensor whose ranges are passed to the kernels.
  struct Column {
    at::Tensor whole;
    std::vector<at::Tensor>* parts;
    int64_t first = 0;                           ///< element of the parameter with which the tensor begins
    std::optional<size_t> state = std::nullopt;  ///< index of the state; not given for values and gradients
  };
  /// A state in fp32, and where it is kept.
  struct Widened {
    at::Tensor values;
    StateView stored;
    size_t state;
  };
  const StateType type = state_type(ranges.front().treatment);
  std::vector<Widened> widened;
  todo.states.reserve(states_.size());
  std::vector<Column> columns = {{piece.value, &todo.values, piece.begin},
                                 {piece.gradient, &todo.gradients, piece.gradient_begin}};
  if (piece.copy.defined()) columns.push_back({piece.copy, &todo.copies, piece.begin});
  const auto state_at = [&](size_t s, int64_t begin, int64_t end) {
    return streamed ? piece.states[s] : state_of(state_kinds_[s].name, i, begin, end);
  };
  for (size_t s = 0; s < states_.size(); ++s) {
    if (state_kinds_[s].name == kEmaState || !state_kinds_[s].covers(ranges.front().treatment)) continue;
    std::vector<at::Tensor>& parts = todo.states.emplace_back();
    if (type == StateType::kInt8 && takes_stored_states()) {
      std::vector<kernels::BlockCodes>& coded = todo.coded.emplace_back();
      for (const auto& [begin, end, treatment] : ranges) {
        coded.push_back(state_at(s, begin, end).codes);
        parts.push_back(coded.back().codes);
      }
      continue;
    }
    if (type == StateType::kFloat32 || takes_stored_states()) {
      if (streamed) {
        columns.push_back({piece.states[s].data, &parts, piece.begin});
      } else {
        columns.push_back({states_[s][i].numbers, &parts, 0, s});
      }
      if (type == StateType::kBFloat16) {
        todo.rounded.push_back(rounded_elements(i, ranges, state_kinds_[s].name));
      }
      continue;
    }
    FSDP_CHECK(ranges.size() == 1);
    const auto& [begin, end, treatment] = ranges.front();
    const StateView stored = state_at(s, begin, end);
    widened.push_back({stored.numbers().to(at::kFloat), stored, s});
    columns.push_back({widened.back().values, &parts, begin});
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> rests;  // originals and their padded copies
  // Kernels that scale, or take stored states, need no padding.
  const bool pad =
      piece.value.is_cpu() && !is_updated_in_one_pass(i) && todo.rounded.empty() && todo.coded.empty();
  for (const FlatParameter::Range& range : ranges) {
    int64_t length = range.end - range.begin;
    int64_t rest = pad ? length % kVectorFloats : 0;
    for (Column& column : columns) {
      int64_t begin = column.state ? state_offset(*column.state, i, range.begin) : range.begin - column.first;
      if (length > rest) column.parts->push_back(column.whole.narrow(0, begin, length - rest));
      if (rest == 0) continue;
      at::Tensor original = column.whole.narrow(0, begin + length - rest, rest);
      at::Tensor padded = at::zeros({kVectorFloats}, column.whole.options());
      at::Tensor copy = padded.narrow(0, 0, rest).copy_(original);
      if (column.parts != &todo.gradients) rests.emplace_back(original, copy);  // gradients are only read
      column.parts->push_back(std::move(padded));
    }
  }
  if (open_->collects && is_updated_in_one_pass(i) && !streamed) {
    open_->collected.push_back(std::move(todo));
    return;
  }
  update(todo);
  for (auto& [original, copy] : rests) original.copy_(copy);
  for (const auto& [values, stored, state] : widened) {
    store_state(state_kinds_[state].name, i, ranges.front().begin, values, stored);
  }
}

std::vector<kernels::RoundedElements> Optimizer::rounded_elements(
    size_t i, const std::vector<FlatParameter::Range>& ranges, const std::string& state) const {
  std::vector<kernels::RoundedElements> elements;
  for (const FlatParameter::Range& range : ranges) {
    for_each_part(i, range.begin, range.end, state,
                  [&](int64_t, int64_t, const kernels::RoundedElements& part) { elements.push_back(part); });
  }
  FSDP_CHECK(elements.size() == ranges.size(), "ranges of several tensors");
  return elements;
}

}  // namespace fsdp::optim
