#pragma once

// enable_wrap and wrap() of FairScale and PyTorch (torch.distributed.fsdp.wrap): modules that are units, with
// options of their own, marked where the model is built.
//
//   EnableWrap scope({.reshard_after_forward = false});                 // for all modules wrapped in it
//   auto first = wrap(Hooked<BlockImpl>(64), {.cpu_offload = true});
//   ...
//   auto engine = fully_shard(*model, options, mesh);                   // in the scope
//
// In PyTorch the call replaces a module by a sharded one. Here it makes a note, and the next fully_shard() in
// the scope makes the module a unit, regardless of its policy. So wrapping adds no prefix to names. For each
// option the call decides first, then the scope, then the options of fully_shard(). Scopes may be nested; the
// inner one decides first. Nothing is collective. A scope is for the thread that opens it.

#include <memory>
#include <vector>

#include "model/nn/hookable.h"
#include "shard/units/options.h"

namespace fsdp::shard {

/// The scope in which wrap() has an effect.
class EnableWrap {
 public:
  /// `defaults`: options of every module that is wrapped in the scope.
  explicit EnableWrap(const UnitOverrides& defaults = {});
  /// Warns of modules that were wrapped and not sharded.
  ~EnableWrap();
  EnableWrap(const EnableWrap&) = delete;
  EnableWrap& operator=(const EnableWrap&) = delete;

 private:
  friend class WrappedModules;

  struct Note {
    std::shared_ptr<torch::nn::Module> module;  ///< kept alive, so that no other module gets its address
    WrappedModule wrapped;
  };

  UnitOverrides defaults_;
  EnableWrap* outer_;
  std::vector<Note> notes_;  ///< kept in the outermost scope, for all scopes inside it
};

/// The modules that the scopes of this thread have noted.
class WrappedModules {
 public:
  /// Notes a module; no effect outside of a scope. Throws Error(kUsage) for a module whose calls no hook can
  /// see.
  static void note(const std::shared_ptr<torch::nn::Module>& module, const UnitOverrides& options);
  /// Returns `options` with the modules that are noted.
  static ShardOptions added_to(ShardOptions options);
  /// Called when the noted modules have become units.
  static void clear();
};

/// Makes `module` (a holder or a shared_ptr), within a scope of EnableWrap, a unit of the next fully_shard(),
/// which throws Error(kUsage) if it does not find the module in its model, or finds it twice, and for options
/// that exclude each other. Returns `module`, and has no other effect outside of a scope.
template <typename M>
M wrap(M module, const UnitOverrides& options = {}) {
  if constexpr (requires { module.ptr(); }) {
    WrappedModules::note(module.ptr(), options);
  } else {
    WrappedModules::note(module, options);
  }
  return module;
}

}  // namespace fsdp::shard
