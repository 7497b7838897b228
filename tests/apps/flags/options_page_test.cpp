#include "tests/support/catch.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::options_page_test {

TEST_CASE("docs/reference/options.md is what --help says", "[words]") {
  const std::string page =
      read_file(std::filesystem::path(SLUICE_SOURCE_DIR) / "docs/reference/options.md");
  for (const std::string program : {"train_gpt2", "plan", "generate", "evaluate", "prepare_data",
                                    "convert", "probe", "post_mortem", "train_mlp"}) {
    CAPTURE(program);
    const ProgramResult help = run_program(program, {"--help"});
    CHECK(help.exit_code == 0);
    INFO("scripts/options_page writes the page anew");
    CHECK_THAT(page, Contains("\n## " + program + "\n\n```text\n" + help.out + "```\n"));
  }
}

}  // namespace sluice::test::options_page_test
