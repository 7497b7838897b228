#include "tests/fuzz/samples.h"

namespace sluice::fuzz {

Samples number_samples() {
  return {
      {"accepted-bytes", "4194304", ""},
      {"accepted-gib", "11GiB", ""},
      {"accepted-fraction", "1.5GB", ""},
      {"accepted-exponent", "1e9", ""},
      {"accepted-most", "1024TiB", ""},
      {"empty", "", "is not a size"},
      {"text", "x", "is not a size"},
      {"accepted-letters", "11GIB", ""},
      {"accepted-space", "11 GiB", ""},
      {"unknown-unit", "11GiBs", "is not a size"},
      {"two-spaces", "11  GiB", "is not a size"},
      {"two-units", "11GiBGiB", "is not a size"},
      {"hexadecimal", "0x100000", "is not a size"},
      {"plus", "+4194304", "is not a size"},
      {"negative", "-4194304", "it must be from"},
      {"nan", "nan", "it must be from"},
      {"infinite", "inf", "it must be from"},
      {"overflow", "1e999", "is not a size"},
      {"unit-overflows", "1e308TiB", "it must be from"},
      {"too-small", "1000", "it must be from"},
      {"too-large", "1025TiB", "it must be from"},
      {"2-to-64", "18446744073709551616", "it must be from"},
      {"endless", std::string(100'000, '9'), "is not a size"},
      {"control-characters", "1\n\x01\x7F", "is not a size"},
      {"not-utf8", "1\xFF", "is not a size"},
  };
}

}  // namespace sluice::fuzz
