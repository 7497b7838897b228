#include "engine/io/output.h"

#include <string_view>

#include "engine/io/section_sums.h"
#include "kernels/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::io_output_test {
namespace {

/// CRC-32 bit by bit, from its definition.
std::uint32_t crc32_of_text(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit)
      crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

TEST_CASE("every section of a file has its checksum, however it is written", "[io]") {
  constexpr auto section = static_cast<std::size_t>(SectionSums::section_bytes);
  std::string text(2 * section + 5, 'x');
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<char>(i * 2654435761U >> 24);
  const std::string_view all = text;
  const std::vector<std::uint32_t> expected{crc32_of_text(all.substr(0, section)),
                                            crc32_of_text(all.substr(section, section)),
                                            crc32_of_text(all.substr(2 * section))};
  for (const std::size_t piece : {text.size(), section, section - 1, std::size_t{1000003}}) {
    SectionSums sums;
    for (std::size_t at = 0; at < text.size(); at += piece)
      sums.add(bytes_of(all.substr(at, piece)));
    CHECK(sums.bytes() == text.size());
    CHECK(sums.sums() == expected);
  }
  CHECK(SectionSums().sums().empty());
  CHECK(SectionSums(section, {7}).sums().size() == 1);
  CHECK_THROWS_AS(SectionSums(section + 1, {7}), Error);
  CHECK_THROWS_AS(SectionSums(0, {7}), Error);
}

TEST_CASE("outputs take the bytes of a file", "[io]") {
  const TempDir dir;
  FileOutput file(dir.path() / "file");
  file.write(bytes_of("one "));
  file.write(bytes_of("two"));
  file.finish();
  CHECK(read_file(dir.path() / "file") == "one two");
  std::string memory(7, ' ');
  MemoryOutput output(std::as_writable_bytes(std::span(memory)));
  output.write(bytes_of("one "));
  CHECK_THROWS_AS(output.finish(), Error);
  CHECK_THROWS_AS(output.write(bytes_of("two and more")), Error);
  output.write(bytes_of("two"));
  output.finish();
  CHECK(memory == "one two");
}

}  // namespace sluice::test::io_output_test
