#include <algorithm>
#include <cmath>

#include "kernels/embedding.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_parity.h"

namespace sluice::test::embedding_test {
namespace {

struct Sizes {
  std::int64_t batch, length, vocabulary, width;
  std::int64_t first_position = 0;

  std::int64_t tokens() const { return batch * length; }
  std::int64_t positions() const { return first_position + length + 2; }
};
constexpr Sizes all_sizes[] = {{1, 1, 1, 1},         {1, 5, 7, 3},    {2, 7, 5, 8, 3},
                               {3, 33, 50, 33},      {1, 70, 11, 48}, {5, 7, 300, 64, 9},
                               {2, 35, 100, 100},    {2, 5, 13, 768}, {1, 3, 4, 1600},
                               {2, 3, 70000, 33, 1}, {1, 5, 3, 2050}};
constexpr Parity::Offsets both_offsets[] = {{0, 0}, {1, 1}};

/// Small vocabularies repeat their tokens; the first and the last token occur.
Values tokens_of(const Sizes& s, std::uint64_t seed = 5) {
  Values tokens = random_values(s.tokens(), seed);
  for (auto& token : tokens)
    token = std::floor((token + 1) / 2 * static_cast<double>(s.vocabulary));
  tokens.front() = static_cast<double>(s.vocabulary - 1);
  tokens.back() = 0;
  return tokens;
}

struct Wanted {
  bool tokens = true, positions = true;
};

/// Rows of the token table that a rank has, of those in Sizes, and the token that counts as none.
struct Rows {
  std::int64_t first, count;
  std::int64_t padding = -1;
};

void backward_case(const CudaDevices& devices, DType dtype, const Sizes& s, const Values& tokens,
                   Parity::Offsets offsets, Wanted wanted, Rows rows) {
  CAPTURE(name_of(dtype), s.batch, s.length, s.vocabulary, s.width, s.first_position, offsets.read,
          wanted.tokens, wanted.positions, rows.first, rows.count);
  Parity parity(devices, offsets);
  const auto ids = parity.input("tokens", DType::i32, {s.batch, s.length}, tokens);
  const auto grad_out = parity.input("grad_out", dtype, {s.batch, s.length, s.width});
  const auto by_token = parity.state("grad_token_table", DType::f32, {rows.count, s.width},
                                     random_values(rows.count * s.width, 11), 0.0);
  const auto by_position = parity.state("grad_position_table", DType::f32, {s.positions(), s.width},
                                        random_values(s.positions() * s.width, 12), 0.0);
  parity.compare([=](const Parity::Views& at, Stream stream) {
    run(EmbeddingBackward{.grad_token_table = wanted.tokens ? at[by_token] : View{},
                          .grad_position_table = wanted.positions ? at[by_position] : View{},
                          .grad_out = at[grad_out],
                          .tokens = at[ids],
                          .first_position = s.first_position,
                          .first_row = rows.first,
                          .padding = rows.padding},
        stream);
  });
}

void backward_case(const CudaDevices& devices, DType dtype, const Sizes& s, const Values& tokens,
                   Parity::Offsets offsets, Wanted wanted) {
  backward_case(devices, dtype, s, tokens, offsets, wanted, {0, s.vocabulary});
}

}  // namespace

TEST_CASE("cuda: embedding is the CPU's, bit for bit", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes) {
    for (const auto& s : all_sizes) {
      for (const auto offsets : all_offsets) {
        CAPTURE(name_of(dtype), s.batch, s.length, s.vocabulary, s.width, offsets.read,
                offsets.written);
        Parity parity(devices, offsets);
        const auto tokens = parity.input("tokens", DType::i32, {s.batch, s.length}, tokens_of(s));
        // A table of 70000 rows would be most of the test's time.
        if (s.vocabulary > 1000 && offsets.read != offsets.written) continue;
        const auto by_token = parity.input("token_table", dtype, {s.vocabulary, s.width});
        const auto by_position = parity.input("position_table", dtype, {s.positions(), s.width});
        const auto out = parity.output("out", dtype, {s.batch, s.length, s.width}, 0.0);
        parity.compare([=](const Parity::Views& at, Stream stream) {
          run(EmbeddingForward{.out = at[out],
                               .tokens = at[tokens],
                               .token_table = at[by_token],
                               .position_table = at[by_position],
                               .first_position = s.first_position},
              stream);
        });
      }
    }
  }
}

TEST_CASE("cuda: embedding backward", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes)
    for (const auto& s : all_sizes)
      for (const auto offsets : both_offsets)
        if (s.vocabulary <= 1000) backward_case(devices, dtype, s, tokens_of(s), offsets, {});
}

TEST_CASE("cuda: embedding of a part of the rows is the CPU's, bit for bit", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  constexpr Rows parts[] = {{0, 3}, {3, 2}, {5, 2}, {0, 7, 3}, {3, 2, 4}, {3, 2, 1}};
  for (const DType dtype : cuda_dtypes) {
    for (const std::int64_t width : {33, 64}) {
      for (const auto offsets : both_offsets) {
        for (const auto rows : parts) {
          const Sizes s{3, 33, 7, width, 2};
          const bool positions = rows.first == 0;  // of one rank
          CAPTURE(name_of(dtype), width, offsets.read, rows.first);
          Parity parity(devices, offsets);
          const auto tokens = parity.input("tokens", DType::i32, {s.batch, s.length}, tokens_of(s));
          const auto by_token = parity.input("token_table", dtype, {rows.count, s.width});
          const auto by_position = parity.input("position_table", dtype, {s.positions(), s.width});
          const auto out = parity.output("out", dtype, {s.batch, s.length, s.width}, 0.0);
          parity.compare([=](const Parity::Views& at, Stream stream) {
            run(EmbeddingForward{.out = at[out],
                                 .tokens = at[tokens],
                                 .token_table = at[by_token],
                                 .position_table = positions ? at[by_position] : View{},
                                 .first_position = s.first_position,
                                 .first_row = rows.first},
                stream);
          });
          backward_case(devices, dtype, s, tokens_of(s), offsets, {}, rows);
        }
      }
    }
  }
}

TEST_CASE("cuda: embedding backward of a large vocabulary", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  const Sizes s{4, 100, 50257, 3};
  backward_case(devices, DType::f32, s, tokens_of(s), {0, 0}, {});
}

TEST_CASE("cuda: embedding backward of one table alone, or of none", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  for (const DType dtype : cuda_dtypes) {
    for (const auto wanted : {Wanted{true, false}, Wanted{false, true}, Wanted{false, false}}) {
      const Sizes s{3, 33, 50, 33, 2};
      backward_case(devices, dtype, s, tokens_of(s), {0, 0}, wanted);
    }
  }
}

TEST_CASE("cuda: embedding backward of tokens that occur thousands of times", "[cuda]") {
  const CudaDevices devices;
  if (!devices) return;
  const Sizes s{9, 600, 40, 33};
  for (const DType dtype : cuda_dtypes) {
    Values tokens = tokens_of(s);
    // 2 x 2048 and some of one, 700 of its neighbour, all others seldom.
    std::fill_n(tokens.begin() + 100, 4200, 17.0);
    std::fill_n(tokens.begin() + 4400, 700, 18.0);
    backward_case(devices, dtype, s, tokens, {0, 0}, {});
    backward_case(devices, dtype, s, tokens, {0, 0}, {}, {12, 6});
    backward_case(devices, dtype, s, Values(tokens.size(), 39.0), {1, 1}, {true, false});
  }
  // Exactly the numbers at which pieces of a bucket could begin and end.
  for (const std::int64_t occurrences : {2047, 2048, 2049}) {
    CAPTURE(occurrences);
    const Sizes exact{1, occurrences, 3, 8};
    backward_case(devices, DType::f32, exact, Values(static_cast<std::size_t>(occurrences), 1.0),
                  {0, 0}, {true, false});
  }
}

}  // namespace sluice::test::embedding_test
