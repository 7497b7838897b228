#include "apps/data/tokens/prepared_folder.h"
#include "engine/io/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/text_files.h"

// Vocabularies whose ids need more than 16 bits.

namespace sluice::test::wide_tokens_test {

using Ids = std::vector<std::int32_t>;
using Strings = std::vector<std::string>;

TEST_CASE("a text of a large vocabulary keeps its ids, in memory and in files") {
  BpeTables tables = tokenizer_with_end_tables();
  while (tables.symbols.size() < 70'000)
    tables.symbols.push_back("token " + std::to_string(tables.symbols.size()));
  tables.added.push_back({"<wide>", 69'999});
  tables.symbols.back() = "<wide>";
  const BpeTokenizer tokenizer(tables);
  const TextFolder dir;
  const Strings file{dir.put("a.txt", "a<wide>b")}, val{dir.put("b.txt", "<wide>")};
  const Dataset text = open({file}, val, tokenizer, {.special = true});
  CHECK(all_of(*text.train) == Ids{'a', 69'999, 'b'});
  CHECK(all_of(*text.val) == Ids{69'999});
  ShardedPart part(dir.path(), "train", 2, token_bytes(tokenizer.vocab_size()));
  part.append(all_of(*text.train));
  part.complete();
  part.publish();
  const auto files = open_token_files(
      {dir.path() / "train_000001.bin", dir.path() / "train_000002.bin"}, tokenizer.vocab_size());
  CHECK(all_of(*files) == all_of(*text.train));
  CHECK(files->checksum() == text.train->checksum());
  write_file(dir.path() / "narrow.bin", std::string(8, '\0'));
  CHECK_THAT(
      error_message([&] {
        open_token_files({dir.path() / "train_000001.bin", dir.path() / "narrow.bin"}, 70'000);
      }),
      Contains("has tokens of 4 bytes") && Contains("narrow.bin of 2"));
}

}  // namespace sluice::test::wide_tokens_test
