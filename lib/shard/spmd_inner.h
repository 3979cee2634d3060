#pragma once

// Modules that spmd_fully_shard() has sharded, and what an outer call takes over from those inside its module.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shard/engine.h"
#include "shard/spmd_hook.h"
#include "shard/wrap_policy.h"

namespace fsdp::shard {

/// The live engines made by spmd_fully_shard(), by the module that was sharded. Thread-safe; each engine is
/// used by the thread of its rank only.
class SpmdRoots {
 public:
  struct Root {
    std::weak_ptr<Engine> engine;
    std::weak_ptr<SpmdHook> hook;
    std::set<const void*> parameters;
  };

  static SpmdRoots& instance();

  void add(const nn::Hookable* module, Root root);
  void remove(const nn::Hookable* module);
  /// Null unless the module is sharded now.
  std::shared_ptr<Engine> engine_of(const nn::Hookable* module);
  std::shared_ptr<SpmdHook> hook_of(const nn::Hookable* module);
  /// Whether a sharded module other than these has the parameter.
  bool another_has(const std::set<const nn::Hookable*>& modules, const void* parameter);

 private:
  std::mutex mutex_;
  std::map<const nn::Hookable*, Root> roots_;
};

/// A module inside the one to be sharded that was sharded before.
struct InnerModule {
  std::string path;
  nn::Hookable* module = nullptr;
  std::shared_ptr<Engine> engine;
};

/// Throws Error(kUsage) if a parameter is sharded by a wrapper that is not in the tree.
std::vector<InnerModule> find_inner_modules(const ModelTree& tree);

/// Throws Error(kUsage) for an option of a whole engine that was set for an inner module only.
void require_options_of(const InnerModule& inner, const ShardOptions& outer);

/// How an inner call cut a parameter.
struct InnerCut {
  std::optional<int64_t> dimension{};                     ///< nullopt: it stays whole
  util::Named<Strategy> strategy = Strategy::kFullShard;  ///< of its unit
};
using InnerCuts = std::map<const void*, InnerCut>;

/// Adds the units of the inner engine to those of the outer one, with the options of units that it was given
/// (ShardOptions::wrapped), and what it was told of single parameters.
void take_options(const InnerModule& inner, ShardOptions& outer, InnerCuts& cuts);

}  // namespace fsdp::shard
