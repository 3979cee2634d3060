#include "shard/state/full_parameters.h"

#include <ATen/core/grad_mode.h>

#include <exception>

#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "shard/engine/layout_views.h"
#include "shard/units/unit_choice.h"

namespace fsdp::shard {
namespace {

void check_options(const Engine& engine, const FullParametersOptions& options) {
  if (options.writeback && options.rank0_only) {
    fail(ErrorKind::kUsage,
         "FullParameters: expected writeback or rank0_only; found both; only rank 0 would have the values "
         "that the other ranks must write to their shards, so leave rank0_only off to change parameters");
  }
  std::vector<std::string> names;
  for (const auto& unit : engine.units()) names.push_back(unit->name());
  check_unit_patterns("FullParametersOptions::units", options.units, names);
}

/// The whole unit, in memory other than the shard's.
at::Tensor gather_copy(Unit& unit, bool to_host) {
  at::Tensor whole = unit.gather_weights();
  if (to_host) whole = whole.to(at::kCPU);
  return whole.is_alias_of(unit.storage().shard()) ? whole.clone() : whole;
}

}  // namespace

FullParameters::FullParameters(Engine& engine, FullParametersOptions options)
    : engine_(engine), options_(std::move(options)), exceptions_(std::uncaught_exceptions()) {
  engine.require_rest("FullParameters");
  engine.reshard_frozen();
  check_options(engine, options_);
  at::NoGradGuard no_grad;
  bool keeps = !options_.rank0_only || engine.communicator().rank() == 0;
  for (const auto& unit : engine.units()) {
    if (!options_.units.empty() && !util::matches_any(unit->name(), options_.units)) continue;
    if (!keeps) {
      unit->gather_weights();
      continue;
    }
    ShownUnit shown{unit.get(), gather_copy(*unit, options_.to_host), {}};
    for (const NamedParameter& parameter : unit->storage().parameters()) {
      shown.at_rest.push_back(parameter.tensor.variable_data());
    }
    shown_.push_back(std::move(shown));
  }
  // After all gathers, so that one that fails leaves the parameters as they were.
  for (const ShownUnit& shown : shown_) shown.unit->storage().show_parameters_in(shown.whole);
  engine_.shows_full_parameters_ = is_open_ = true;
}

FullParameters::~FullParameters() {
  if (std::uncaught_exceptions() > exceptions_) options_.writeback = false;
  try {
    close();
  } catch (const std::exception& error) {
    util::log_error(error.what());
  }
}

void FullParameters::close() {
  if (!is_open_) return;
  at::NoGradGuard no_grad;
  std::vector<std::string> unfit;
  if (options_.writeback) {
    for (const ShownUnit& shown : shown_) {
      for (std::string& name : take_in_replaced_data(shown)) unfit.push_back(std::move(name));
    }
  }
  for (const ShownUnit& shown : shown_) {
    UnitStorage& storage = shown.unit->storage();
    if (options_.writeback && unfit.empty()) storage.take_shard_of(shown.whole);
    for (size_t i = 0; i < shown.at_rest.size(); ++i) {
      at::Tensor parameter = storage.parameters()[i].tensor;
      parameter.set_data(shown.at_rest[i]);
    }
  }
  if (options_.writeback) engine_.note_changed_weights();
  shown_.clear();
  engine_.shows_full_parameters_ = is_open_ = false;
  if (unfit.empty()) return;
  fail(ErrorKind::kUsage,
       "FullParameters: expected parameters with the shapes of the model and a floating type; found ",
       util::join(unfit, ", "), "; nothing was written back; change parameters in place");
}

/// Copies data that the user put in place of a parameter's to its place in the whole unit. Returns what does
/// not fit.
std::vector<std::string> FullParameters::take_in_replaced_data(const ShownUnit& shown) {
  const UnitStorage& storage = shown.unit->storage();
  std::vector<std::string> unfit;
  for (size_t i = 0; i < storage.parameters().size(); ++i) {
    const at::Tensor& now = storage.parameters()[i].tensor;
    at::Tensor expected = whole_view(storage.layout(), i, shown.whole);
    if (now.sizes() != expected.sizes() || !now.is_floating_point()) {
      unfit.push_back(concat(storage.parameters()[i].name, " as ", c10::toString(now.scalar_type()),
                             " of shape ", now.sizes()));
    } else if (now.data_ptr() != expected.data_ptr() || now.scalar_type() != expected.scalar_type() ||
               now.strides() != expected.strides()) {
      expected.copy_(now);
    }
  }
  return unfit;
}

int64_t FullParameters::bytes() const {
  int64_t bytes = 0;
  for (const ShownUnit& shown : shown_) bytes += static_cast<int64_t>(shown.whole.nbytes());
  return bytes;
}

}  // namespace fsdp::shard
