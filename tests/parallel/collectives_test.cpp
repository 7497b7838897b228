// Every collective on ranks that are threads, against plain loops, in bits.
#include <atomic>
#include <thread>

#include "parallel/comm/backend/host_backend.h"
#include "tests/parallel/battery.h"
#include "tests/parallel/checked_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"

namespace sluice::test::collectives_test {

namespace {

using Check = void (*)(Communicator&, std::size_t);

/// Groups of several sizes, arrays of several: none, fewer than ranks, around the unit of the
/// parts, and on both sides of where whole exchanges end (16 KiB).
void everywhere(const std::vector<Check>& checks) {
  for (const int ranks : {1, 2, 3, 4, 8})
    check_ranks(ranks, [&](Communicator& c) {
      for (std::int64_t size = 0;
           const std::size_t count : {0U, 1U, 2U, 63U, 64U, 65U, 1000U, 16383U}) {
        for (std::int64_t place = 0; const Check check : checks)
          if (in_form(2, {ranks, size, place++})) check(c, count);
        ++size;
      }
    });
}

}  // namespace

#define SLUICE_ALL_TYPES(check)                                                 \
  {                                                                             \
    &Battery<double>::check, &Battery<float>::check, &Battery<BFloat16>::check, \
        &Battery<Half>::check, &Battery<std::int32_t>::check                    \
  }

TEST_CASE("all_reduce", "[threads]") {
  everywhere(SLUICE_ALL_TYPES(all_reduce));
}
TEST_CASE("reduce to every root", "[threads]") {
  everywhere(SLUICE_ALL_TYPES(reduce));
}
TEST_CASE("reduce_scatter", "[threads]") {
  everywhere(SLUICE_ALL_TYPES(reduce_scatter));
}
TEST_CASE("all_gather", "[threads]") {
  everywhere(SLUICE_ALL_TYPES(all_gather));
}
TEST_CASE("broadcast from every root", "[threads]") {
  everywhere({&Battery<double>::broadcast, &Battery<BFloat16>::broadcast});
}
TEST_CASE("gather and scatter with every root", "[threads]") {
  everywhere({&Battery<float>::gather, &Battery<Half>::gather, &Battery<float>::scatter,
              &Battery<std::int32_t>::scatter});
}
TEST_CASE("ring shifts and exchanges of all with all", "[threads]") {
  everywhere({&Battery<float>::ring_shift, &Battery<BFloat16>::ring_shift,
              &Battery<float>::all_exchange, &Battery<std::int32_t>::all_exchange});
}

TEST_CASE("collectives of a hundred thousand numbers", "[threads]") {
  for (const int ranks : by_form(std::vector{3}, std::vector{2, 3, 8}))
    check_ranks(ranks, [](Communicator& c) {
      Battery<float>::all_reduce(c, 100003);
      Battery<BFloat16>::all_reduce(c, 100003);
      Battery<double>::reduce_scatter(c, 100003);
      Battery<float>::all_gather(c, 100003);
      Battery<float>::broadcast(c, 100003);
      Battery<float>::all_exchange(c, 100003);
    });
}

TEST_CASE("numbers of a type that is not summed are refused, and are moved all the same",
          "[threads]") {
  check_ranks(2, [](Communicator& c) {
    std::vector<std::uint8_t> bytes(100, static_cast<std::uint8_t>(c.rank()));
    c.broadcast(view_of(bytes), 1, {.label = "bytes"})->wait();
    expect(bytes == std::vector<std::uint8_t>(100, 1), "a broadcast of bytes");
  });
  std::vector<std::vector<std::uint8_t>> bytes(2, std::vector<std::uint8_t>(100));
  REQUIRE_THROWS_WITH(on_ranks(2,
                               [&](Communicator& c) {
                                 auto& mine = bytes[static_cast<std::size_t>(c.rank())];
                                 c.all_reduce(view_of(mine), {.label = "bytes"})->wait();
                               }),
                      Contains("u8 cannot be reduced"));
}

TEST_CASE("nobody leaves a barrier before all have come", "[threads]") {
  for (const int ranks : {2, 3, 8}) {
    std::atomic<int> looked = 0, through = 0;
    check_ranks(ranks,
                [&](Communicator& c) {
                  // The last rank comes only when all others have looked often and in vain.
                  if (c.rank() == ranks - 1) {
                    while (looked < ranks - 1)
                      std::this_thread::yield();
                    expect(through == 0, "somebody left a barrier to which not all had come");
                    c.barrier("late")->wait();
                    return;
                  }
                  const Handle barrier = c.barrier("early");
                  for (int i = 0; i < 1000; ++i)
                    through += barrier->done() ? 1 : 0;
                  ++looked;
                  barrier->wait();
                },
                {.name = "unchecked", .timeout = 120, .checked = false});
  }
}

TEST_CASE("collectives that take rounds, on threads", "[threads]") {
  check_ranks(9, [](Communicator& c) {
    for (int i = 0; i < 3; ++i) {
      const auto all = c.gather_values(c.rank() * 10 + i, "gather");
      for (int rank = 0; rank < 9; ++rank)
        expect(all[static_cast<std::size_t>(rank)] == rank * 10 + i, "gather_values");
      std::vector<std::int32_t> largest{c.rank(), -c.rank()};
      c.all_reduce(view_of(largest),
                   {.label = "largest", .op = ReduceOp::maximum, .any_order = true})
          ->wait();
      expect(largest == std::vector<std::int32_t>{8, 0}, "all_reduce in any order");
      c.barrier("barrier")->wait();
    }
  });
}

TEST_CASE("an operation is done without anybody waiting for it", "[threads]") {
  check_ranks(3, [](Communicator& c) {
    auto data = numbers<float>(c.rank(), 30000, 2);
    const Handle first = c.all_reduce(view_of(data), {.label = "not waited for"});
    while (!first->done())
      std::this_thread::yield();
    expect_same(data, reduced<float>(3, 30000, 2), "an all_reduce that was only polled");
    // A handle may be dropped; progress() and waiting for others move what is open.
    data = numbers<float>(c.rank(), 30000, 2);
    static_cast<void>(c.all_reduce(view_of(data), {.label = "dropped"}));
    c.progress();
    for (int i = 0; i < 3; ++i)
      c.gather_values(i, "others meanwhile");
    while (!same_bits(data, reduced<float>(3, 30000, 2)))
      c.progress();
    c.barrier("end")->wait();
  });
}

TEST_CASE("nothing is read from a rank whose operation has failed", "[threads]") {
  std::atomic<bool> failed = false;
  const auto start = [](Communicator& c, std::vector<float>& data) {
    return c.all_gather(view_of(data), equal_parts(1, 2), {.label = "once"});
  };
  check_ranks(2,
              [&](Communicator& c) {
                std::vector<float> data(2, 7.0F);
                if (c.rank() == 1)
                  while (!failed)
                    std::this_thread::yield();
                const Handle gathered = start(c, data);
                bool thrown = false;
                try {
                  gathered->wait();  // rank 0 waits alone
                } catch (const Error&) {
                  thrown = true;
                }
                expect(thrown, "an all_gather of one rank has ended");
                if (c.rank() == 1)
                  expect(data[0] == 7, "a number came from a rank that had given up");
                if (c.rank() == 0) {
                  data.assign(2, -1.0F);  // as freed memory may be
                  failed = true;
                  thrown = false;
                  try {
                    gathered->wait();
                  } catch (const Error&) {
                    thrown = true;
                  }
                  expect(thrown, "a failed operation can be waited for again");
                }
              },
              {.name = "test", .timeout = 0.3, .checked = false});
}

TEST_CASE("a planned communicator stands for all its ranks") {
  const auto planned = Communicator::planned(4, 0);
  CHECK(planned->size() == 4);
  CHECK(planned->rank() == 0);
  CHECK(planned->backend() == "none");
  std::vector<float> data{1, 2, 3};
  planned->all_reduce(view_of(data), {.label = "nothing is summed"})->wait();
  CHECK(data == std::vector<float>{1, 2, 3});
  CHECK(planned->gather_values(7, "seven") == std::vector<int>{7, 7, 7, 7});
  CHECK(planned->share_text("text", 0, "text") == "text");
  // Its memory may be none at all.
  planned->reduce_scatter(View(nullptr, DType::f32, {100}), even_parts(100, 4), {})->wait();
  planned->barrier("")->wait();
}

TEST_CASE("a single rank needs no transport") {
  Communicator alone(std::shared_ptr<Transport>(make_self_transport()), nullptr, patient());
  CHECK(alone.size() == 1);
  for (const std::size_t count : {0U, 5U, 20000U}) {
    Battery<float>::all_reduce(alone, count);
    Battery<float>::reduce(alone, count);
    Battery<float>::reduce_scatter(alone, count);
    Battery<float>::all_gather(alone, count);
    Battery<float>::broadcast(alone, count);
    Battery<float>::gather(alone, count);
    Battery<float>::scatter(alone, count);
  }
  alone.barrier("alone")->wait();
  check_values(alone);
  check_split(alone);
}

}  // namespace sluice::test::collectives_test
