#include "tests/fuzz/samples.h"

namespace sluice::fuzz {

Samples options_file_samples() {
  const std::string unseen = "a\xC2\x9B\xE2\x80\xAE\xE2\x80\x8B";
  return {
      {"accepted",
       "# a comment\ntext=\"two words\"\ntexts=[\"a b\", \"c\"]\nflag=true\nwhole=3\nnumber=0.25\n"
       "size=8GiB\nchoice=bytes\nseed=5\nmaybe-whole=2\nmaybe-number=1e-3\n",
       ""},
      {"accepted-empty", "", ""},
      {"accepted-default-section", "[default]\nwhole=3\n", ""},
      {"accepted-flag-2^64", "flag=18446744073709551616\n", ""},
      {"underscore", "maybe_whole=2\n", "did you mean maybe-whole?"},
      {"accepted-carriage-returns", "whole=3\r\nnumber=1\r\n", ""},
      {"accepted-lines-of-an-array", "texts=[\"a\",\n\"b\"]\n", ""},
      {"accepted-unseen", "text=" + unseen + "\n", ""},
      {"accepted-not-utf8", "text=\xFF\xFE\n", ""},
      {"unknown-key", "wholes=3\n", "did you mean whole?"},
      {"unknown-key-unseen", unseen + "=3\n", "unknown key"},
      {"unknown-key-endless", std::string(100'000, 'k') + "=3\n", "unknown key"},
      {"key-of-dots", std::string(100'000, '.') + "a=3\n", "no option has a dot"},
      {"section", "[other]\nwhole=3\n", "has the section"},
      {"section-unseen", "[" + unseen + "]\n", "has the section"},
      {"section-endless", "[" + std::string(100'000, '.') + "]\n", "has the section"},
      {"nul", std::string("whole=3\0", 8), "NUL at byte 7"},
      {"too-large", std::string((1 << 20) + 1, '#'), "more than the limit"},
      {"whole-too-large", "whole=1001\n", "is not a whole number from 1 to 1000"},
      {"whole-fraction", "whole=1.5\n", "is not a whole number"},
      {"whole-endless", "whole=" + std::string(100'000, '9') + "\n", "is not a whole number"},
      {"whole-twice", "whole=3\nwhole=4\n", "more than once"},
      {"whole-array", "whole=[3,4]\n", "more than once"},
      {"number-nan", "number=nan\n", "is not a number from 0 to 1"},
      {"number-comma", "number=0,5\n", "is not a number"},
      {"number-unseen", "number=" + unseen + "\n", "is not a number"},
      {"choice-unseen", "choice=" + unseen + "\n", "is not one of"},
      {"flag-word", "flag=perhaps\n", "is neither true nor false"},
      {"flag-unseen", "flag=" + unseen + "\n", "is neither true nor false"},
      {"flag-endless", "flag=" + std::string(100'000, 'x') + "\n", "is neither true nor false"},
      {"array-without-end", "texts=[\"a\", \"bc\n", "has no end"},
      {"array-begins-with-bracket-alone", "texts=[\n\"a\"\n]\n", "has no end"},
      {"array-ends-in-comment", "texts=[\"a\" # ]\n", "has no end"},
      {"key-alone", "a\n", "KEY=VALUE"},
      {"help", "help=true\n", "not allowed in a configuration file"},
      {"another-file", "config=\"/dev/zero\"\n", "not allowed in a configuration file"},
  };
}

}  // namespace sluice::fuzz
