#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "engine/io/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/data_folders.h"
#include "tests/support/error_message.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::io_token_file_test {
namespace {

using Ids = std::vector<std::int32_t>;

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string ids_bytes(const std::vector<std::uint16_t>& ids) {
  return bytes_of(ids);
}

std::string llmc_header(std::int32_t version, std::int32_t count) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = 20240520;
  header[1] = version;
  header[2] = count;
  return bytes_of(header);
}

Ids all_of(const TokenFile& file) {
  Ids ids(file.size());
  file.read(0, ids);
  return ids;
}

std::string refusal(const std::filesystem::path& path, std::string_view bytes) {
  write_file(path, bytes);
  return error_message([&] { TokenFile file(path); });
}

TEST_CASE("headerless token files are read", "[io][tokens]") {
  const TempDir dir;
  const auto path = dir.path() / "t.bin";
  write_file(path, std::string("\x01\x00\xFF\xFF\x00\x01", 6));
  const TokenFile file(path);
  REQUIRE(all_of(file) == Ids{1, 65535, 256});
  REQUIRE(file[2] == 256);
  Ids two(2);
  file.read(1, two);
  REQUIRE(two == Ids{65535, 256});
  REQUIRE_NOTHROW(file.read(3, {}));
  REQUIRE_THAT(error_message([&] { file.read(2, two); }),
               Contains(path.string()) && Contains("2 tokens from position 2"));
  REQUIRE_THAT(error_message([&] { file.read(SIZE_MAX, two); }), Contains("but the file has 3"));
  REQUIRE_THROWS_AS(file[3], Error);
}

TEST_CASE("llm.c token files are recognised by their header", "[io][tokens]") {
  const TempDir dir;
  const auto path = dir.path() / "t.bin";
  write_file(path, llmc_header(1, 3) + ids_bytes({5, 0, 50256}));
  REQUIRE(all_of(TokenFile(path)) == Ids{5, 0, 50256});

  SECTION("the two ids of the magic number may occur anywhere but at the start") {
    write_file(path, ids_bytes({7, 55432, 308, 1, 0}));
    REQUIRE(all_of(TokenFile(path)) == Ids{7, 55432, 308, 1, 0});
    write_file(path, ids_bytes({55432, 309}));
    REQUIRE(TokenFile(path).size() == 2);
  }
}

TEST_CASE("unsuitable token files are refused", "[io][tokens]") {
  const TempDir dir;
  const auto path = dir.path() / "bad.bin";
  const std::string three = ids_bytes({1, 2, 3});
  const auto expect_refusal = [&](std::string_view bytes, const char* reason) {
    CHECK_THAT(refusal(path, bytes), Contains(path.string()) && Contains(reason));
  };
  expect_refusal("", "holds no tokens");
  expect_refusal("abc", "3 bytes, an odd number");
  expect_refusal(llmc_header(1, 0), "holds no tokens");
  expect_refusal(llmc_header(1, 2) + three, "claims 2 tokens");
  expect_refusal(llmc_header(1, 4) + three, "claims 4 tokens");
  expect_refusal(llmc_header(1, -3) + three, "claims -3 tokens");
  expect_refusal(llmc_header(1, 3) + three + "x", "7 bytes follow");
  expect_refusal(llmc_header(2, 3) + three, "of version 2");
  expect_refusal(llmc_header(1, 3).substr(0, 1023), "less than");
  expect_refusal(ids_bytes({55432, 308}), "less than");
  CHECK_THAT(error_message([&] { TokenFile file(dir.path()); }), Contains("not a regular file"));
  CHECK_THAT(error_message([&] { TokenFile file(dir.path() / "none.bin"); }),
             Contains("none.bin: No such file"));
}

TEST_CASE("the first id outside the vocabulary is named", "[io][tokens]") {
  const TempDir dir;
  const auto path = dir.path() / "t.bin";
  std::vector<std::uint16_t> ids(100'000, 9);
  ids[70'000] = 10;
  ids[70'001] = 11;
  write_file(path, llmc_header(1, 100'000) + ids_bytes(ids));
  TokenFile file(path);
  REQUIRE_NOTHROW(file.read_all(12));
  REQUIRE_THAT(error_message([&] { file.read_all(10); }),
               Contains(path.string()) && Contains("position 70000 is 10"));
  REQUIRE_THAT(error_message([&] { file.read_all(11); }), Contains("position 70001 is 11"));
  REQUIRE_THAT(error_message([&] { file.read_all(0); }), Contains("position 0 is 9"));
}

TEST_CASE("a token file that shrinks while open is an error", "[io][tokens]") {
  const TempDir dir;
  const auto path = dir.path() / "t.bin";
  write_file(path, std::string(100'000, '\1'));
  TokenFile file(path);
  std::filesystem::resize_file(path, 10);
  REQUIRE(file[4] == 257);
  REQUIRE_THAT(error_message([&] { file[5]; }), Contains(path.string()) && Contains("truncated"));
  REQUIRE_THAT(error_message([&] { file.read_all(1000); }), Contains("truncated"));
}

TEST_CASE("a token that changes while the file is open is an error of each read of its page",
          "[io][tokens]") {
  const TempDir dir;
  const auto path = dir.path() / "t.bin";
  constexpr std::size_t size = 10'001, page = 4096;
  for (const std::size_t header : {0u, 1024u})
    for (const std::size_t at : {std::size_t{0}, page - 1, page, 2 * page + 3, size - 1}) {
      const std::string bytes = header == 0 ? "" : llmc_header(1, size);
      write_file(path, bytes + ids_bytes(std::vector<std::uint16_t>(size, 9)));
      TokenFile file(path);
      file.read_all(12);
      std::string changed = read_file(path);
      changed[header + 2 * at] = 8;  // an id of the vocabulary
      write_file(path, changed);
      CAPTURE(header, at);
      std::size_t wrong = 0, refused = 0;
      for (std::size_t start = 0; start + 7 <= size; start += 7) {
        Ids ids(7);
        const bool touches = at / page >= start / page && at / page <= (start + 6) / page;
        const bool error = error_message([&] { file.read(start, ids); }) != "(no error)";
        wrong += error != touches;
        refused += error;
      }
      CHECK(wrong == 0);
      CHECK(refused > 200);
      Ids page_of_it(1);
      CHECK_THAT(error_message([&] { file.read(at, page_of_it); }),
                 Contains(path.string()) && Contains("changed while it was in use"));
      CHECK_NOTHROW(TokenFile(path).read(at, page_of_it));  // compared with nothing
    }
}

TEST_CASE("the checksum of tokens does not depend on how files divide them", "[io][tokens]") {
  const TempDir dir;
  std::vector<std::uint16_t> ids(40'000);
  std::iota(ids.begin(), ids.end(), std::uint16_t{0});
  const auto sum_of = [&](std::size_t first, std::size_t count, std::uint32_t before) {
    write_file(dir.path() / "t.bin",
               ids_bytes({ids.begin() + static_cast<std::ptrdiff_t>(first),
                          ids.begin() + static_cast<std::ptrdiff_t>(first + count)}));
    return TokenFile(dir.path() / "t.bin").read_all(65536, before);
  };
  const std::uint32_t whole = sum_of(0, ids.size(), 0);
  for (const std::size_t cut : {1u, 4096u, 39'999u})
    CHECK(sum_of(cut, ids.size() - cut, sum_of(0, cut, 0)) == whole);
  ids[20'001] ^= 1;
  CHECK(sum_of(0, ids.size(), 0) != whole);
}

TEST_CASE("written token files are read back", "[io][tokens]") {
  const TempDir dir;
  const auto path = dir.path() / "t.bin";
  Ids ids(100'001);
  std::iota(ids.begin(), ids.end(), 0);
  for (std::int32_t& id : ids)
    id %= 65536;
  TokenFileWriter writer(path);
  for (std::size_t start = 0; start < ids.size(); start += 7001)
    writer.append(std::span(ids).subspan(start, std::min<std::size_t>(7001, ids.size() - start)));
  REQUIRE(writer.size() == ids.size());
  REQUIRE_FALSE(std::filesystem::exists(path));
  writer.finish();
  REQUIRE(all_of(TokenFile(path)) == ids);
  REQUIRE(std::filesystem::file_size(path) == 2 * ids.size());
}

TEST_CASE("a token writer without finish leaves nothing", "[io][tokens]") {
  const TempDir dir;
  const auto path = dir.path() / "t.bin";
  {
    TokenFileWriter writer(path);
    writer.append(Ids(50'000, 1));
    REQUIRE_THAT(error_message([&] {
                   writer.append(Ids{1, 65536});
                 }),
                 Contains(path.string()) && Contains("position 50001 is 65536"));
    REQUIRE_THAT(error_message([&] { writer.append(Ids{-1}); }), Contains("is -1"));
  }
  {
    TokenFileWriter writer(path);
    REQUIRE_THAT(error_message([&] { writer.finish(); }), Contains("there are no tokens"));
  }
  REQUIRE(std::filesystem::is_empty(dir.path()));
}

TEST_CASE("the token files of the fixtures are read", "[io][tokens]") {
  struct Row {
    std::size_t size;
    std::int32_t first, vocabulary;
  };
  const Row rows[] = {{921, 116, 211}, {1200, 242, 1003}};
  const auto folders = test::fixture_folders();
  for (std::size_t i = 0; i < folders.size(); ++i) {
    CAPTURE(folders[i]);
    TokenFile file(std::filesystem::path(folders[i]) / "odd" / "tokens.bin");
    REQUIRE(file.size() == rows[i].size);
    REQUIRE(file[0] == rows[i].first);
    REQUIRE_NOTHROW(file.read_all(rows[i].vocabulary));
    REQUIRE_THROWS_AS(file.read_all(rows[i].first), Error);
  }
}

TEST_CASE("token files of 32-bit ids are llm.c's of Llama 3", "[io][tokens]") {
  const TempDir dir;
  const auto path = dir.path() / "t.bin";
  const Ids ids{0, 65536, 151935, 7, 128000};
  TokenFileWriter writer(path, token_bytes(151936));
  writer.append(std::span(ids).first(2));
  writer.append(std::span(ids).subspan(2));
  writer.finish();
  const std::string bytes = read_file(path);
  REQUIRE(bytes.size() == 1024 + 4 * ids.size());
  std::int32_t header[3];
  std::memcpy(header, bytes.data(), sizeof header);
  CHECK(header[0] == 20240801);
  CHECK(header[1] == 7);
  CHECK(header[2] == 5);
  CHECK(bytes.substr(1024) == bytes_of(ids));
  TokenFile file(path);
  CHECK(file.has_header());
  CHECK(file.id_bytes() == 4);
  CHECK(all_of(file) == ids);
  CHECK(file.read_all(151936) == TokenFile(path).read_all(1 << 20));
  CHECK(all_of(file) == ids);
  CHECK_THAT(error_message([&] { TokenFile(path).read_all(151935); }),
             Contains("position 2 is 151935, but the vocabulary has only 151935 ids"));
  // A change since the file was read is an error.
  std::string changed = bytes;
  changed[1024 + 4] ^= 1;
  write_file(path, changed);
  CHECK_THAT(error_message([&] { all_of(file); }), Contains("the file was changed"));
  // Ids beyond 31 bits are no ids.
  changed.replace(1024, 4, "\xFF\xFF\xFF\xFF");
  write_file(path, changed);
  CHECK_THAT(error_message([&] { TokenFile(path).read_all(1 << 24); }),
             Contains("position 0 is 4294967295"));
  CHECK_THAT(refusal(path, bytes.substr(0, bytes.size() - 2)), Contains("is it truncated?"));
  changed = bytes;
  changed[4] = 1;
  CHECK_THAT(refusal(path, changed), Contains("of version 1; only version 7 can be read"));
  CHECK(token_bytes(65536) == 2);
  CHECK(token_bytes(65537) == 4);
  TokenFileWriter negative(dir.path() / "n.bin", 4);
  CHECK_THAT(error_message([&] { negative.append(Ids{-1}); }), Contains("is -1"));
}

}  // namespace
}  // namespace sluice::test::io_token_file_test
