#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "apps/data/dataset.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/text_files.h"

// Which files the names of --data stand for, and the documents in them.

namespace sluice::test::text_source_test {
namespace {

using Strings = std::vector<std::string>;

std::string refusal(const TextFolder& dir, const Strings& names, const TextOptions& options = {}) {
  return error_message([&] { dir.read(names, options); });
}

}  // namespace

TEST_CASE("a folder gives its texts by path, below it too, and tells what it leaves out") {
  const TextFolder dir;
  dir.put("d/b.txt", "second");
  dir.put("d/a/z.MD", "first");
  dir.put("d/c.py", "third = 3\n");
  dir.put("d/c.png", "picture");
  dir.put("d/noending", "what is it?");
  dir.put("d/empty.txt", "");
  dir.put("d/nul.txt", std::string("a\0b", 3));
  dir.put("d/.hidden.txt", "hidden");
  dir.put("d/.git/x.txt", "hidden");
  dir.put("d/prepared/train.bin", "ab");
  dir.put("d/prepared/merges.txt", "#version: 0.2\n");
  fs::create_directory_symlink("..", dir.path() / "d" / "loop");
  const auto all = dir.read({dir.at("d")});
  CHECK(all.names == Strings{"d/a/z.MD", "d/b.txt", "d/c.py"});
  CHECK(all.texts == Strings{"first", "second", "third = 3\n"});
  CHECK(all.report.text() == "3 files, 3 documents, 21 bytes");
  const std::string skipped = all.report.skipped.text();
  CHECK_THAT(skipped, Contains("2 files of other kinds"));
  CHECK_THAT(skipped, Contains("1 folder of tokens") && Contains("1 link to a folder"));
  CHECK_THAT(skipped, Contains("1 empty file (" + dir.at("d/empty.txt")));
  CHECK_THAT(skipped, Contains("1 file with NUL bytes, so no text (" + dir.at("d/nul.txt")));
}

TEST_CASE("several names are read in their order, each file once, and patterns by path") {
  const TextFolder dir;
  const std::string a = dir.put("a.txt", "A"), b = dir.put("b.txt", "B"), c = dir.put("c", "C");
  dir.put("[x].txt", "X");
  CHECK(dir.read({c, a}).texts == Strings{"C", "A"});
  CHECK(dir.read({dir.at("*.txt")}).names == Strings{"[x].txt", "a.txt", "b.txt"});
  CHECK(dir.read({dir.at("[ab].txt")}).texts == Strings{"A", "B"});
  CHECK(dir.read({dir.at("[x].txt")}).texts == Strings{"X"});  // a file of that name
  const auto twice = dir.read({b, dir.at("?.txt")});
  CHECK(twice.texts == Strings{"B", "A"});
  CHECK_THAT(twice.report.skipped.text(), Contains("1 file found before"));
  // A file that is named alone is read whatever it holds, as it always was.
  const std::string nul = dir.put("nul.txt", std::string("a\0b", 3));
  CHECK(dir.read({nul}).texts.at(0) == std::string("a\0b", 3));
  CHECK(dir.read({nul, a}).texts == Strings{"A"});
}

TEST_CASE("names that give no text are refused by name") {
  const TextFolder dir;
  const std::string text = dir.put("a.txt", "A"), bin = dir.put("b.bin", "ab");
  dir.put("odd/x.png", "picture");
  dir.put("odd/y.zip", "archive");
  dir.put("nuls/x.txt", std::string(3, '\0'));
  fs::create_directory(dir.path() / "bare");
  CHECK_THAT(refusal(dir, {dir.at("none.txt")}), Contains("none.txt: there is no such file"));
  CHECK_THAT(refusal(dir, {dir.at("*.md")}), Contains("*.md: no file matches"));
  CHECK_THAT(refusal(dir, {dir.at("bare")}), Contains("bare: the folder has neither"));
  CHECK_THAT(refusal(dir, {dir.at("odd")}), Contains("2 files of other kinds (first: "));
  CHECK_THAT(refusal(dir, {dir.at("nuls")}), Contains("nuls holds no text: there is only 1 file"));
  CHECK_THAT(refusal(dir, {dir.put("e.txt", "")}), Contains("e.txt"));
  CHECK_THAT(refusal(dir, {"/dev/null"}), Contains("/dev/null is not a regular file"));
  CHECK_THAT(refusal(dir, {text, bin}),
             Contains("b.bin is a file of tokens and") && Contains("a.txt is text"));
  CHECK_THAT(refusal(dir, {dir.put("c.bin.gz", "x")}), Contains("unpack it first"));
}

TEST_CASE("each JSON line is a document, whatever stands at line ends and between them") {
  const TextFolder dir;
  const std::string file =
      dir.put("x.jsonl",
              "\xEF\xBB\xBF{\"text\": \"one\\n\"}\r\n\r\n{\"id\": 7, \"text\": \"tw\xC3\xB6\"}\n"
              "{\"id\": 8}\n  \n{\"text\": null}\n{\"text\": \"\"}\n{\"text\": \"last\"}");
  const auto all = dir.read({file});
  CHECK(all.texts == Strings{"one\n", "tw\xC3\xB6", "last"});
  CHECK(all.names == Strings{"x.jsonl:1", "x.jsonl:3", "x.jsonl:8"});
  CHECK(all.report.text() == "1 file, 3 documents, 12 bytes");
  CHECK_THAT(all.report.skipped.text(),
             Contains("1 line without the field \"text\" (" + file + ":4, which has id)") &&
                 Contains("2 lines with an empty text (first: " + file + ":6)"));
  const std::string other = dir.put("y.ndjson", "{\"body\": \"b\", \"text\": 5}\n");
  CHECK(dir.read({other}, {.field = "body"}).texts == Strings{"b"});
  // The name decides the format, unless the user states one.
  CHECK(dir.read({other}, {.format = TextFormat::text}).texts.size() == 1);
  CHECK(dir.read({dir.put("z.dump", "{\"text\": \"z\"}")}, {.format = TextFormat::jsonl}).texts ==
        Strings{"z"});
}

TEST_CASE("a bad JSON line is refused with its place, or left out and counted") {
  const TextFolder dir;
  const auto bad = GENERATE(as<std::string>{}, "{\"text\": \"a\"", "[1]", "5", "nonsense",
                            "{\"text\": 5}", "{\"text\": [\"a\"]}", "{\"text\": \"\xFF\"}",
                            "{\"text\": \"a\"} {\"text\": \"b\"}");
  const std::string file =
      dir.put("x.jsonl", "{\"text\": \"a\"}\n" + bad + "\n{\"text\": \"b\"}\n");
  CHECK_THAT(refusal(dir, {file}), Contains(file + ":2") && Contains("--skip-bad-lines"));
  const auto rest = dir.read({file}, {.skip_bad_lines = true});
  CHECK(rest.texts == Strings{"a", "b"});
  CHECK_THAT(rest.report.skipped.text(), Contains("1 bad line (" + file + ":2)"));
  CHECK_THAT(refusal(dir, {dir.put("y.jsonl", "{\"body\": \"a\", \"id\": 1}\n")}),
             Contains("holds no text") && Contains("which has body, id"));
}

TEST_CASE("a single JSON line of 50 MB is one document") {
  const TextFolder dir;
  const std::string text(50'000'000, 'x');
  const auto all = dir.read({dir.put("x.jsonl", "{\"text\": \"" + text + "\"}\n")});
  REQUIRE(all.texts.size() == 1);
  CHECK((all.texts[0] == text));  // not printed
}

TEST_CASE("compressed texts are those that were compressed, in one member or several") {
  const TextFolder dir;
  std::string text;
  for (int i = 0; i < 100'000; ++i)
    text += std::to_string(i * 7919 % 10007) + (i % 9 == 0 ? "\n" : " ");
  dir.put("d/a.txt.gz", gzip_of(text));
  dir.put("d/b.jsonl.gz", gzip_of("{\"text\": \"b1\"}\n{\"text\": \"b2\"}\n"));
  dir.put("d/c.md.gz", gzip_of("c1") + gzip_of("c2") + std::string(512, '\0'));
  dir.put("d/d.tar.gz", gzip_of("other"));
  const auto all = dir.read({dir.at("d")});
  CHECK(all.names == Strings{"d/a.txt.gz", "d/b.jsonl.gz:1", "d/b.jsonl.gz:2", "d/c.md.gz"});
  REQUIRE(all.texts.size() == 4);
  CHECK((all.texts[0] == text));
  CHECK(Strings(all.texts.begin() + 1, all.texts.end()) == Strings{"b1", "b2", "c1c2"});
  CHECK_THAT(all.report.skipped.text(), Contains("d.tar.gz"));
}

TEST_CASE("gzip data that ends early, is damaged or goes on as something else is refused") {
  const TextFolder dir;
  const std::string good = gzip_of("some text that is long enough to be cut");
  for (const std::size_t size : {std::size_t{1}, std::size_t{9}, good.size() / 2, good.size() - 1})
    CHECK_THAT(refusal(dir, {dir.put("cut.txt.gz", good.substr(0, size))}),
               Contains("cut.txt.gz ends after") && Contains("truncated"));
  CHECK_THAT(refusal(dir, {dir.put("more.txt.gz", good + "more")}),
             Contains("more.txt.gz") && Contains("byte " + std::to_string(good.size())));
  std::string damaged = good;
  damaged[good.size() - 6] ^= 1;  // the sum of the text
  CHECK_THAT(refusal(dir, {dir.put("bad.txt.gz", damaged)}), Contains("not valid gzip data"));
  CHECK_THAT(refusal(dir, {dir.put("plain.txt.gz", "no gzip at all")}),
             Contains("not valid gzip data at byte"));
  CHECK_THAT(refusal(dir, {dir.put("none.txt.gz", "")}), Contains("1 empty file"));
}

TEST_CASE("a pipe is read once, to its end, and leaves no file behind") {
  const TextFolder dir;
  const std::string pipe = dir.at("pipe.jsonl");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const std::string lines = "{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
  const std::string bytes = GENERATE_COPY(as<std::string>{}, lines, gzip_of(lines), "");
  std::thread writer([&] { std::ofstream(pipe, std::ios::binary) << bytes; });
  const DataFiles files = find_data("--data", {pipe});
  REQUIRE(files.texts.size() == 1);
  CHECK(files.texts[0].stream);
  const TextSource source(files, {}, dir.path());
  writer.join();
  CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator{}) == 1);
  if (bytes.empty()) {
    CHECK_THAT(error_message([&] { source.read([](const Document&) {}); }),
               Contains("pipe.jsonl holds no text: there is only 1 empty file"));
    return;
  }
  for (int time = 0; time < 2; ++time) {
    Strings texts;
    source.read([&](const Document& document) { texts.emplace_back(document.text); });
    CHECK(texts == Strings{"a", "b"});
  }
}

TEST_CASE("what can be read once is refused for both flags, twice, and for several ranks") {
  const TextFolder dir;
  const DataFiles in = find_data("--data", {"-"}), none;
  CHECK(error_message([&] { require_streams_once(in, none, 1); }) == "(no error)");
  CHECK_THAT(error_message([&] { require_streams_once(in, in, 1); }),
             Contains("both name the standard input"));
  CHECK_THAT(error_message([&] { require_streams_once(in, none, 2); }),
             Contains("the standard input") && Contains("2 ranks"));
  CHECK_THAT(error_message([&] { require_streams_once(none, in, 4); }), Contains("4 ranks"));
  CHECK_THAT(error_message([] { find_data("--data", {"-", "-"}); }), Contains("named twice"));
  const std::string pipe = dir.at("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const DataFiles one = find_data("--data", {pipe});
  const DataFiles same = find_data("--val-data", {dir.at("./pipe")});
  CHECK_THAT(error_message([&] { require_streams_once(one, same, 1); }), Contains("both name"));
}

}  // namespace sluice::test::text_source_test
