#include "shard/engine/wrap.h"

#include <torch/nn/module.h>

#include <exception>

#include "base/util/error.h"
#include "base/util/log.h"
#include "shard/units/unit_options.h"

namespace fsdp::shard {
namespace {

/// Thread-local, because ranks may be threads, each with a model of its own.
thread_local EnableWrap* innermost_scope = nullptr;

}  // namespace

EnableWrap::EnableWrap(const UnitOverrides& defaults) : defaults_(defaults), outer_(innermost_scope) {
  if (outer_ != nullptr) defaults_ = merged(defaults_, outer_->defaults_);
  innermost_scope = this;
}

EnableWrap::~EnableWrap() {
  innermost_scope = outer_;
  if (notes_.empty() || std::uncaught_exceptions() > 0) return;
  util::log_warning(concat("EnableWrap: expected fully_shard() before the scope ends; found none after ",
                           notes_.size(), " calls of wrap(), which have no effect; call it in the scope"));
}

void WrappedModules::note(const std::shared_ptr<torch::nn::Module>& module, const UnitOverrides& options) {
  if (innermost_scope == nullptr) return;
  auto* hookable = dynamic_cast<nn::Hookable*>(module.get());
  if (hookable == nullptr) {
    fail(ErrorKind::kUsage, "wrap(): expected a module whose calls can be hooked; found ",
         module ? "a plain " + module->name() : "a null pointer",
         "; declare the module as fsdp::nn::Hooked, or derive it from nn::Stage");
  }
  EnableWrap* outermost = innermost_scope;
  while (outermost->outer_ != nullptr) outermost = outermost->outer_;
  outermost->notes_.push_back({module, {&hookable->hooked(), merged(options, innermost_scope->defaults_)}});
}

ShardOptions WrappedModules::added_to(ShardOptions options) {
  for (const EnableWrap* scope = innermost_scope; scope != nullptr; scope = scope->outer_) {
    for (const auto& note : scope->notes_) options.wrapped.push_back(note.wrapped);
  }
  return options;
}

void WrappedModules::clear() {
  for (EnableWrap* scope = innermost_scope; scope != nullptr; scope = scope->outer_) scope->notes_.clear();
}

}  // namespace fsdp::shard
