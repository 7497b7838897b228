#include <algorithm>
#include <optional>
#include <regex>

#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/training/planning.h"

// The planner keeps to its budgets, tells the truth when it refuses, and can be told its own
// answer.

namespace sluice::test::planner_test {
namespace {

const PlanRow rows[] = {
    {small_shape + " --precision bf16", ""},
    {small_shape + " --precision bf16", " --stream-chunks 3000*2"},
    {small_shape + " --precision bf16", " --placement offload-state --micro-batch 4"},
    {small_shape + " --precision bf16",
     " --placement offload-state:gelu --state-layout split --gradients fp32 --stream-chunks "
     "3000*7"},
    {small_shape + " --precision bf16 --seq-len 20 --sample-tokens 0", " --state-layout split"},
    {small_shape + " --precision fp32", " --placement auto:gelu"},
    {odd_shape + " --precision fp16", ""},
    {odd_shape + " --precision bf16", " --placement resident"},
    {odd_shape + " --precision bf16", " --placement auto:gelu+ln --gradients fp32"},
    {"--n-layer 3 --n-head 2 --n-embd 128 --vocab-size 300 --context 64 --batch-size 6 "
     "--precision fp32 --sample-tokens 0",
     ""},
    {"--n-layer 1 --n-head 1 --n-embd 96 --vocab-size 50 --context 16 --batch-size 12 "
     "--precision bf16 --optimizer sgd",
     ""},
    {small_shape + " --precision bf16", " --placement auto:block+host"},
    {odd_shape + " --precision fp32", " --placement resident:block+host*3,resident:block"},
    {small_shape + " --precision fp32", "", false},
    {odd_shape + " --precision bf16", "", false},
};

/// Layers that differ, and layouts that do not stream: their plans are found again to the byte.
const PlanRow exact_rows[] = {
    {small_shape + " --precision bf16", ""},
    {small_shape + " --precision fp32", " --placement auto:block*2,auto:gelu"},
    {odd_shape + " --precision bf16", " --placement auto:gelu+ln*3,auto:none --gradients fp32"},
    {odd_shape + " --precision bf16", "", false},
};

/// Returns true if all layers recompute the same.
bool alike(const MemoryChoice& choice) {
  return choice.placement.count(choice.placement.blocks[0].recompute) == choice.layers();
}

}  // namespace

TEST_CASE("every plan fits the budgets, and planning again gives the same", "[planner]") {
  int fitted = 0;
  for (const PlanRow& row : rows)
    for_budgets(row, [&](const MemoryBytes& allowed) {
      const std::string flags = row.flags() + budget(allowed.device, allowed.host, row.gpu);
      try {
        const Planned planned = plan(flags, row.gpu);
        ++fitted;
        const auto fits = [&](const Plan& one) {
          const MemoryBytes need = need_of(one, row.gpu);
          return need.device <= allowed.device && (!row.gpu || need.host <= allowed.host);
        };
        CHECK(fits(planned.chosen));
        for (const Plan& other : planned.others)
          CHECK(fits(other));
        const Planned again = plan(flags, row.gpu);
        CHECK(same(again.chosen, planned.chosen));
        REQUIRE(again.others.size() == planned.others.size());
        for (std::size_t i = 0; i < again.others.size(); ++i)
          CHECK(same(again.others[i], planned.others[i]));
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::usage);
      }
    });
  CHECK(fitted > by_form(15, 40));
}

TEST_CASE("on a GPU, the vocabulary head takes the largest chunk that fits", "[planner]") {
  const std::string shape =
      "--n-layer 1 --n-head 1 --n-embd 64 --vocab-size 960 --context 512 --batch-size 24 "
      "--micro-batch 24 --precision bf16 --placement resident:none --sample-tokens 0";
  const auto head = [](const Plan& plan) {
    return plan.memory.by_use[static_cast<std::size_t>(MemoryUse::head)];
  };
  const auto at = [&](std::size_t device) {
    return plan(shape + budget(device, std::size_t{1} << 30, true), true).chosen;
  };
  const Plan roomy = at(std::size_t{1} << 30);
  CHECK(roomy.choice.head_chunk == 8192);
  CHECK(head(roomy) == 8192 * 960 * 4);
  CHECK_THAT(to_flags(roomy.choice), Contains(" --head-chunk 8192"));
  std::vector<std::int64_t> chunks{8192};
  double seconds = roomy.time.total();
  for (Plan last = roomy; last.choice.head_chunk > 1024;) {
    last = at(need_of(last, true).device - 1);
    chunks.push_back(last.choice.head_chunk);
    CHECK(last.time.total() > std::exchange(seconds, last.time.total()));
  }
  CHECK(chunks == std::vector<std::int64_t>{8192, 4096, 2048, 1024});

  const auto told = [&](const std::string& flags, bool gpu = true) {
    return plan(shape + flags + budget(std::size_t{1} << 30, std::size_t{1} << 30, gpu), gpu)
        .chosen;
  };
  CHECK(told(" --head-chunk 100").choice.head_chunk == 100);
  CHECK(told(" --head-chunk 100").memory.peak < roomy.memory.peak);
  CHECK(told(" --head-chunk 8192").memory.peak == roomy.memory.peak);
  CHECK(told("", false).choice.head_chunk == 1024);
  // A rank with another part of the model may have less memory left.
  CHECK(told(" --pp 1 --pipeline gpipe").choice.head_chunk == 1024);
}

TEST_CASE("no chunk of the vocabulary head is larger than the tokens", "[planner]") {
  const auto chunk = [](const std::string& tokens) {
    return plan(
               "--n-layer 1 --n-head 1 --n-embd 64 --vocab-size 99 --batch-size 1 "
               "--gpu-memory 1GiB --host-memory 1GiB --context " +
                   tokens,
               true)
        .chosen.choice.head_chunk;
  };
  CHECK(chunk("1024") == 1024);
  CHECK(chunk("1025") == 2048);
  CHECK(chunk("2048") == 2048);
  CHECK(chunk("4097") == 8192);
}

TEST_CASE("what a plan needs is enough for it, and one byte less is not", "[planner]") {
  int checked = 0;
  for (const PlanRow& row : rows)
    for_budgets(row, [&](const MemoryBytes& allowed) {
      std::optional<Planned> planned;
      try {
        planned = plan(row.flags() + budget(allowed.device, allowed.host, row.gpu), row.gpu);
      } catch (const Error&) {
        return;
      }
      if (!alike(planned->chosen.choice)) return;
      ++checked;
      const MemoryBytes need = need_of(planned->chosen, row.gpu);
      CAPTURE(to_flags(planned->chosen.choice));
      // The planner is free: it finds the same, or with less, another.
      CHECK(same(plan(row.flags() + budget(need.device, need.host, row.gpu), row.gpu).chosen,
                 planned->chosen));
      try {
        const Planned less =
            plan(row.flags() + budget(need.device - 1, need.host, row.gpu), row.gpu);
        CHECK_FALSE(same(less.chosen, planned->chosen));
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::usage);
      }
      // It is told: the same, or a refusal that knows the byte.
      const std::string told = row.shape + " " + to_flags(planned->chosen.choice);
      CHECK(same(plan(told + budget(need.device, need.host, row.gpu), row.gpu).chosen,
                 planned->chosen));
      CHECK_THAT(
          error_message([&] { plan(told + budget(need.device - 1, need.host, row.gpu), row.gpu); }),
          Contains(" 1 too many"));
      if (planned->chosen.memory.host > 0)
        CHECK_THAT(error_message(
                       [&] { plan(told + budget(need.device, need.host - 1, row.gpu), row.gpu); }),
                   Contains(" 1 too many"));
    });
  CHECK(checked > by_form(15, 40));
}

TEST_CASE("a refusal says how many bytes are too many and what would do", "[planner]") {
  int refused = 0, for_host = 0;
  for (const PlanRow& row : rows)
    for_budgets(row, [&](const MemoryBytes& allowed) {
      std::string flags = row.flags() + budget(allowed.device, allowed.host, row.gpu);
      const std::string message = error_message([&] { plan(flags, row.gpu); });
      if (message == "(no error)") return;
      ++refused;
      INFO(message);
      const std::regex too_many(
          "(\\d+) bytes of [^;]*, (\\d+) too many; "
          "(--gpu-memory|--host-memory) (\\S+) would do");
      int found = 0;
      for (std::sregex_iterator at(message.begin(), message.end(), too_many), end; at != end;
           ++at, ++found) {
        const bool device = !row.gpu || (*at)[3] == "--gpu-memory";
        for_host += !device;
        const std::size_t reserve =
            device && row.gpu ? machine(true).context : machine(row.gpu).process;
        const std::size_t limit = device ? allowed.device : allowed.host;
        if (limit >= reserve)
          CHECK(std::stoull((*at)[1]) + reserve == std::stoull((*at)[2]) + limit);
        flags += " " + std::string((*at)[3]) + " " + std::string((*at)[4]);
      }
      REQUIRE(found > 0);
      // The planner finds a plan with the budgets that the message names.
      INFO(flags);
      CHECK(error_message([&] { plan(flags, row.gpu); }) == "(no error)");
      // The plan that the message names is one with those budgets.
      const std::regex nearest("nearest that training comes to fitting is (.*?): \\d+ bytes");
      std::smatch match;
      REQUIRE(std::regex_search(message, match, nearest));
      CHECK(error_message([&] { plan(flags + " " + std::string(match[1]), row.gpu); }) ==
            "(no error)");
    });
  CHECK(refused > by_form(5, 20));
  CHECK(for_host > by_form(0, 2));
}

TEST_CASE("where memory is short inputs rest on the host, and fewer chunks are on their way",
          "[planner]") {
  const std::string fixed = small_shape +
                            " --precision bf16 --micro-batch 4 --state-layout split --gradients "
                            "fp32 --host-memory 1GiB";
  const auto needs = [&](const std::string& more) {
    return need_of(plan(fixed + " --gpu-memory 1GiB " + more, true).chosen, true).device;
  };
  const auto flags_in = [&](std::size_t device) {
    return to_flags(
        plan(fixed + " --placement offload-state --gpu-memory " + std::to_string(device), true)
            .chosen.choice);
  };
  const std::size_t here = needs("--placement offload-state:block --stream-chunks 4194304*4");
  const std::size_t resting =
      needs("--placement offload-state:block+host --stream-chunks 4194304*4");
  const std::size_t least = needs("--placement offload-state:block+host --stream-chunks 4194304*2");
  REQUIRE(resting < here);
  REQUIRE(least < resting);
  CHECK_THAT(flags_in(here), !Contains("block+host"));
  CHECK_THAT(flags_in(resting) + " ", Contains("block+host") || Contains("*2 "));
  CHECK_THAT(flags_in(least) + " ", Contains("block+host") && Contains("*2 "));
  CHECK_THAT(error_message([&] { flags_in(least - 1); }), Contains(" 1 too many"));
}

TEST_CASE("what fits is found behind many ways that nearly do", "[planner]") {
  const auto found = plan(
      "--model gpt2-xl --gpu-memory 20GiB --host-memory 64GiB --batch-size 1 --seq-len 256 "
      "--precision bf16 --state-layout split --gradients fp32 --sample-tokens 0",
      true);
  CHECK(found.chosen.choice.layout == StateLayout::split);
}

TEST_CASE("flags that leave no way are refused with one that is there", "[planner]") {
  const PlanRow& row = rows[0];
  const Planned free = plan(row.flags() + budget(1 << 30, 1 << 30, true), true);
  const MemoryBytes most = need_of(free.chosen, true);
  const std::string allowed = budget(most.device * 6 / 10, most.host + (8 << 20), true);
  REQUIRE(error_message([&] { plan(row.flags() + allowed, true); }) == "(no error)");
  const std::string message = error_message(
      [&] { plan(row.flags() + " --micro-batch 8 --placement resident:none" + allowed, true); });
  INFO(message);
  const std::regex advice("in the budget as it is: (.*)$");
  std::smatch match;
  REQUIRE(std::regex_search(message, match, advice));
  CHECK(error_message([&] { plan(row.flags() + allowed + " " + std::string(match[1]), true); }) ==
        "(no error)");
}

TEST_CASE("state is rounded only where nothing exact fits", "[planner]") {
  const PlanRow& row = rows[0];
  bool rounded = false;
  for_budgets(
      row,
      [&](const MemoryBytes& allowed) {
        const std::string limits = budget(allowed.device, allowed.host, true);
        try {
          const MemoryChoice choice = plan(row.flags() + limits, true).chosen.choice;
          const bool exact =
              choice.layout == StateLayout::split || choice.layout == StateLayout::fp32;
          if (exact && !choice.narrow_gradients) return;
          rounded = true;
          CHECK(error_message([&] {
                  plan(row.flags() + limits + " --state-layout split --gradients fp32", true);
                }) != "(no error)");
        } catch (const Error&) {
        }
      },
      true);
  CHECK(rounded);
}

TEST_CASE("a plan whose layers differ is found again at exactly what it needs", "[planner]") {
  for (const PlanRow& row : exact_rows)
    for_budgets(row, [&](const MemoryBytes& allowed) {
      std::optional<Planned> planned;
      try {
        planned = plan(row.flags() + budget(allowed.device, allowed.host, row.gpu), row.gpu);
      } catch (const Error&) {
        return;
      }
      const MemoryBytes need = need_of(planned->chosen, row.gpu);
      const std::string told = row.shape + " " + to_flags(planned->chosen.choice);
      CAPTURE(told, need.device, need.host);
      CHECK(error_message([&] { plan(told + budget(need.device, need.host, row.gpu), row.gpu); }) ==
            "(no error)");
      CHECK_THAT(
          error_message([&] { plan(told + budget(need.device - 1, need.host, row.gpu), row.gpu); }),
          Contains(" 1 too many"));
    });
}

TEST_CASE("a plan's flags say how its state is cut, also where none of it streams", "[planner]") {
  const std::string shape = odd_shape + " --precision bf16";
  const std::string wide = budget(1 << 30, 1 << 30, true);
  const Plan asked = plan(shape + " --stream-chunks 3001 --placement resident" + wide, true).chosen;
  const Plan told = plan(shape + " " + to_flags(asked.choice) + wide, true).chosen;
  CHECK(told.memory.high_water == asked.memory.high_water);
}

TEST_CASE("a budget below what the driver takes is short by all of the difference", "[planner]") {
  const DeviceProfile profile = machine(true);
  const std::size_t allowed = profile.context / 2;
  const std::string told = small_shape +
                           " --precision bf16 --micro-batch 1 --placement offload-state:block " +
                           "--state-layout split --gradients fp32 --stream-chunks 4194304*4";
  const MemoryBytes need = need_of(plan(told + budget(1 << 30, 1 << 30, true), true).chosen, true);
  CHECK_THAT(error_message([&] { plan(told + budget(allowed, 1 << 30, true), true); }),
             Contains(" " + std::to_string(need.device - allowed) + " too many"));
}

TEST_CASE("a host budget below what the process takes is refused", "[planner]") {
  const std::string told = small_shape + " --precision bf16";
  CHECK_THAT(error_message([&] { plan(told + budget(1 << 30, 3 << 19, true), true); }),
             Contains("--host-memory"));
}

}  // namespace sluice::test::planner_test
