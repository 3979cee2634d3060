#include "data/chat/chat_tokens.h"

#include <memory>
#include <optional>
#include <utility>

#include "base/objects/local_copy.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "data/chat/chat_markers.h"
#include "data/chat/chat_source.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMainFile = "tokenizer.json";
constexpr const char* kConfigFile = "tokenizer_config.json";

/// Returns the tokenizer.json that a tokenizer is read from.
fs::path main_file_of(const std::string& name) {
  const std::string tokenizer = objects::local_copy(name).string();
  std::error_code error;
  const fs::path path =
      fs::is_directory(tokenizer, error) ? fs::path(tokenizer) / kMainFile : fs::path(tokenizer);
  if (path.extension() != ".json" || path.filename() == "tekken.json" || !fs::is_regular_file(path, error)) {
    fail(ErrorKind::kUsage,
         "`add_special_tokens` needs a tokenizer.json, or a folder with one, but `tokenizer` is ", tokenizer,
         "; convert the tokenizer by save_pretrained() of transformers");
  }
  return path;
}

/// Returns what the template writes around messages of each role; without the system's if it refuses that.
std::string rendered_sample(const ChatTemplate& chat_template) {
  OrderedJson messages = {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}};
  OrderedJson with_system = messages;
  with_system.insert(with_system.begin(), {{"role", "system"}, {"content", "c"}});
  try {
    return chat_template.render(with_system).text;
  } catch (const TemplateError&) {
    // Templates of models without a system's prompt raise an exception.
  }
  try {
    return chat_template.render(messages).text;
  } catch (const TemplateError& error) {
    fail(ErrorKind::kData, error.what(),
         "; choose a template that takes a message of the user and its answer");
  }
}

OrderedJson described(const std::string& token) {
  return {{"content", token}, {"lstrip", false},      {"normalized", false},
          {"rstrip", false},  {"single_word", false}, {"special", true}};
}

/// Adds the tokens to the content of a tokenizer.json.
void add_to_main_file(const std::vector<AddedMarker>& added, OrderedJson& json) {
  if (!json.contains("added_tokens") || !json["added_tokens"].is_array())
    json["added_tokens"] = OrderedJson::array();
  for (const AddedMarker& marker : added) {
    OrderedJson entry = {{"id", marker.id}};
    entry.update(described(marker.text));
    json["added_tokens"].push_back(std::move(entry));
  }
}

/// Adds the tokens to a list of all added tokens, if the content of a tokenizer_config.json has one.
void add_to_config(const std::vector<AddedMarker>& added, OrderedJson& json) {
  if (!json.contains("added_tokens_decoder") || !json["added_tokens_decoder"].is_object()) return;
  for (const AddedMarker& marker : added) {
    json["added_tokens_decoder"][std::to_string(marker.id)] = described(marker.text);
  }
}

/// Copies the files that tokens or options of the main file may be in.
void copy_companions(const fs::path& from, const fs::path& to) {
  for (const char* name : {"added_tokens.json", "special_tokens_map.json"}) {
    std::error_code error;
    if (fs::exists(from / name, error)) util::write_file_atomically(to / name, util::read_file(from / name));
  }
}

void write_json(const fs::path& path, const OrderedJson& json) {
  util::write_file_atomically(path, json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

/// Returns the markers that the tokenizer would spell, with ids behind the vocabulary, or their own if they
/// are in it as ordinary text.
std::vector<AddedMarker> spelled_markers(const std::string& rendered, const Tokenizer& tokenizer) {
  std::vector<AddedMarker> spelled;
  int64_t next_id = tokenizer.vocab_size();
  for (const std::string& marker : markers_in(rendered)) {
    std::vector<int64_t> ids;
    tokenizer.encode(marker, ids);
    if (ids.size() == 1) continue;
    const std::optional<int64_t> own = tokenizer.id_of(marker);
    spelled.push_back({marker, own ? *own : next_id++});
  }
  return spelled;
}

}  // namespace

std::vector<AddedMarker> add_markers(const ChatOptions& options, const std::string& tokenizer,
                                     const fs::path& folder) {
  if (options.chat_template == kNoChatTemplate) {
    fail(ErrorKind::kUsage,
         "`add_special_tokens` adds the markers of a chat template, but `chat_template` is ", kNoChatTemplate,
         "; leave one of them out");
  }
  const fs::path main_file = main_file_of(tokenizer), from = main_file.parent_path();
  const std::unique_ptr<Tokenizer> made = make_tokenizer(tokenizer);
  ChatTemplateSource source = find_chat_template(options.chat_template, tokenizer, options.chat_variables);
  const std::string text = source.text;
  const ChatTemplate chat_template(std::move(source), 1, options.limits);

  const std::vector<AddedMarker> added = spelled_markers(rendered_sample(chat_template), *made);
  if (added.empty()) return added;

  // The tokenizer was read from these files, so they are JSON within its limits.
  OrderedJson json = OrderedJson::parse(util::read_file(main_file));
  add_to_main_file(added, json);
  OrderedJson config = OrderedJson::object();
  std::error_code error;
  if (fs::exists(from / kConfigFile, error)) config = OrderedJson::parse(util::read_file(from / kConfigFile));
  add_to_config(added, config);
  config["chat_template"] = text;
  try {
    fs::create_directories(folder);
  } catch (const fs::filesystem_error& failed) {
    fail(ErrorKind::kIo, "the folder ", folder.string(), " for the tokenizer cannot be made (",
         failed.code().message(), "); choose another output");
  }
  write_json(folder / kMainFile, json);
  write_json(folder / kConfigFile, config);
  copy_companions(from, folder);
  return added;
}

}  // namespace fsdp::data
