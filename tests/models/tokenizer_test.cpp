#include "models/text/tokenizer.h"

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "engine/io/file.h"
#include "engine/io/utf8.h"
#include "models/text/bpe/bpe_tokenizer.h"
#include "models/text/bpe/pre_tokenizer.h"
#include "models/text/byte_tokenizer.h"
#include "models/text/char_tokenizer.h"
#include "tests/models/text_support.h"
#include "tests/support/catch.h"
#include "tests/support/data_folders.h"
#include "tests/support/form.h"
#include "tests/support/skip.h"
#include "tests/support/tokenizer_data.h"

namespace sluice::test::tokenizer_test {

using Ids = std::vector<std::int32_t>;

namespace {

std::vector<std::string> pieces_of(std::string_view text) {
  const PreTokenizer splitter;
  PreTokenizer::Pieces walk(splitter, text);
  std::vector<std::string> pieces;
  while (const auto piece = walk.next())
    pieces.emplace_back(*piece);
  return pieces;
}

std::string utf8(char32_t c) {
  const auto tail = [&](unsigned shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
}

template <class Visit>
void for_each_character(Visit&& visit) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c)
    if (c < 0xD800 || c > 0xDFFF) visit(c);
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t at = 0; at < hex.size(); at += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16)));
  return bytes;
}

/// Returns the digest of `bytes` by the system's own sha256sum.
std::string sha256(std::string_view bytes) {
  const TemporaryFolder folder;
  const auto command = "sha256sum '" + folder.write("stream", bytes).string() + "'";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string digest(64, '\0');
  digest.resize(std::fread(digest.data(), 1, digest.size(), pipe.get()));
  return digest;
}

}  // namespace

TEST_CASE("Ids agree with the reference vectors in both directions", "[tokenizer]") {
  for (const TokenizerData& data : tokenizer_data()) {
    CAPTURE(data.folder.string());
    const auto tokenizer = load_tokenizer(data.folder);
    CHECK(tokenizer->kind() == "gpt2");
    CHECK(tokenizer->vocab_size() == data.vocabulary);
    CHECK(tokenizer->end_of_text() == data.vocabulary - 1);

    std::ifstream vectors(data.folder / "tokenizer_vectors.jsonl");
    int count = 0;
    for (std::string line; std::getline(vectors, line); ++count) {
      const auto vector = nlohmann::json::parse(line);
      CAPTURE(vector["id"], vector["text"]);
      const auto text = from_hex(vector["hex"]);
      const Ids ids = vector["ids"];
      const Ids special = vector.value("ids_special", ids);
      CHECK(tokenizer->encode(text) == ids);
      CHECK(tokenizer->decode(ids) == text);
      CHECK(tokenizer->encode_with_special(text) == special);
      CHECK(tokenizer->decode(special) == text);
    }
    CHECK(count == data.vectors);
  }
}

TEST_CASE("Ids of a whole book have the reference hash", "[tokenizer]") {
  for (const TokenizerData& data : tokenizer_data()) {
    CAPTURE(data.folder.string());
    const auto tokenizer = load_tokenizer(data.folder);
    const auto ids = tokenizer->encode(data.text);
    CHECK(ids.size() == data.tokens);
    CHECK((tokenizer->decode(ids) == data.text));

    std::string stream;
    for (const auto id : ids) {
      stream.push_back(static_cast<char>(id & 0xFF));
      stream.push_back(static_cast<char>(id >> 8));
    }
    CHECK(sha256(stream) == data.sha256);

    const auto cut = data.text.size() * 9 / 10;
    const std::string_view text = data.text;
    CHECK(tokenizer->encode(text.substr(0, cut)).size() == data.train_tokens);
    CHECK(tokenizer->encode(text.substr(cut)).size() == data.val_tokens);
  }
}

TEST_CASE("GPT-2's own vocabulary gives GPT-2's ids", "[tokenizer]") {
  const auto folder = gpt2_tokenizer();
  if (!folder)
    return skip(
        "GPT-2's vocab.json and merges.txt are not the project's to give away: name their "
        "folder in SLUICE_GPT2_TOKENIZER");
  const auto tokenizer = load_tokenizer(*folder);
  CHECK(tokenizer->vocab_size() == 50257);
  CHECK(tokenizer->end_of_text() == 50256);
  CHECK(tokenizer->encode(" Hello world's 42!?") == Ids{18435, 995, 338, 5433, 22857});
  CHECK(tokenizer->encode("\n\nThe  quick\tbrown fox\r\n") ==
        Ids{198, 198, 464, 220, 2068, 197, 33282, 21831, 201, 198});
  CHECK(tokenizer->encode("caf\u00E9 \u4F60\u597D \U0001F642") ==
        Ids{66, 1878, 2634, 220, 19526, 254, 25001, 121, 32485});
  CHECK(tokenizer->encode("don't DON'T we'll") == Ids{9099, 470, 23917, 6, 51, 356, 1183});
  CHECK(tokenizer->encode_with_special("  <|endoftext|> ") == Ids{220, 220, 50256, 220});
}

TEST_CASE("White space in the split is Unicode's White_Space", "[tokenizer]") {
  // The first of two white space characters before a symbol is a piece of its own. Two characters
  // of any other kind stay together.
  const PreTokenizer splitter;
  std::vector<std::uint32_t> white;
  for_each_character([&](char32_t c) {
    const std::string text = utf8(c) + utf8(c) + "+";
    PreTokenizer::Pieces walk(splitter, text);
    if (walk.next() == utf8(c)) white.push_back(static_cast<std::uint32_t>(c));
  });
  const std::vector<std::uint32_t> unicode = {
      0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x20,   0x85,   0xA0,   0x1680,
      0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
      0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
  CHECK(white == unicode);
}

TEST_CASE("The split gives the pieces of OpenAI's pattern", "[tokenizer]") {
  using Pieces = std::vector<std::string>;
  CHECK(pieces_of("").empty());
  CHECK(pieces_of("I'll don't DON'T") == Pieces{"I", "'ll", " don", "'t", " DON", "'", "T"});
  CHECK(pieces_of("a   b \n\n c  ") == Pieces{"a", "  ", " b", " \n\n", " c", "  "});
  CHECK(pieces_of("x2½ 42!?") == Pieces{"x", "2½", " 42", "!?"});
}

TEST_CASE("UTF-8 is told from other bytes", "[tokenizer]") {
  for_each_character([&](char32_t c) {
    const auto bytes = utf8(c);
    if (utf8_size(bytes + "x") != bytes.size() || utf8_code_point(bytes) != c)
      FAIL("U+" << std::hex << static_cast<std::uint32_t>(c));
    for (std::size_t cut = 1; cut < bytes.size(); ++cut)
      if (utf8_size(bytes.substr(0, cut)) != 0 || utf8_size(bytes.substr(cut)) != 0)
        FAIL("cut U+" << std::hex << static_cast<std::uint32_t>(c));
  });
  for (const auto* bytes : {"", "\x80", "\xC0\xAF", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                            "\xED\xA0\x80", "\xED\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
                            "\xFF", "\xC3x", "\xE2\x82x", "\xF0\x9F\x98x"})
    CHECK(utf8_size(bytes) == 0);
}

TEST_CASE("Invalid UTF-8 is cut out as pieces of its own", "[tokenizer]") {
  using Pieces = std::vector<std::string>;
  CHECK(pieces_of("ab\xFF\xFE"
                  "cd e") == Pieces{"ab", "\xFF\xFE", "cd", " e"});
  CHECK(pieces_of("\xE2\x82") == Pieces{"\xE2\x82"});                  // cut short
  CHECK(pieces_of("\xC0\xAF/") == Pieces{"\xC0\xAF", "/"});            // overlong
  CHECK(pieces_of("\xED\xA0\x80") == Pieces{"\xED\xA0\x80"});          // a surrogate
  CHECK(pieces_of("\xF4\x90\x80\x80") == Pieces{"\xF4\x90\x80\x80"});  // above U+10FFFF
  CHECK(pieces_of("\xE0\x80\x80\xF0\x80\x80\x80").size() == 1);        // overlong, longer
  CHECK(pieces_of("a \xFF b") == Pieces{"a", " ", "\xFF", " b"});      // text ends at a run
}

TEST_CASE("Any bytes come back", "[tokenizer]") {
  const auto tokenizer = load_tokenizer(GENERATE(from_range(tokenizer_folders())));
  // Fragments from which valid, cut and overlong characters come about by chance.
  const std::vector<std::string> fragments = {"the",
                                              " ",
                                              "  ",
                                              "\n",
                                              "'s",
                                              "7",
                                              "\xC3",
                                              "\xA9",
                                              "\xE2\x82",
                                              "\xAC",
                                              "\xF0\x9F",
                                              "\x98\x80",
                                              "\xED\xA0",
                                              "\xC2\x85",
                                              "\xE3\x80\x80",
                                              "\xFF",
                                              std::string(1, '\0'),
                                              "<|endoftext|>"};
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const auto size = random() % 300;
    std::string bytes;
    std::string mixture;
    for (std::size_t i = 0; i < size; ++i) {
      bytes.push_back(static_cast<char>(random()));
      mixture += fragments[random() % fragments.size()];
    }
    CAPTURE(seed);
    CHECK((tokenizer->decode(tokenizer->encode(bytes)) == bytes));
    CHECK((tokenizer->decode(tokenizer->encode(mixture)) == mixture));
    CHECK((tokenizer->decode(tokenizer->encode_with_special(mixture)) == mixture));
  }
}

TEST_CASE("Hostile texts come back, and in good time", "[tokenizer]") {
  const auto tokenizer = load_tokenizer(GENERATE(from_range(tokenizer_folders())));
  // What takes the square of the length takes minutes for either.
  const std::size_t size = by_form(1U << 18, 1U << 20);
  std::string every_character;
  for_each_character([&](char32_t c) { every_character += utf8(c); });
  std::string alternating;
  for (std::size_t i = 0; i < size / 4; ++i)
    alternating += "a\xFF";
  std::vector<std::string> texts = {every_character, alternating};
  for (const char byte : {'a', 'x', '7', '.', ' ', '\n', '\0', '\xFF', '\xC3', '\x80'}) {
    texts.emplace_back(size, byte);
    texts.push_back(texts.back() + "b");
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    CAPTURE(i);
    CHECK((tokenizer->decode(tokenizer->encode(texts[i])) == texts[i]));
  }
}

TEST_CASE("Merging agrees with the plain quadratic algorithm", "[tokenizer]") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    BpeMerges merges;
    std::int32_t symbols = 3;
    const auto any = [&] { return static_cast<std::int32_t>(random() % unsigned(symbols)); };
    for (int i = 0; i < 30; ++i)
      if (merges.add({any(), any(), symbols})) ++symbols;

    Ids word(random() % 60);
    for (auto& symbol : word)
      symbol = static_cast<std::int32_t>(random() % 3);
    Ids merged = {0, 1, 2};  // what stands before the piece stays
    merged.insert(merged.end(), word.begin(), word.end());
    BpeMerger(merges).merge_tail(merged, 3);

    // Every merge was made from symbols of earlier ones, so one pass in order of rank is all.
    for (const auto& merge : merges)
      for (std::size_t at = 0; at + 1 < word.size(); ++at)
        if (word[at] == merge.left && word[at + 1] == merge.right) {
          word[at] = merge.result;
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(at) + 1);
        }
    word.insert(word.begin(), {0, 1, 2});
    CAPTURE(seed);
    CHECK(merged == word);
  }
}

TEST_CASE("Special text is special only where that is asked for", "[tokenizer]") {
  const BpeTokenizer tokenizer(check_bpe(small_bpe()));
  CHECK(tokenizer.end_of_text() == 259);
  CHECK(tokenizer.encode_with_special("<|endoftext|>") == Ids{259});
  CHECK(tokenizer.encode_with_special("abc<|endoftext|><|endoftext|> a") ==
        Ids{257, 259, 259, 258});
  CHECK(tokenizer.encode_with_special("<|endoftext|") == tokenizer.encode("<|endoftext|"));
  CHECK(tokenizer.encode("<|endoftext|>").size() == 13);
  CHECK(tokenizer.encode("abcab abc ax") == Ids{257, 256, ' ', 257, 258, 'x'});
}

TEST_CASE("An id outside the vocabulary is an error that names it", "[tokenizer]") {
  const BpeTokenizer tokenizer(check_bpe(small_bpe()));
  CHECK_THAT(usage_error([&] { tokenizer.decode(Ids{1, 260}); }), Contains("260"));
  CHECK_THAT(usage_error([&] { tokenizer.decode(Ids{-1}); }), Contains("-1"));
  CHECK_THAT(usage_error([&] { ByteTokenizer().decode(Ids{256}); }), Contains("256"));
  CHECK_THAT(usage_error([&] { CharTokenizer::from_text("ab").decode(Ids{2}); }), Contains("2"));
}

TEST_CASE("One tokenizer serves several threads", "[tokenizer][threads]") {
  const auto tokenizer = load_tokenizer(GENERATE(from_range(tokenizer_folders())));
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += "abc word" + std::to_string(i % 700) + " \xFF";
  const auto expected = tokenizer->encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results)
    threads.emplace_back([&] { result = tokenizer->encode(text); });
  for (auto& thread : threads)
    thread.join();
  for (const auto& result : results)
    CHECK((result == expected));
}

TEST_CASE("The byte tokenizer is the identity", "[tokenizer]") {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte)
    bytes.push_back(static_cast<char>(byte));
  const ByteTokenizer tokenizer;
  const auto ids = tokenizer.encode(bytes);
  CHECK(ids.front() == 0);
  CHECK(ids.back() == 255);
  CHECK(tokenizer.decode(ids) == bytes);
  CHECK(tokenizer.vocab_size() == 256);
  CHECK_FALSE(tokenizer.end_of_text());
}

TEST_CASE("The character vocabulary is that of nanoGPT", "[tokenizer]") {
  const auto tokenizer = CharTokenizer::from_text("héllo, 😀\n€");
  CHECK(tokenizer.vocab_size() == 9);
  CHECK(tokenizer.encode("\n ,hloé€😀") == Ids{0, 1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(tokenizer.decode(Ids{3, 6, 4, 4, 5}) == "héllo");
}

TEST_CASE("The character vocabulary of a book has the reference's size", "[tokenizer]") {
  for (const TokenizerData& data : tokenizer_data()) {
    CAPTURE(data.folder.string());
    const auto tokenizer = CharTokenizer::from_text(data.text);
    CHECK(tokenizer.vocab_size() == data.characters);
    CHECK((tokenizer.decode(tokenizer.encode(data.text)) == data.text));
  }
}

TEST_CASE("Characters: stray bytes are symbols, unknown ones are named", "[tokenizer]") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    std::string bytes;
    for (int i = 0; i < 200; ++i)
      bytes.push_back(static_cast<char>(random()));
    const auto tokenizer = CharTokenizer::from_text(bytes);
    CHECK((tokenizer.decode(tokenizer.encode(bytes)) == bytes));
  }
  const auto tokenizer = CharTokenizer::from_text("abc");
  CHECK_THAT(usage_error([&] { tokenizer.encode("ab\u00E9"); }),
             Contains("\"\u00E9\" (U+00E9) at byte 2") && Contains("3 characters"));
  CHECK_THAT(usage_error([&] { tokenizer.encode("a\n"); }), Contains("\"\\n\" (U+000A) at byte 1"));
  CHECK_THAT(usage_error([&] { tokenizer.encode("\xFF"); }), Contains("the byte 0xFF"));
  CHECK_THAT(usage_error([&] { CharTokenizer::from_text(""); }), Contains("empty"));
}

}  // namespace sluice::test::tokenizer_test
