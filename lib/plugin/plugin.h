#pragma once

// What a plug-in is made of. A plug-in is a shared library that adds models, losses, optimizers, learning-rate
// schedules and data sets to the programs, and a section of keys to their configuration:
//
//   FSDP_PLUGIN(mine, [](fsdp::plugin::Registrar& registrar) { registrar.add_loss("hinge", hinge_loss); })
//
// Programs load those of run.plugins and --plugin (plugin/load.h), as fairseq does with --user-dir (Ott et al.:
// fairseq: A fast, extensible toolkit for sequence modeling, 2019).

#include <torch/headeronly/version.h>

#include <cstdint>
#include <string>
#include <vector>

#include "config/keys.h"
#include "config/value.h"
#include "data/datasets.h"
#include "nn/decoder.h"
#include "nn/loss.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "util/plugin_values.h"

namespace fsdp::plugin {

/// What the function of a plug-in adds its things with. All names are those that the config gives: of a name
/// that is taken Error(kUsage) is thrown. Values of the plug-in's keys come with the options that each thing is
/// made of: options.plugin_values.get<double>("mine.width_factor").
class Registrar {
 public:
  explicit Registrar(std::string plugin);

  /// A key of the section that is named after the plug-in, with its default, one line that --help shows, and
  /// what it accepts.
  void add_key(const std::string& name, util::PluginValue initial, std::string description,
               config::Constraint constraint = {});

  /// For model.architecture. `keys`: names of those keys (of the plug-in, or "model.rope_theta") that the
  /// weights determine. Checkpoints keep them, and a run that begins with such weights takes them.
  void add_model(const std::string& name, nn::ModelKind kind, const std::vector<std::string>& keys = {});

  /// For training.loss.
  void add_loss(const std::string& name, nn::LossFunction loss);

  /// For optimizer.name. What `make` returns derives from Optimizer, over the states of `traits`.
  void add_optimizer(const std::string& name, const optim::OptimizerTraits& traits,
                     optim::OptimizerFactory make);

  /// For lr_scheduler.name.
  void add_schedule(const std::string& name, optim::ScheduleShape shape);

  /// For data.dataset.
  void add_dataset(const std::string& name, data::OpenSamples open);

  /// Adds the keys to those of the config. For the loader, when the plug-in's function has returned.
  void finish();

 private:
  std::string plugin_;
  std::vector<config::Key> keys_;
};

/// Its texts stand in the plug-in's file, so that they can be compared before any code of it runs.
struct Description {
  char marker[24];      ///< FSDP_PLUGIN_MARKER
  char built_for[168];  ///< FSDP_PLUGIN_BUILT_FOR of the headers that it was compiled with
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

/// What must be the same for a plug-in and a program: versions of this library and libtorch, and the layout of
/// C++ objects. fsdp_add_plugin() of the CMake package defines FSDP_VERSION.
#define FSDP_PLUGIN_BUILT_FOR                                                     \
  "fsdp " FSDP_VERSION ", libtorch " TORCH_VERSION ", C++ ABI " FSDP_PLUGIN_TEXT( \
      __GXX_ABI_VERSION) ", libstdc++ ABI " FSDP_PLUGIN_TEXT(_GLIBCXX_USE_CXX11_ABI)

/// Makes a plug-in of a shared library: once in it, outside of all namespaces. `name_of_plugin` is the name of its
/// section of keys: small letters, digits and underscores. Behind it follows a function that takes a
/// Registrar&; it is called once, when the plug-in is loaded, on the main thread.
#define FSDP_PLUGIN(name_of_plugin, ...)                          \
  const ::fsdp::plugin::Description fsdp_plugin_description = {   \
      FSDP_PLUGIN_MARKER, FSDP_PLUGIN_BUILT_FOR, #name_of_plugin, \
      [](::fsdp::plugin::Registrar& registrar) { (__VA_ARGS__)(registrar); }};
