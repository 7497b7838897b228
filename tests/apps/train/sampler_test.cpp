#include "apps/data/tokens/sampler.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "apps/data/document_split.h"
#include "apps/data/tokens/loader.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::sampler_test {
namespace {

using Order = SequenceSampler::Order;

/// The starts of one epoch.
std::vector<std::int64_t> starts(const SequenceSampler& sampler, std::int64_t epoch) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < sampler.epoch(); ++i)
    list.push_back(sampler.start_of(epoch * sampler.epoch() + i));
  return list;
}

/// Tokens that name their own position.
std::unique_ptr<TokenSource> counting_tokens(std::size_t count) {
  std::vector<std::int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return tokens_in_memory(ids);
}

bool same(const Batch& a, const Batch& b) {
  return a.first_sequence == b.first_sequence && a.tokens == b.tokens && a.targets == b.targets;
}

}  // namespace

TEST_CASE("permuted() is a bijection for every count, and another one for another key") {
  for (std::int64_t count = 1; count <= 130; ++count) {
    std::set<std::int64_t> values;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t value = permuted(i, count, 77);
      REQUIRE(value >= 0);
      REQUIRE(value < count);
      values.insert(value);
    }
    REQUIRE(values.size() == static_cast<std::size_t>(count));
  }
  for (const std::int64_t count : {1023, 1024, 1025, 40000}) {
    std::vector<bool> seen(static_cast<std::size_t>(count));
    std::int64_t unmoved = 0, same_as_other_key = 0, follows = 0, before = -2;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t value = permuted(i, count, 1);
      REQUIRE_FALSE(seen.at(static_cast<std::size_t>(value)));
      seen[static_cast<std::size_t>(value)] = true;
      unmoved += value == i;
      same_as_other_key += value == permuted(i, count, 2);
      follows += value == before + 1;
      before = value;
    }
    // A random permutation has one of each on average.
    CHECK(unmoved < 12);
    CHECK(same_as_other_key < 12);
    CHECK(follows < 12);
  }
  // Counts beyond 32 bits are walked, not wrapped.
  const std::int64_t huge = (std::int64_t{1} << 40) + 3;
  CHECK(permuted(huge - 1, huge, 5) < huge);
  CHECK(permuted(5, huge, 5) != permuted(6, huge, 5));
}

TEST_CASE("an epoch of shuffled windows has each one once, side by side") {
  struct Row {
    std::int64_t tokens, batch, seq_len;
  };
  for (const auto& [tokens, batch, seq_len] :
       {Row{1000, 4, 7}, {1001, 1, 10}, {8193, 4, 64}, {58, 2, 23}, {129, 1, 1}}) {
    const SequenceSampler sampler(Order::shuffled, 3, tokens, batch, seq_len);
    for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
      auto list = starts(sampler, epoch);
      std::ranges::sort(list);
      INFO(tokens << " tokens, epoch " << epoch);
      REQUIRE(list.front() >= 0);
      REQUIRE(list.front() < seq_len);
      for (std::size_t i = 1; i < list.size(); ++i)
        REQUIRE(list[i] == list[i - 1] + seq_len);
      // The last window's targets are the data's last token at most.
      REQUIRE(list.back() + seq_len < tokens);
      // No more than the movable border is left out.
      CHECK(tokens - 1 - static_cast<std::int64_t>(list.size()) * seq_len < 2 * seq_len);
    }
  }
}

TEST_CASE("the order is a function of seed and epoch") {
  const SequenceSampler sampler(Order::shuffled, 3, 5000, 4, 16);
  const SequenceSampler again(Order::shuffled, 3, 5000, 4, 16);
  const SequenceSampler other(Order::shuffled, 4, 5000, 4, 16);
  const SequenceSampler other_batch(Order::shuffled, 3, 5000, 9, 16);
  CHECK(starts(sampler, 1) == starts(again, 1));
  CHECK(starts(sampler, 1) == starts(other_batch, 1));
  CHECK(starts(sampler, 1) != starts(other, 1));
  std::set<std::int64_t> offsets;
  for (std::int64_t epoch = 0; epoch < 12; ++epoch) {
    offsets.insert(std::ranges::min(starts(sampler, epoch)));
    for (std::int64_t earlier = 0; earlier < epoch; ++earlier) {
      auto a = starts(sampler, epoch), b = starts(sampler, earlier);
      for (auto* list : {&a, &b}) {
        const auto first = std::ranges::min(*list);
        for (auto& start : *list)
          start -= first;
      }
      CHECK(a != b);
    }
  }
  CHECK(offsets.size() > 4);
}

TEST_CASE(
    "sequential: step k reads tokens from k*B*T on, row b the b-th piece, then from the start") {
  const SequenceSampler sampler(Order::sequential, 99, 8193, 4, 64);
  for (std::int64_t step = 0; step < 32; ++step)
    for (std::int64_t row = 0; row < 4; ++row)
      REQUIRE(sampler.start_of(step * 4 + row) == step * 256 + row * 64);
  CHECK(sampler.epoch() == 128);
  CHECK(sampler.start_of(128) == 0);

  // Only whole batches: the remainder of 5 windows at a batch of 2 is left out.
  const SequenceSampler cut(Order::sequential, 0, 5 * 10 + 1, 2, 10);
  CHECK(cut.epoch() == 4);
  CHECK(cut.start_of(4) == 0);
}

TEST_CASE("the smallest data: one batch and the token after it", "[threads]") {
  for (const Order order : {Order::shuffled, Order::sequential}) {
    for (const std::int64_t seq_len : {1, 5}) {
      const SequenceSampler sampler(order, 1, seq_len + 1, 1, seq_len);
      CHECK(sampler.epoch() == 1);
      for (std::int64_t i = 0; i < 20; ++i)
        CHECK(sampler.start_of(i) == 0);
    }
    CHECK_THAT(error_message([&] { SequenceSampler(order, 1, 20, 4, 5); }),
               Contains("shorter than one batch"));
  }
  // A batch may hold more sequences than an epoch of shuffled windows has.
  const SequenceSampler sampler(Order::shuffled, 1, 21, 4, 5);
  for (std::int64_t i = 0; i < 40; ++i) {
    CHECK(sampler.start_of(i) >= 0);
    CHECK(sampler.start_of(i) + 5 < 21);
  }
}

TEST_CASE("batches have each token's successor as its target", "[threads]") {
  const auto tokens = counting_tokens(1000);
  const Order order = GENERATE(Order::shuffled, Order::sequential);
  const SequenceSampler sampler(order, 5, 1000, 3, 7);
  BatchLoader loader(*tokens, sampler, 3, 7);
  for (std::int64_t step = 0; step < 60; ++step) {
    const Batch batch = loader.batch(step);
    CHECK(batch.first_sequence == step * 3);
    REQUIRE(batch.tokens.size() == 21);
    REQUIRE(batch.targets.size() == 21);
    for (std::size_t i = 0; i < 21; ++i) {
      const auto row = static_cast<std::int64_t>(i / 7);
      REQUIRE(batch.tokens[i] == sampler.start_of(step * 3 + row) + static_cast<int>(i % 7));
      REQUIRE(batch.targets[i] == batch.tokens[i] + 1);
    }
  }
}

TEST_CASE("batches read ahead equal those read at once, in order and out of it", "[threads]") {
  const auto tokens = counting_tokens(3000);
  const SequenceSampler sampler(Order::shuffled, 5, 3000, 4, 11);
  const auto direct = [&](std::int64_t step) {
    return BatchLoader(*tokens, sampler, 4, 11).batch(step);
  };
  BatchLoader loader(*tokens, sampler, 4, 11);
  for (const std::int64_t step : {0, 1, 2, 3, 2, 2, 40, 41, 0, 1, 1000000, 7})
    CHECK(same(loader.batch(step), direct(step)));
}

TEST_CASE("a file read ahead that shrinks is an error of the batch, not the end of the process",
          "[threads]") {
  const TempDir dir;
  const auto file = dir.path() / "t.bin";
  write_tokens(file, 500, 64);
  const auto tokens = open_token_file(file, 64);
  const SequenceSampler sampler(Order::sequential, 0, tokens->size(), 2, 16);
  BatchLoader loader(*tokens, sampler, 2, 16);
  loader.batch(0);
  std::filesystem::resize_file(file, 10);
  CHECK_THAT(error_message([&] {
               for (std::int64_t step = 1; step < 5; ++step)
                 loader.batch(step);
             }),
             Contains("t.bin"));
}

TEST_CASE("the fingerprint changes with the length and with any end of the data") {
  auto ids = random_ids(200000, 64, 1);
  const auto reference = fingerprint(*tokens_in_memory(ids));
  CHECK(fingerprint(*tokens_in_memory(ids)) == reference);
  for (const std::size_t at : {std::size_t{0}, ids.size() / 2 + 1, ids.size() - 1}) {
    ids[at] ^= 1;
    CHECK(fingerprint(*tokens_in_memory(ids)) != reference);
    ids[at] ^= 1;
  }
  ids.pop_back();
  CHECK(fingerprint(*tokens_in_memory(ids)) != reference);
}

TEST_CASE("a border of characters is the last one up to a place") {
  const std::string text = "ab\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80xyz";
  const std::vector<std::size_t> borders{0, 1, 2, 2, 4, 4, 4, 7, 7, 7, 7, 11, 12, 13, 14};
  REQUIRE(borders.size() == text.size() + 1);
  for (std::size_t at = 0; at <= text.size(); ++at)
    CHECK(character_border(text, at) == borders[at]);
}

}  // namespace sluice::test::sampler_test
