#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "engine/io/token_file.h"
#include "tests/support/data_folders.h"
#include "tests/support/error_message.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::io_token_file_test {
namespace {

using Catch::Contains;
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
  const TokenFile file(path);
  REQUIRE_NOTHROW(file.check_ids(12));
  REQUIRE_THAT(error_message([&] { file.check_ids(10); }),
               Contains(path.string()) && Contains("position 70000 is 10"));
  REQUIRE_THAT(error_message([&] { file.check_ids(11); }), Contains("position 70001 is 11"));
  REQUIRE_THAT(error_message([&] { file.check_ids(0); }), Contains("position 0 is 9"));
}

TEST_CASE("a token file that shrinks while open is an error", "[io][tokens]") {
  const TempDir dir;
  const auto path = dir.path() / "t.bin";
  write_file(path, std::string(100'000, '\1'));
  const TokenFile file(path);
  std::filesystem::resize_file(path, 10);
  REQUIRE(file[4] == 257);
  REQUIRE_THAT(error_message([&] { file[5]; }), Contains(path.string()) && Contains("truncated"));
  REQUIRE_THAT(error_message([&] { file.check_ids(1000); }), Contains("truncated"));
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
    const TokenFile file(std::filesystem::path(folders[i]) / "odd" / "tokens.bin");
    REQUIRE(file.size() == rows[i].size);
    REQUIRE(file[0] == rows[i].first);
    REQUIRE_NOTHROW(file.check_ids(rows[i].vocabulary));
    REQUIRE_THROWS_AS(file.check_ids(rows[i].first), Error);
  }
}

}  // namespace
}  // namespace sluice::test::io_token_file_test
