#pragma once

// The interface of plug-ins: shared libraries that add models, losses, optimizers, learning-rate schedules
// and data sets to the programs, and a section of keys to their configuration:
//
//   FSDP_PLUGIN(mine, [](fsdp::plugin::Registrar& registrar) { registrar.add_loss("hinge", hinge_loss); })
//
// Programs load those of run.plugins and --plugin (setup/plugin/load.h), as fairseq does with --user-dir (Ott
// et al.: fairseq: A fast, extensible toolkit for sequence modeling, 2019).

#include <torch/headeronly/version.h>

#include <string>
#include <vector>

#include "base/util/plugin_values.h"
#include "data/options/datasets.h"
#include "model/nn/decoder.h"
#include "model/nn/loss.h"
#include "model/nn/preferences.h"
#include "setup/config/keys.h"
#include "setup/config/value.h"
#include "state/groups/learning_rate.h"
#include "state/optim/optimizer.h"

namespace fsdp::plugin {

/// Registers what a plug-in adds; passed to the plug-in's function. Names are those that a config uses; a
/// name that is taken throws Error(kUsage). The values of the plug-in's keys are in the options of each
/// thing: options.plugin_values.get<double>("mine.width_factor").
class Registrar {
 public:
  explicit Registrar(std::string plugin);

  /// A key of the plug-in's section, with its default, one line for --help, and the values that it accepts.
  void add_key(const std::string& name, util::PluginValue initial, std::string description,
               config::Constraint constraint = {});

  /// Adds a value of model.architecture. `keys`: names of the keys (of the plug-in, or "model.rope_theta")
  /// that the weights determine. Checkpoints record their values, and a run that starts from such weights
  /// adopts them.
  void add_model(const std::string& name, nn::ModelKind kind, const std::vector<std::string>& keys = {});

  /// Adds a value of training.loss.
  void add_loss(const std::string& name, nn::LossFunction loss);

  /// Adds a value of training.objective, whose loss is a function of the scores of answers
  /// (model/nn/preferences.h). It reads the keys of [preference] and the plug-in's.
  void add_objective(const std::string& name, const nn::Objective& objective);

  /// Adds a value of optimizer.name. `make` returns a class derived from Optimizer, with the states that
  /// `traits` declares.
  void add_optimizer(const std::string& name, const optim::OptimizerTraits& traits,
                     optim::OptimizerFactory make);

  /// Adds a value of lr_scheduler.name.
  void add_schedule(const std::string& name, optim::ScheduleShape shape);

  /// Adds a value of data.dataset.
  void add_dataset(const std::string& name, data::OpenSamples open);

  /// Adds the keys to the config's. Called by the loader after the plug-in's function.
  void finish();

 private:
  std::string plugin_;
  std::vector<config::Key> keys_;
};

/// Describes a plug-in. Its texts are data of the library's file, so that they can be compared before any of
/// its code runs.
struct Description {
  char marker[24];      ///< FSDP_PLUGIN_MARKER
  char built_for[168];  ///< FSDP_PLUGIN_BUILT_FOR of its build
  const char* name;
  void (*add_to)(Registrar&);
};

}  // namespace fsdp::plugin

extern "C" [[gnu::visibility("default")]] const fsdp::plugin::Description fsdp_plugin_description;

#define FSDP_PLUGIN_MARKER \
  "\x01"                   \
  "fsdp plug-in, form 1"   \
  "\x02"
#define FSDP_PLUGIN_TEXT_OF(number) #number
#define FSDP_PLUGIN_TEXT(number) FSDP_PLUGIN_TEXT_OF(number)

/// Properties that a plug-in and a program must share: the versions of this library and libtorch, and the
/// layout of C++ objects. fsdp_add_plugin() of the CMake package defines FSDP_VERSION.
#define FSDP_PLUGIN_BUILT_FOR                                                     \
  "fsdp " FSDP_VERSION ", libtorch " TORCH_VERSION ", C++ ABI " FSDP_PLUGIN_TEXT( \
      __GXX_ABI_VERSION) ", libstdc++ ABI " FSDP_PLUGIN_TEXT(_GLIBCXX_USE_CXX11_ABI)

/// Makes a shared library a plug-in; used once in it, outside of all namespaces. `name_of_plugin` is the name
/// of its section of keys: lower-case letters, digits and underscores. The second argument is a function that
/// takes a Registrar&; it is called once, when the plug-in is loaded, on the main thread.
#define FSDP_PLUGIN(name_of_plugin, ...)                          \
  const ::fsdp::plugin::Description fsdp_plugin_description = {   \
      FSDP_PLUGIN_MARKER, FSDP_PLUGIN_BUILT_FOR, #name_of_plugin, \
      [](::fsdp::plugin::Registrar& registrar) { (__VA_ARGS__)(registrar); }};
