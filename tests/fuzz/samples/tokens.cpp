#include <cstdint>

#include "tests/fuzz/samples.h"

namespace sluice::fuzz {
namespace {

/// Numbers as they lie in a file, least significant byte first.
template <class Number>
std::string little_endian(std::initializer_list<Number> numbers) {
  std::string bytes;
  for (const Number number : numbers)
    for (std::size_t i = 0; i < sizeof(Number); ++i)
      bytes.push_back(static_cast<char>(static_cast<std::uint64_t>(number) >> 8 * i & 0xFF));
  return bytes;
}

std::string ids(std::initializer_list<std::uint16_t> numbers) {
  return little_endian(numbers);
}

/// llm.c's header.
std::string header(std::int32_t version, std::int32_t count) {
  std::string bytes = little_endian<std::int32_t>({20240520, version, count});
  bytes.resize(1024);
  return bytes;
}

}  // namespace

Samples tokens_samples() {
  return {
      {"accepted", ids({1, 0, 50256}), ""},
      {"accepted-header", header(1, 3) + ids({5, 0, 50256}), ""},
      {"accepted-half-of-the-magic", ids({55432, 309}), ""},
      {"accepted-magic-in-the-middle", ids({7, 55432, 308}), ""},
      {"accepted-long", std::string(70'000, '\1'), ""},
      {"empty", "", "holds no tokens"},
      {"one-byte", "a", "an odd number"},
      {"odd-size", "abc", "an odd number"},
      {"header-without-tokens", header(1, 0), "holds no tokens"},
      {"header-count-too-low", header(1, 2) + ids({1, 2, 3}), "claims 2 tokens"},
      {"header-count-too-high", header(1, 4) + ids({1, 2, 3}), "claims 4 tokens"},
      {"header-count-negative", header(1, -3) + ids({1, 2, 3}), "claims -3 tokens"},
      {"header-count-2-to-31", header(1, INT32_MIN) + ids({1}), "claims -2147483648 tokens"},
      {"header-odd-body", header(1, 1) + "abc", "3 bytes follow"},
      {"header-other-version", header(2, 1) + ids({1}), "of version 2"},
      {"header-cut", header(1, 1).substr(0, 1023), "less than that"},
      {"header-only-magic", ids({55432, 308}), "less than that"},
      {"id-over-the-vocabulary", ids({1, 65535}), "position 1 is 65535"},
  };
}

}  // namespace sluice::fuzz
