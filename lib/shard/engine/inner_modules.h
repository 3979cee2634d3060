#pragma once

// Modules that were sharded before the module around them. The outer call takes over their units, with the
// options of each, and the shards, one unit after another.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shard/engine/engine.h"
#include "shard/engine/wrap_policy.h"

namespace fsdp::shard {

/// A function that shards modules.
struct ShardingFront {
  const char* name;       ///< name in messages: "fully_shard()"
  ShardOptions defaults;  ///< options where the caller sets none
  /// Whether the units of an inner call keep all options of that call. Otherwise they keep those that are not
  /// the defaults, and get the others from the outer call.
  bool units_keep_all_options;
};

/// The live engines, keyed by the module that was sharded. Thread-safe; each engine is used by the thread of
/// its rank only.
class ShardedModules {
 public:
  struct ShardedModule {
    const ShardingFront* front = nullptr;
    std::weak_ptr<Engine> engine;
    std::set<const void*> parameters;  ///< parameters of the module, including units inside it
    /// Called when the call for an outer module takes over; may be empty.
    std::function<void()> becomes_inner;
  };

  static ShardedModules& instance();

  void add(const nn::Hookable* module, ShardedModule entry);
  void remove(const nn::Hookable* module);
  /// Returns the entry of the module if it is sharded now and has one of the parameters: another module,
  /// which is gone, may have had the same address.
  std::optional<ShardedModule> find(const nn::Hookable* module, const std::vector<at::Tensor>& parameters);
  /// Whether a sharded module other than these has the parameter.
  bool others_have(const std::set<const nn::Hookable*>& modules, const void* parameter);

 private:
  std::mutex mutex_;
  std::map<const nn::Hookable*, ShardedModule> entries_;
};

/// How an inner call cut a parameter.
struct InnerCut {
  std::optional<int64_t> dimension{};                     ///< nullopt: the parameter stays whole
  util::Named<Strategy> strategy = Strategy::kFullShard;  ///< strategy of its unit
};

/// The modules inside a module that were sharded before, whose units and shards the call for the module takes
/// over.
class InnerModules {
 public:
  /// Throws Error(kUsage) if the root is sharded already, if an inner module was sharded by another front,
  /// and if a parameter is sharded with a module that is not inside the root. `front` must outlive all
  /// engines.
  InnerModules(torch::nn::Module& root, const ShardingFront& front);

  bool empty() const { return modules_.empty(); }
  const ModelTree& tree() const { return tree_; }
  /// The path of the first inner module.
  const std::string& first() const { return modules_.front().path; }
  /// Cuts of their parameters, keyed by TensorImpl.
  const std::map<const void*, InnerCut>& cuts() const { return cuts_; }

  /// Adds the inner units with their options (ShardOptions::wrapped), and the inner calls' options for single
  /// parameters, to the options of the outer call. Throws Error(kUsage) for an option of a whole engine that
  /// was set for an inner module only, and for another mesh.
  void add_to(ShardOptions& outer, const comm::Mesh& mesh);

  /// Shards the root by options that have been checked. Ends the inner engines and cuts their shards anew,
  /// one unit after another. An exception leaves the model unusable if there are inner modules. Collective.
  std::shared_ptr<Engine> shard(const ShardOptions& options, const comm::Mesh& mesh,
                                std::shared_ptr<comm::Trace> trace, const Materialize& materialize,
                                std::function<void()> becomes_inner = {});

 private:
  struct Module {
    std::string path;
    nn::Hookable* module = nullptr;
    ShardedModules::ShardedModule entry;
    std::shared_ptr<Engine> engine;
  };

  void require_parameters_inside() const;
  void require_options_of(const Module& inner, const ShardOptions& outer, const comm::Mesh& mesh) const;
  void take_options(const Module& inner, ShardOptions& outer);

  torch::nn::Module& root_;
  const ShardingFront& front_;
  ModelTree tree_;
  std::vector<Module> modules_;
  std::map<const void*, InnerCut> cuts_;
};

}  // namespace fsdp::shard
