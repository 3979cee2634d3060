#include <gtest/gtest.h>

#include <fstream>

#include "base/cli/cli_fixtures.h"
#include "base/cli/shell_files.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace fsdp::cli {
namespace {

TEST(ManPage, HasOptionsCommandsExamplesAndKeys) {
  const auto app = sample_app();
  app->footer("the notes");
  const std::string page = man_page(*app, sample_page());
  for (const char* part :
       {".SH NAME\nmy\\-tool \\- does it\n", "\nmy\\-tool [OPTIONS] config [overrides...] [SUBCOMMAND]\n",
        "\\fB\\-q, \\-\\-quiet\\fR\n", "\\fB\\-\\-format\\fR TEXT:{json, text}\nof the result\n",
        ".SS init\nwrite a config\n", "my\\-tool config.toml\n", "\\fBrun.mode\\fR\nhow it runs\n",
        "\n\\&.begins with a dot\n", "\\fB75\\fR\n"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part << page;
  }
  EXPECT_EQ(page.find("hidden"), std::string::npos);
  EXPECT_EQ(page.find("the notes"), std::string::npos) << "in their place are the keys";
  Page without = sample_page();
  without.words.clear();
  EXPECT_NE(man_page(*app, without).find("the notes"), std::string::npos);
}

}  // namespace
}  // namespace fsdp::cli
