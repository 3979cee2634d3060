#include "tools/report/html.h"

#include <map>

#include "base/util/error.h"
#include "tools/report/style.h"

namespace fsdp::report {

std::string escaped(std::string_view text) {
  static const std::map<char, std::string> kEntities = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string out;
  for (const char c : text) {
    const auto entity = kEntities.find(c);
    entity == kEntities.end() ? out += c : out += entity->second;
  }
  return out;
}

std::string html_document(const std::string& title, const std::string& subtitle, const std::string& body) {
  return concat("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
                escaped(title), "</title>\n<style>", kFigureStyle, kPageStyle,
                "</style>\n</head>\n<body>\n<main>\n<h1>", escaped(title), "</h1>\n<p class=\"sub\">",
                subtitle, "</p>\n", body, "</main>\n</body>\n</html>\n");
}

}  // namespace fsdp::report
