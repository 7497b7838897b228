#include "models/decoder/generate.h"

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "engine/autograd.h"
#include "engine/rng.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::generate_test {
namespace {

using Ids = std::vector<std::int32_t>;

std::int32_t draw(const Values& logits, const Sampling& sampling, std::uint64_t position) {
  const auto device = make_cpu_device(1 << 20);
  return sluice::draw(
      Tensor::from_host(device, {static_cast<std::int64_t>(logits.size())}, DType::f32, logits),
      sampling, position);
}

/// Returns how often each id occurs in `count` draws.
std::vector<int> histogram(const Values& logits, const Sampling& sampling, int count) {
  std::vector<int> times(logits.size());
  for (int position = 0; position < count; ++position)
    ++times.at(
        static_cast<std::size_t>(draw(logits, sampling, static_cast<std::uint64_t>(position))));
  return times;
}

Values logs(Values probabilities) {
  for (auto& p : probabilities)
    p = std::log(p);
  return probabilities;
}

struct Made {
  DevicePtr device = make_cpu_device();
  TestModel loaded =
      random_model(small_config(), device, DType::f64, 1, ParameterSpace::Use::inference);

  Ids run(const Ids& prompt, const Generation& options,
          const std::function<bool(std::int32_t)>& on_token = {}) const {
    return generate(*loaded.model, device, prompt, options, on_token);
  }

  /// Returns the model's prediction after `window`, computed by its own forward pass.
  std::int32_t best_after(const Ids& window) const {
    const NoGrad no_grad;
    const auto count = static_cast<std::int64_t>(window.size());
    const auto logits =
        loaded.model->logits(loaded.model->hidden(Tensor::from_tokens(device, {1, count}, window)))
            .to_host();
    const auto last = logits.end() - 64;
    return static_cast<std::int32_t>(std::max_element(last, logits.end()) - last);
  }
};

}  // namespace

TEST_CASE("logits that are not finite give no token but an error that says where") {
  const auto refused = [](const Values& logits, const Sampling& sampling) {
    try {
      draw(logits, sampling, 6);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::numerical);
      return std::string(error.what());
    }
    return std::string();
  };
  for (const double temperature : {0.0, 1.0}) {
    CHECK_THAT(refused({1, 2, NAN, INFINITY}, {.temperature = temperature}),
               StartsWith("new token 7: the model's logits are not finite (nan for id 2)"));
    CHECK_THAT(refused({1, INFINITY}, {.temperature = temperature, .prompt = 3}),
               StartsWith("prompt 3, new token 7: ") && Contains("(inf for id 1)"));
    CHECK_THAT(refused({-INFINITY, -INFINITY}, {.temperature = temperature}),
               Contains("(-inf for id 0)"));
    // A token that the tokenizer does not know counts for nothing.
    CHECK(draw(Values{1, -INFINITY, NAN}, {.temperature = temperature, .vocabulary = 2}, 6) == 0);
  }
}

TEST_CASE("temperature 0 takes the largest logit and the smallest id among equals") {
  CHECK(draw(Values{1, 5, 2, 5}, {.temperature = 0}, 0) == 1);
  CHECK(draw(Values{3, 3, 3}, {.temperature = 0}, 9) == 0);
  CHECK(draw(Values{-1e30, -2e30}, {.temperature = 0}, 0) == 0);
  CHECK(draw(Values{7}, {.temperature = 0}, 0) == 0);
  CHECK(draw(Values{1, 5, 2}, {.temperature = 0, .top_k = 1, .top_p = 0.1, .seed = 4}, 3) == 1);
}

TEST_CASE("draws follow the distribution of the logits") {
  const Values p{0.1, 0.2, 0.3, 0.4};
  constexpr int count = 20000;
  const auto times = histogram(logs(p), {.temperature = 1, .seed = 3}, count);
  for (std::size_t i = 0; i < p.size(); ++i) {
    // Five standard deviations: the seed is fixed, so this is not a matter of luck.
    const double bound = 5 * std::sqrt(count * p[i] * (1 - p[i]));
    CHECK(std::abs(times[i] - count * p[i]) < bound);
  }
}

TEST_CASE("temperature raises probabilities to the power 1/T") {
  // Squares of 0.1..0.4, normalised.
  const Values expected{1 / 30.0, 4 / 30.0, 9 / 30.0, 16 / 30.0};
  constexpr int count = 20000;
  const auto times = histogram(logs({0.1, 0.2, 0.3, 0.4}), {.temperature = 0.5, .seed = 8}, count);
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(std::abs(times[i] - count * expected[i]) <
          5 * std::sqrt(count * expected[i] * (1 - expected[i])));
}

TEST_CASE("extreme temperatures and logits stay within the vocabulary") {
  const Values logits{1, 2, 3};
  CHECK(histogram(logits, {.temperature = 1e-12}, 100) == std::vector<int>{0, 0, 100});
  CHECK(histogram(logits, {.temperature = 1e-300}, 100) == std::vector<int>{0, 0, 100});
  const auto flat = histogram(logits, {.temperature = 1e6}, 3000);
  for (const int times : flat)
    CHECK(times > 800);
  const double lowest = -std::numeric_limits<double>::infinity();
  CHECK(histogram({lowest, 0, lowest}, {}, 100) == std::vector<int>{0, 100, 0});
  CHECK(histogram({3e38, -3e38}, {}, 100) == std::vector<int>{100, 0});
}

TEST_CASE("top-k leaves the k largest") {
  const Values logits = logs({0.1, 0.2, 0.3, 0.4});
  CHECK(histogram(logits, {.top_k = 1}, 200) == std::vector<int>{0, 0, 0, 200});
  const auto two = histogram(logits, {.top_k = 2}, 7000);
  CHECK(two[0] + two[1] == 0);
  CHECK(std::abs(two[2] - 3000) < 250);
  CHECK(histogram(logits, {.top_k = 99, .seed = 2}, 500) == histogram(logits, {.seed = 2}, 500));
  // The smaller ids stay among equal logits, as in greedy choice.
  const auto tied = histogram({1, 1, 1, 1}, {.top_k = 2}, 200);
  CHECK(tied[0] + tied[1] == 200);
}

TEST_CASE("top-p leaves the fewest tokens that reach the probability") {
  const Values logits = logs({0.1, 0.2, 0.3, 0.4});
  const auto kept = [&](double top_p) {
    std::set<std::size_t> ids;
    const auto times = histogram(logits, {.top_p = top_p, .seed = 1}, 2000);
    for (std::size_t i = 0; i < times.size(); ++i)
      if (times[i] > 0) ids.insert(i);
    return ids;
  };
  CHECK(kept(0) == std::set<std::size_t>{3});
  CHECK(kept(0.39) == std::set<std::size_t>{3});
  CHECK(kept(0.41) == std::set<std::size_t>{2, 3});
  CHECK(kept(0.69) == std::set<std::size_t>{2, 3});
  CHECK(kept(0.71) == std::set<std::size_t>{1, 2, 3});
  CHECK(kept(1) == std::set<std::size_t>{0, 1, 2, 3});
}

/// The definition: of all tokens in order of their probability.
std::int32_t draw_by_sorting(const Values& logits, const Sampling& sampling, double point) {
  Ids ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::ranges::stable_sort(ids, std::greater(), logit);
  const auto weight = [&, top = logit(ids.front())](std::int32_t id) {
    return std::exp((logit(id) - top) / sampling.temperature);
  };
  if (sampling.top_k > 0)
    ids.resize(std::min(ids.size(), static_cast<std::size_t>(sampling.top_k)));
  double total = 0, kept = 0;
  for (const auto id : ids)
    total += weight(id);
  std::size_t count = 0;
  while (count < ids.size() && (count == 0 || kept < sampling.top_p * total))
    kept += weight(ids[count++]);
  ids.resize(count);
  std::ranges::sort(ids);
  double sum = 0;
  for (const auto id : ids)
    if ((sum += weight(id)) > point * kept) return id;
  return ids.back();
}

TEST_CASE("draws are those of the definition, however few tokens it leaves") {
  Values logits = random_values(3000, 5, 8);
  for (auto& logit : logits)
    logit = static_cast<float>(std::round(logit * 16) / 16);  // ties
  for (const std::int64_t top_k : {0, 1, 2, 63, 64, 65, 200, 2999, 3000, 5000}) {
    for (const double top_p : {0.0, 0.25, 0.75, 0.9375, 1.0}) {
      const Sampling sampling{.temperature = 1.5, .top_k = top_k, .top_p = top_p, .seed = 11};
      for (std::uint64_t position = 0; position < 20; ++position) {
        INFO("top-k " << top_k << " top-p " << top_p << " position " << position);
        const double point =
            static_cast<float>(uniform(random_key(sampling.seed, "sampling"), position));
        CHECK(draw(logits, sampling, position) == draw_by_sorting(logits, sampling, point));
      }
    }
  }
}

TEST_CASE("only the tokens of a smaller vocabulary are drawn") {
  const Values logits{1, 2, 3, 9, 8};
  CHECK(draw(logits, {.temperature = 0, .vocabulary = 3}, 0) == 2);
  for (const Sampling& sampling : {Sampling{.vocabulary = 3},
                                   {.top_k = 2, .vocabulary = 3},
                                   {.top_p = 0.9, .vocabulary = 3}}) {
    const auto times = histogram(logits, sampling, 300);
    CHECK(times[3] + times[4] == 0);
    CHECK(times[1] + times[2] > 200);
  }
  CHECK(histogram(logits, {.seed = 3, .vocabulary = 5}, 500) ==
        histogram(logits, {.seed = 3}, 500));
  CHECK(histogram(logits, {.seed = 3, .vocabulary = 99}, 500) ==
        histogram(logits, {.seed = 3}, 500));
}

TEST_CASE("a draw is a function of seed and position") {
  const Values logits(50, 0.0);
  const auto stream = [&](std::uint64_t seed) {
    Ids ids;
    for (std::uint64_t position = 0; position < 40; ++position)
      ids.push_back(draw(logits, {.seed = seed}, position));
    return ids;
  };
  CHECK(stream(1) == stream(1));
  CHECK(stream(1) != stream(2));
  CHECK(draw(logits, {.seed = 1}, 17) == stream(1)[17]);
}

TEST_CASE("the cache changes nothing, for prompts and continuations of many lengths") {
  const ThreadCount one(1);
  const Made made;
  for (const std::size_t prompt : {1u, 2u, 7u, 15u, 16u, 17u, 40u}) {
    for (const std::int64_t count : {1, 2, 9, 40}) {
      INFO("prompt " << prompt << ", " << count << " new tokens");
      const auto ids = random_ids(prompt, 64, prompt);
      Generation options{.max_tokens = count, .sampling = {.temperature = 0.9, .seed = 3}};
      const auto cached = made.run(ids, options);
      options.positions = 16;  // the whole context
      CHECK(made.run(ids, options) == cached);
      options.use_cache = false;
      CHECK(made.run(ids, options) == cached);
      CHECK(cached.size() == static_cast<std::size_t>(count));
    }
  }
}

TEST_CASE("texts that are generated together are those that each would be alone") {
  const ThreadCount one(1);
  const Made made;
  // Prompts of many lengths, some longer than the context; texts that outgrow it, or end early.
  std::vector<GenerationRequest> requests;
  std::vector<Ids> texts(11), alone;
  std::vector<int> ended(11);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::size_t lengths[] = {1, 5, 16, 40, 2};
    const Generation options{.max_tokens = static_cast<std::int64_t>(i * 5 % 23),
                             .sampling = {.temperature = i % 3 == 0 ? 0 : 0.9, .seed = i}};
    const auto goes_on = [](const Ids& text) { return text.size() < 13 || text.back() % 4 != 0; };
    requests.push_back({.prompt = random_ids(lengths[i % 5], 64, i),
                        .options = options,
                        .on_token =
                            [&, i, goes_on](std::int32_t id) {
                              texts[i].push_back(id);
                              return goes_on(texts[i]);
                            },
                        .on_end = [&, i] { ++ended[i]; }});
    Ids& text = alone.emplace_back();
    made.run(requests[i].prompt, options, [&](std::int32_t id) {
      text.push_back(id);
      return goes_on(text);
    });
  }
  for (const std::size_t at_once : {1u, 2u, 3u, 8u}) {
    CAPTURE(at_once);
    for (Ids& text : texts)
      text.clear();
    ended.assign(texts.size(), 0);
    generate_many(*made.loaded.model, made.device, requests, at_once);
    CHECK(texts == alone);
    CHECK(ended == std::vector<int>(texts.size(), 1));
  }
  requests[4].prompt = {64};
  CHECK_THAT(error_message([&] { generate_many(*made.loaded.model, made.device, requests, 8); }),
             Contains("token 64"));
}

TEST_CASE("a text without a limit ends where its reader ends it") {
  const ThreadCount one(1);
  const Made made;
  Ids text;
  made.run({1, 2}, {.max_tokens = std::numeric_limits<std::int64_t>::max()}, [&](std::int32_t id) {
    text.push_back(id);
    return text.size() < 40;
  });
  CHECK(text == made.run({1, 2}, {.max_tokens = 40}));
}

TEST_CASE("greedy generation is the model's best token each time") {
  const ThreadCount one(1);
  const Made made;
  Ids window = random_ids(4, 64, 2);
  const auto generated = made.run(window, {.max_tokens = 12, .sampling = {.temperature = 0}});
  for (const std::int32_t id : generated) {
    CHECK(id == made.best_after(window));
    window.push_back(id);
  }
}

TEST_CASE("beyond the context, its later half goes on") {
  const ThreadCount one(1);
  const Made made;
  const bool use_cache = GENERATE(true, false);
  Ids window = random_ids(10, 64, 6);
  const auto generated =
      made.run(window, {.max_tokens = 30, .sampling = {.temperature = 0}, .use_cache = use_cache});
  REQUIRE(generated.size() == 30);
  for (const std::int32_t id : generated) {
    if (window.size() > 16) window.erase(window.begin(), window.end() - 8);
    CHECK(id == made.best_after(window));
    window.push_back(id);
  }
}

TEST_CASE("of an odd context the larger half goes on") {
  const ThreadCount one(1);
  auto config = small_config();
  config.n_positions = 15;
  const auto device = make_cpu_device();
  const auto loaded = random_model(config, device, DType::f64, 1, ParameterSpace::Use::inference);
  const Ids prompt = random_ids(15, 64, 6);
  const Generation options{.max_tokens = 4, .sampling = {.temperature = 0}};
  const auto generated = generate(*loaded.model, device, prompt, options);
  // The first token fills the context, so that the second is made after the last eight.
  Ids half(prompt.end() - 7, prompt.end());
  half.push_back(generated.at(0));
  CHECK(generate(*loaded.model, device, half, {.max_tokens = 3, .sampling = {.temperature = 0}}) ==
        Ids(generated.begin() + 1, generated.end()));
}

TEST_CASE("of a prompt longer than the context its end counts") {
  const ThreadCount one(1);
  const Made made;
  const Ids prompt = random_ids(50, 64, 6);
  const Ids end(prompt.end() - 16, prompt.end());
  const Generation options{.max_tokens = 20, .sampling = {.temperature = 0}};
  CHECK(made.run(prompt, options) == made.run(end, options));
}

TEST_CASE("tokens are handed over as they are made, until the receiver has enough") {
  const ThreadCount one(1);
  const Made made;
  Ids seen;
  const auto generated = made.run({1, 2}, {.max_tokens = 9}, [&](std::int32_t id) {
    seen.push_back(id);
    return seen.size() < 4;
  });
  CHECK(seen.size() == 4);
  CHECK(generated == seen);
  CHECK(made.run({1, 2}, {.max_tokens = 0}).empty());
}

TEST_CASE("prompts that are empty or outside the vocabulary are refused") {
  const Made made;
  const auto error = [&](const Ids& prompt) {
    return error_message([&] { made.run(prompt, {.max_tokens = 1}); });
  };
  CHECK_THAT(error({}), Contains("at least one token"));
  CHECK_THAT(error({1, 64}), Contains("64"));
  CHECK_THAT(error({-1}), Contains("-1"));
  CHECK_THAT(error({1, std::numeric_limits<std::int32_t>::min()}), Contains("vocabulary"));
}

TEST_CASE("a context of one token generates") {
  const ThreadCount one(1);
  auto config = small_config();
  config.n_positions = 1;
  const auto device = make_cpu_device();
  const auto loaded = random_model(config, device, DType::f32);
  const bool use_cache = GENERATE(true, false);
  const Ids prompt{3};
  CHECK(generate(*loaded.model, device, prompt, {.max_tokens = 5, .use_cache = use_cache}).size() ==
        5);
}

}  // namespace sluice::test::generate_test
