#include "tests/fuzz/samples.h"

namespace sluice::fuzz {

Samples options_file_samples() {
  std::string dotted = "a";
  for (int i = 0; i < 100'000; ++i)
    dotted += ".a";
  const std::string unseen = "a\xC2\x9B\xE2\x80\xAE\xE2\x80\x8B";
  return {
      {"accepted",
       "# a comment\ntext=\"two words\"\ntexts=[\"a b\", \"c\"]\nflag=true\nwhole=3\nnumber=0.25\n"
       "size=\"8GiB\"\nchoice=\"bytes\"\nseed=5\nmaybe-whole=2\nmaybe-number=1e-3\n",
       ""},
      {"accepted-empty", "", ""},
      {"default-section", "[default]\nwhole=3\n", "options stand without sections"},
      {"flag-2^64", "flag=18446744073709551616\n", "not representable in 64 bits"},
      {"underscore", "maybe_whole=2\n", "did you mean maybe-whole?"},
      {"accepted-carriage-returns", "whole=3\r\nnumber=1\r\n", ""},
      {"accepted-lines-of-an-array", "texts=[\"a\",\n\"b\"]\n", ""},
      {"accepted-unseen", "text='" + unseen + "'\n", ""},
      {"accepted-escapes", "text=\"a\\nb\\u007F\"\ntexts=['\\n', \"\"\"\nc\"\"\"]\n", ""},
      {"accepted-dots", "text=\"" + std::string(100, '.') + "\" # " + std::string(100, '.') + "\n",
       ""},
      {"accepted-number-as-text", "text=1e3\nwhole=3.0\n", ""},
      {"not-utf8", "text=\"\xFF\xFE\"\n", "options.toml:1: this is not TOML"},
      {"unknown-key", "text='a'\nwholes=3\n",
       "options.toml:2: unknown option 'wholes' (did you mean whole?)"},
      {"unknown-key-unseen", "\"" + unseen + "\"=3\n", "unknown option"},
      {"unknown-key-endless", std::string(100'000, 'k') + "=3\n", "unknown option"},
      {"key-of-dots", std::string(100'000, '.') + "a=3\n", "no option has a dot"},
      {"key-of-tables", "number." + dotted + "=3\n", "no option has a dot"},
      {"value-of-tables", "texts=[{" + dotted + "=3}]\n", "no option has a dot"},
      {"tables-after-text", "texts=[\"\"\" \" \"\"\", {" + dotted + "=3}]\n",
       "no option has a dot"},
      {"values-endless", "texts=" + std::string(100'000, '[') + "\n", "nested value depth"},
      {"section", "[other]\nwhole=3\n", "options.toml:1: other: options stand without sections"},
      {"section-unseen", "[" + unseen + "]\n", "texts stand in double quotes"},
      {"section-endless", "[" + dotted + "]\n", "no option has a dot"},
      {"white-space-by-its-table", "[a\xEF\xBB\xBB]\n", "texts stand in double quotes"},
      {"white-space-after-backslash", "text=\"\"\"a\\\n\xEF\xBB\xBB\"\"\"\n",
       "options.toml:1: a backslash begins an escape"},
      {"backslash-at-the-end", "text=\"a\\", "a backslash begins an escape"},
      {"accepted-byte-order-mark", "\xEF\xBB\xBFwhole=3\n", ""},
      {"array-in-array", "texts=[[\"a\"]]\n", "no option takes an array in an array"},
      {"array-empty", "texts=[]\n", "the array is empty"},
      {"date", "text=1979-05-27\n", "a date has to stand in double quotes"},
      {"nul", std::string("whole=3\0", 8), "this is not TOML"},
      {"nul-escaped", "text=\"a\\u0000\"\n", "the text has a NUL"},
      {"too-large", std::string((1 << 20) + 1, '#'), "more than the limit"},
      {"whole-too-large", "\nwhole=1001\n",
       "options.toml:2: whole: '1001' is not a whole number from 1 to 1000"},
      {"whole-fraction", "whole=1.5\n", "is not a whole number"},
      {"whole-endless", "whole=" + std::string(100'000, '9') + "\n", "this is not TOML"},
      {"whole-twice", "whole=3\nwhole=4\n",
       "options.toml:2: this is not TOML: key-value pair: cannot redefine"},
      {"whole-array", "whole=[3,4]\n", "an array, where one value is needed"},
      {"number-nan", "number=nan\n", "is not a number from 0 to 1"},
      {"number-comma", "number=0,5\n", "this is not TOML"},
      {"number-unseen", "number='" + unseen + "'\n", "is not a number"},
      {"choice-without-quotes", "choice=bytes # no\n", "write choice = \"bytes\""},
      {"choice-unseen", "choice='" + unseen + "'\n", "is not one of"},
      {"flag-word", "flag='perhaps'\n",
       "options.toml:1: flag: 'perhaps' is neither true nor false"},
      {"flag-unseen", "flag='" + unseen + "'\n", "is neither true nor false"},
      {"flag-endless", "flag='" + std::string(100'000, 'x') + "'\n", "is neither true nor false"},
      {"array-without-end", "texts=[\"a\", \"bc\n", "this is not TOML"},
      {"accepted-array-begins-with-bracket-alone", "texts=[\n\"a\"\n]\n", ""},
      {"array-ends-in-comment", "texts=[\"a\" # ]\n", "this is not TOML"},
      {"key-alone", "a\n", "options stand one KEY = VALUE a line"},
      {"help", "help=true\n", "help is for the command line alone"},
      {"another-file", "config=\"/dev/zero\"\n", "config is for the command line alone"},
  };
}

}  // namespace sluice::fuzz
