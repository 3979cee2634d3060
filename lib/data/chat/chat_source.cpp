#include "data/chat/chat_source.h"

#include <array>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/objects/local_copy.h"
#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/file.h"
#include "base/util/json.h"
#include "base/util/text.h"
#include "data/tokenizers/gguf_tokenizer.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

struct Preset {
  const char* name;
  const char* text;
};

constexpr std::array<Preset, 2> kPresets = {{
    {"chatml",
     "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
     "{% if message.role == 'assistant' %}{% generation %}{{ message.content ~ '<|im_end|>' }}{% endgeneration %}"
     "{% else %}{{ message.content ~ '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"llama3",
     "{{ bos_token if bos_token is defined else '<|begin_of_text|>' }}{% for message in messages %}"
     "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}"
     "{% if message.role == 'assistant' %}{% generation %}{{ message.content | trim + '<|eot_id|>' }}"
     "{% endgeneration %}{% else %}{{ message.content | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"},
}};

constexpr uintmax_t kMostBytes =
    64 << 20;  ///< limit on a tokenizer_config.json; those of large vocabularies have 10 MB
constexpr uintmax_t kMostTemplateBytes = 1 << 20;

std::string read(const fs::path& path, uintmax_t most) {
  std::error_code error;
  if (const uintmax_t bytes = fs::file_size(path, error); !error && bytes > most) {
    fail(ErrorKind::kData, path.string(), " has ", bytes, " bytes, but a file with a chat template may have ",
         most, "; check what kind of file it is");
  }
  try {
    return util::read_file(path);
  } catch (const std::exception& reason) {
    fail(ErrorKind::kData, "the chat template ", path.string(), " cannot be read (", reason.what(),
         "); give the path of a readable file");
  }
}

OrderedJson parsed(const std::string& text, const std::string& name, ErrorKind kind) {
  try {
    // Enforces the limits, unlike the parser below.
    util::parse_json(text, {.deepest_level = 64, .unique_keys = false});
  } catch (const util::JsonError& error) {
    fail(kind, name, " ", error.what(), "; correct it");
  }
  OrderedJson json = parse_chat_json(text);
  if (!json.is_object())
    fail(kind, name, " must be a JSON object, but is a ", json.type_name(), "; correct it");
  return json;
}

std::string bounded(std::string text, const std::string& name) {
  if (text.size() <= kMostTemplateBytes) return text;
  fail(ErrorKind::kData, "the chat template ", name, " has ", text.size(), " bytes, more than ",
       kMostTemplateBytes, "; use a shorter one");
}

/// Returns the template of a tokenizer_config.json; nothing if it has none.
std::optional<std::string> template_of(const OrderedJson& config, const std::string& path) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  std::vector<std::string> names;
  if (found->is_array()) {
    for (const OrderedJson& each : *found) {
      if (!each.is_object() || !each.contains("name") || !each["name"].is_string()) continue;
      const auto name = each["name"].get<std::string>();
      if (name == "default" && each.contains("template") && each["template"].is_string()) {
        return each["template"].get<std::string>();
      }
      names.push_back(name);
    }
  }
  fail(ErrorKind::kData, "chat_template of ", path,
       " must be a text or a list with a template \"default\", but ",
       names.empty() ? concat("is a ", found->type_name()) : "has only " + util::join(names, ", "),
       "; write one of them to a file and give it as `chat_template`");
}

/// Returns the folder of a tokenizer's files; nothing for "bytes".
std::optional<fs::path> folder_of(const std::string& tokenizer) {
  std::error_code error;
  const fs::path path = objects::local_copy(tokenizer);
  if (fs::is_directory(path, error)) return path;
  if (!fs::exists(path, error)) return std::nullopt;
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// Reads the variables bos_token, eos_token and the like.
void add_special_tokens(const OrderedJson& config, OrderedJson& variables) {
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    if (value.is_string()) variables[key] = value;
    if (value.is_object() && value.contains("content") && value["content"].is_string()) {
      variables[key] = value["content"];
    }
  }
}

/// Finds the template in a folder.
void take_from_folder(const fs::path& folder, ChatTemplateSource& source) {
  std::error_code error;
  const fs::path alone = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  if (fs::exists(alone, error)) {
    source.name = alone.string();
    source.text = read(alone, kMostTemplateBytes);
    return;
  }
  std::optional<std::string> text;
  if (fs::exists(config, error)) {
    text = template_of(parsed(read(config, kMostBytes), config.string(), ErrorKind::kData), config.string());
  }
  if (!text) {
    fail(ErrorKind::kUsage, "the folder ", folder.string(),
         " has no chat template: expected chat_template.jinja, or ",
         "chat_template in tokenizer_config.json; give one by `chat_template`: a file, or ",
         util::join(chat_template_presets(), ", "));
  }
  source.name = config.string();
  source.text = *text;
}

ChatTemplateSource find_in_files(const std::string& given, const std::string& tokenizer,
                                 const std::string& variables) {
  const std::string name = objects::local_copy(given).string();
  ChatTemplateSource source;
  std::error_code error;
  const std::optional<fs::path> folder = folder_of(tokenizer);
  if (folder && fs::exists(*folder / "tokenizer_config.json", error)) {
    const fs::path config = *folder / "tokenizer_config.json";
    add_special_tokens(parsed(read(config, kMostBytes), config.string(), ErrorKind::kData), source.variables);
  }
  if (!variables.empty()) {
    source.variables.update(parsed(variables, "`chat_variables`", ErrorKind::kUsage));
  }
  for (const Preset& preset : kPresets) {
    if (name != preset.name) continue;
    source.name = name;
    source.text = preset.text;
    return source;
  }
  if (name.empty()) {
    if (!folder) {
      fail(ErrorKind::kUsage, "the tokenizer ", tokenizer,
           " has no chat template; give one by `chat_template`: a ", "file, or ",
           util::join(chat_template_presets(), ", "));
    }
    take_from_folder(*folder, source);
  } else if (fs::is_directory(name, error)) {
    take_from_folder(name, source);
  } else if (!fs::exists(name, error)) {
    fail(ErrorKind::kUsage, "unknown chat template \"", name,
         "\", which is not a file either; expected a file, a ", "folder or one of ",
         util::join(chat_template_presets(), ", "));
  } else if (util::extension_of(name) == ".json") {
    const std::optional<std::string> text =
        template_of(parsed(read(name, kMostBytes), name, ErrorKind::kData), name);
    if (!text) fail(ErrorKind::kData, name, " has no chat_template; give a file that has one");
    source.name = name;
    source.text = *text;
  } else {
    source.name = name;
    source.text = read(name, kMostTemplateBytes);
  }
  source.text = bounded(std::move(source.text), source.name);
  return source;
}

}  // namespace

std::vector<std::string> chat_template_presets() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  names.emplace_back(kNoChatTemplate);
  return names;
}

ChatTemplateSource find_chat_template(const std::string& name, const std::string& tokenizer,
                                      const std::string& variables) {
  ChatTemplateSource source = with_unpacked(
      tokenizer, [&](const std::string& files) { return find_in_files(name, files, variables); });
  if (name.empty() && names_gguf(tokenizer)) source.name = tokenizer;
  return source;
}

}  // namespace fsdp::data
