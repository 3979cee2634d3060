#include "shard/step_formula.h"

#include <algorithm>
#include <vector>

#include "util/error.h"

namespace fsdp::shard {
namespace {

/// A unit as the formula sees it.
struct Item {
  const UnitSizes* unit = nullptr;
  int64_t parameters = 0;      ///< bytes of the unsharded buffer; 0 where the shard is the whole unit
  int64_t communication = 0;   ///< bytes that exist beside it while it is gathered
  int64_t gradients = 0;       ///< bytes of the gradient buffer; 0 where it is not one of the pool's
  bool stays = false;          ///< gathered from its forward to its backward
  bool held = false;           ///< with its gradient, to the end of backward
  std::vector<size_t> around;  ///< the units around it, outermost first, without the root

  int64_t both() const { return parameters + gradients; }
};

bool lies_in(const UnitSizes& inner, const UnitSizes& outer) {
  return inner.name.starts_with(outer.name + ".");
}

bool has(const std::vector<size_t>& list, size_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

class Schedule {
 public:
  Schedule(const std::vector<UnitSizes>& units, const ShardOptions& options) : options_(options) {
    for (const UnitSizes& unit : units) {
      Item item;
      item.unit = &unit;
      item.parameters = unit.unsharded_bytes();
      item.communication = unit.communication_bytes();
      if (unit.is_cut()) item.gradients = unit.gradient_bytes();
      item.stays = !unit.reshard_after_forward;
      (unit.is_root ? roots_ : items_).push_back(item);
    }
    for (size_t i = 0; i < items_.size(); ++i) {
      items_[i].held = !items_[i].unit->input_is_differentiable;
      if (i == 0) continue;
      for (size_t outer : items_[i - 1].around) {
        if (lies_in(*items_[i].unit, *items_[outer].unit)) items_[i].around.push_back(outer);
      }
      if (lies_in(*items_[i].unit, *items_[i - 1].unit)) items_[i].around.push_back(i - 1);
    }
    order_ends();
    if (!options_.reshard_last_after_forward) keep_last();
  }

  const std::vector<Item>& roots() const { return roots_; }
  const std::vector<Item>& items() const { return items_; }

  int64_t all_gradients() const {
    int64_t bytes = 0;
    for (const auto* list : {&roots_, &items_}) {
      for (const Item& item : *list) bytes += item.gradients;
    }
    return bytes;
  }

  /// The most that is live in forward.
  int64_t forward_peak() const {
    int64_t roots = 0, most = 0;
    for (const Item& root : roots_) {
      roots += root.parameters;
      most = std::max(most, root.communication);
    }
    for (size_t i = 0; i < items_.size(); ++i) {
      size_t ahead = options_.forward_prefetch == "none" ? 0 : options_.limit_all_gathers ? 1 : items_.size();
      int64_t live = items_[i].parameters, coming = 0;
      for (size_t j = 0; j < items_.size(); ++j) {
        if (j < i && (items_[j].stays || has(items_[i].around, j))) live += items_[j].parameters;
        if (j > i && j - i <= ahead) coming += items_[j].parameters + items_[j].communication;
      }
      most = std::max(most, live + std::max(items_[i].communication, coming));
    }
    return roots + most;
  }

  /// The most that is live in backward; of parameters only, where gradients are counted apart.
  int64_t backward_peak(bool with_gradients) const {
    Backward pass{.gradients = with_gradients};
    for (const Item& root : roots_) pass.roots += size(root, pass);
    std::vector<size_t> order(ended_.rbegin(), ended_.rend());
    int64_t most = pass.roots + staying_after(0, order) + (order.empty() ? 0 : prefetched(order[0]));
    for (size_t place = 0; place < order.size(); ++place) {
      if (place > 0) end_before(order[place], order[place - 1], pass);
      most = std::max(most, live_in_backward(place, order, pass));
      if (items_[order[place]].held) pass.held += size(items_[order[place]], pass);
    }
    if (!order.empty()) {
      const Item& last = items_[order.back()];
      size_t outermost = last.around.empty() ? order.back() : last.around.front();
      if (!items_[outermost].held) pass.reducing = items_[outermost].gradients;
    }
    return std::max(most, pass.roots + pass.held + (with_gradients ? pass.reducing : 0));
  }

 private:
  /// What a walk through backward carries along.
  struct Backward {
    bool gradients = true;
    int64_t roots = 0;     ///< bytes of the root units
    int64_t held = 0;      ///< of units that wait for the end of the pass
    int64_t reducing = 0;  ///< of the input of the reduction that may be under way
    bool reduced_is_previous = false;
  };

  static int64_t size(const Item& item, const Backward& pass) {
    return pass.gradients ? item.both() : item.parameters;
  }

  /// Units end in post-order: what is inside first.
  void order_ends() {
    std::vector<size_t> open;
    for (size_t i = 0; i < items_.size(); ++i) {
      while (open.size() > items_[i].around.size()) {
        ended_.push_back(open.back());
        open.pop_back();
      }
      open.push_back(i);
    }
    ended_.insert(ended_.end(), open.rbegin(), open.rend());
  }

  /// After the last unit has begun, each unit that ends takes the place of the one that ended before as the
  /// one that is left gathered.
  void keep_last() {
    if (items_.empty()) return;
    std::vector<size_t> ends = items_.back().around;
    ends.push_back(items_.size() - 1);
    auto resharding =
        std::find_if(ends.begin(), ends.end(), [&](size_t unit) { return !items_[unit].stays; });
    if (resharding != ends.end()) items_[*resharding].stays = true;
  }

  int64_t staying_after(size_t place, const std::vector<size_t>& order) const {
    int64_t bytes = 0;
    for (size_t later = place; later < order.size(); ++later) {
      if (items_[order[later]].stays) bytes += items_[order[later]].parameters;
    }
    return bytes;
  }

  /// Bytes of the next unit that may be gathered while the one before it is in use.
  int64_t prefetched(size_t next) const {
    bool ahead = options_.backward_prefetch == "pre";
    return ahead && !items_[next].stays ? items_[next].parameters + items_[next].communication : 0;
  }

  /// `previous` and what is around it, but not around `next`, have ended.
  void end_before(size_t next, size_t previous, Backward& pass) const {
    if (has(items_[next].around, previous)) {
      pass.reduced_is_previous = false;
      return;
    }
    auto end = [&](size_t unit) {
      if (items_[unit].held || items_[unit].gradients == 0) return;
      pass.reducing = items_[unit].gradients;
      pass.reduced_is_previous = unit == previous;
    };
    pass.reduced_is_previous = false;
    end(previous);
    const auto& around = items_[previous].around;
    for (auto outer = around.rbegin(); outer != around.rend(); ++outer) {
      if (!has(items_[next].around, *outer)) end(*outer);
    }
  }

  int64_t live_in_backward(size_t place, const std::vector<size_t>& order, const Backward& pass) const {
    const Item& item = items_[order[place]];
    int64_t live = pass.roots + pass.held + size(item, pass) + staying_after(place + 1, order);
    for (size_t outer : item.around) {
      if (!items_[outer].held) live += size(items_[outer], pass);
    }
    // The last that ends within a unit lets the next one come while the unit around it is still there.
    bool post = options_.backward_prefetch == "post";
    int64_t gather = 0;
    bool behind = true;
    if (place + 1 < order.size()) {
      const Item& next = items_[order[place + 1]];
      gather = post && !item.around.empty() && !next.stays ? next.parameters + next.communication
                                                           : prefetched(order[place + 1]);
      behind = next.unit->is_cut();
    }
    // While a unit that is not gathered ahead is being gathered, its gradient is not there yet.
    const int64_t own_gradient = pass.gradients ? item.gradients : 0;
    const int64_t before = item.stays ? 0 : live - own_gradient + item.communication;
    if (!pass.gradients) return std::max(before, live + gather);
    // What had to be gathered behind the reduction is there only when that has given its memory back.
    bool waited = !item.stays && item.unit->is_cut() &&
                  (options_.backward_prefetch == "none" || (post && pass.reduced_is_previous));
    int64_t reducing = waited ? 0 : pass.reducing;
    return std::max(before + reducing, live + (behind ? std::max(reducing, gather) : reducing + gather));
  }

  const ShardOptions& options_;
  std::vector<Item> roots_, items_;
  std::vector<size_t> ended_;  ///< in which order forwards end
};

void add_gathers(const std::vector<Item>& items, int64_t times, StepFormula& formula) {
  for (const Item& item : items) {
    if (!item.unit->is_cut()) continue;
    int64_t bytes = item.unit->gather_payload_bytes();
    formula.forward_all_gathers += times;
    formula.forward_all_gather_bytes += times * bytes;
    if (item.stays) continue;
    formula.backward_all_gathers += times;
    formula.backward_all_gather_bytes += times * bytes;
  }
}

void add_reductions(const UnitSizes& unit, int64_t times, Traffic& traffic) {
  if (!unit.has_trainable_parameters) return;
  const int64_t bytes = unit.reduce_payload_bytes();
  if (unit.is_cut()) traffic += {.reduce_scatters = times, .reduce_scatter_bytes = times * bytes};
  if (unit.groups.replicas > 1) traffic += {.all_reduces = times, .all_reduce_bytes = times * bytes};
}

}  // namespace

StepFormula step_formula(const std::vector<UnitSizes>& units, const ShardOptions& options,
                         const StepFormulaOptions& step) {
  FSDP_CHECK(step.micro_batches >= 1);
  Schedule schedule(units, options);
  StepFormula formula;
  add_gathers(schedule.roots(), step.micro_batches, formula);
  add_gathers(schedule.items(), step.micro_batches, formula);
  formula.traffic.all_gathers = formula.forward_all_gathers + formula.backward_all_gathers;
  formula.traffic.all_gather_bytes = formula.forward_all_gather_bytes + formula.backward_all_gather_bytes;
  int64_t parameters = 0, shard = 0, gradients = 0;
  for (const UnitSizes& unit : units) {
    add_reductions(unit, step.no_sync ? 1 : step.micro_batches, formula.traffic);
    parameters = std::max(parameters, unit.unsharded_numel * unit.param_element());
    shard = std::max(shard, unit.gather_payload_bytes());
    gradients = std::max(gradients, unit.gradient_bytes());
    formula.shard_bytes += unit.shard_bytes();
  }
  formula.separate_buffers_bytes = 2 * (parameters + shard + gradients);

  if (!step.with_peak) return formula;
  bool accumulates_whole = step.no_sync && step.micro_batches > 1;
  formula.unsharded_bytes =
      std::max(schedule.forward_peak(), schedule.backward_peak(/*with_gradients=*/!accumulates_whole));
  if (accumulates_whole) formula.unsharded_bytes += schedule.all_gradients();
  return formula;
}

}  // namespace fsdp::shard
