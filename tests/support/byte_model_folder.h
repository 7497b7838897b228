#pragma once

#include <string>

#include "models/text/byte_tokenizer.h"
#include "tests/support/fixture.h"
#include "tests/support/temp_dir.h"

namespace sluice::test {

/// A folder with a tiny GPT-2 that reads bytes (gpt2/, with its tokenizer) and a text (text.txt).
struct ByteModelFolder : TempDir {
  ByteModelFolder() {
    DecoderConfig config = small_config();
    config.vocab_size = 256;
    write_model(path() / "gpt2", config);
    ByteTokenizer().save(path() / "gpt2");
    std::string text;
    while (text.size() < 2000)
      text += "the quick brown fox\n";
    write_file(path() / "text.txt", text);
  }
};

}  // namespace sluice::test
