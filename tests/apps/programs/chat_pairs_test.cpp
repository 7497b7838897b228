#include "tests/support/catch.h"
#include "tests/support/program.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"

// What scripts/chat_pairs makes of conversations as services write them.

namespace sluice::test::chat_pairs_test {
namespace {

struct Chat : TempDir {
  Chat() {
    write_file(path() / "plain.jinja",
               "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
               "{% if add_generation_prompt %}assistant: {% endif %}");
  }
  ProgramResult of(const std::string& lines) const {
    write_file(path() / "c.jsonl", lines);
    return run_program(SLUICE_SOURCE_DIR "/scripts/chat_pairs", {"plain.jinja", "c.jsonl"}, "",
                       path());
  }
  std::string refused(const std::string& lines) const {
    const ProgramResult result = of(lines);
    CHECK(result.exit_code == 1);
    CHECK(result.out.empty());
    return result.err;
  }
};

bool has_jinja() {
  if (run_program("/usr/bin/env", {"python3", "-c", "import jinja2"}).exit_code == 0) return true;
  skip("python3 has no jinja2");
  return false;
}

}  // namespace

TEST_CASE("null content is empty, and parts of text are joined", "[pairs]") {
  if (!has_jinja()) return;
  const Chat chat;
  const ProgramResult result = chat.of(
      R"({"messages":[{"role":"user","content":null},{"role":"assistant","content":"b","name":null}]})"
      "\n\n"
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]},{"role":"assistant","content":[]}]})"
      "\n");
  CHECK(result.err == "");
  CHECK(result.out == R"({"prompt": "user: ;assistant: ", "completion": "b;"})"
                      "\n"
                      R"({"prompt": "user: xy;assistant: ", "completion": ";"})"
                      "\n");
}

TEST_CASE("what is no text is refused with its line and message", "[pairs]") {
  if (!has_jinja()) return;
  const Chat chat;
  const std::string before =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":)";
  const std::pair<const char*, const char*> rows[] = {
      {R"([{"type":"image","url":"x"}]}]})", "message 2 has the part {\"type\": \"image\""},
      {R"(["b"]}]})", "message 2 has the part \"b\""},
      {R"([{"type":"text"}]}]})", "message 2 has the part"},
      {R"(5}]})", "message 2 has the content 5, not a text"},
      {R"(null,"tool_calls":[{"function":{"name":"f"}}]}]})",
       "message 2 has tool_calls, and the template leaves them out"}};
  for (const auto& [line, words] : rows)
    CHECK_THAT(chat.refused(before + line),
               Contains("chat_pairs: error: c.jsonl:1: ") && Contains(words));
  CHECK_THAT(chat.refused("\n\n"), Contains("c.jsonl: there is no conversation in it"));
  CHECK_THAT(chat.refused(R"({"messages":"x"})"), Contains("c.jsonl:1: \"messages\" is \"x\""));
  CHECK_THAT(chat.refused(R"({"messages":["x"]})"), Contains("message 1 is \"x\""));
  CHECK_THAT(chat.refused("[]"), Contains("c.jsonl:1: [] is no object with messages"));
}

}  // namespace sluice::test::chat_pairs_test
