#include "setup/config/load.h"

#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "setup/config/loader.h"

namespace fsdp::config {
namespace {

TracedConfig load(Source source, const std::vector<std::string>& overrides,
                  Completeness completeness = Completeness::kMayLackTheModel) {
  Loader loader(std::move(source), completeness);
  loader.load_plugins(overrides);
  loader.read_files();
  loader.read_overrides(overrides);
  Config config = loader.finish();
  return {config, loader.origins(), loader.take_warnings()};
}

Config with_warnings_logged(const TracedConfig& traced) {
  for (const std::string& warning : traced.warnings) util::log_warning(warning);
  return traced.config;
}

PluginLoader& plugin_loader() {
  static PluginLoader loader;
  return loader;
}

}  // namespace

void set_plugin_loader(PluginLoader loader) { plugin_loader() = std::move(loader); }

std::vector<std::string> load_plugins(const std::vector<std::string>& named, PluginsNamedBy by) {
  if (plugin_loader()) return plugin_loader()(named, by);
  if (named.empty()) return {};
  fail(ErrorKind::kUsage, "run.plugins must be empty, because this program loads no plug-ins, but is ",
       util::join(named, ", "), "; leave it out");
}

Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  return with_warnings_logged(trace_config(file, overrides));
}

TracedConfig trace_config(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  return load(Source::from_file(file), overrides);
}

Config load_resolved_config(const std::filesystem::path& file) {
  return load(Source::from_file(file), {}, Completeness::kIsWhole).config;
}

Config parse_config(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides) {
  return with_warnings_logged(load(Source::from_text(name, text), overrides));
}

}  // namespace fsdp::config
