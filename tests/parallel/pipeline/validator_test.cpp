#include "parallel/pipeline/validator.h"

#include <algorithm>

#include "parallel/pipeline/schedule_text.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"

namespace sluice::test::validator_test {
namespace {

/// `rows` as in rows_of(), with as many stages and micro-batches as there are in it.
Schedule from_rows(std::string rows) {
  std::replace(rows.begin(), rows.end(), '|', '\n');
  return schedule_from_csv(rows);
}

std::string refusal(const Schedule& schedule) {
  return error_message([&] { validate(schedule); });
}
std::string refusal(const std::string& rows) {
  return refusal(from_rows(rows));
}

// Two ranks and two micro-batches that run; what is wrong is changed in them.
const std::string first = "0F0,0RECV_B0,0SEND_F0,0F1,0SEND_F1,0B0,0RECV_B1,0B1|";
const std::string second = "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1|";

std::string changed(std::string rows, const std::string& from, const std::string& to) {
  const auto at = rows.find(from);
  REQUIRE(at != std::string::npos);
  return rows.replace(at, from.size(), to);
}

TEST_CASE("a schedule that runs says what it needs", "[pipeline]") {
  const ScheduleFacts facts = validate(from_rows(first + second));
  CHECK(facts.live == std::vector<int>{2, 1});
  CHECK(facts.received == std::vector<int>{1, 1});
  // All receives first: more memory, the same order.
  const ScheduleFacts early =
      validate(from_rows("0RECV_B0,0RECV_B1,0F0,0SEND_F0,0F1,0SEND_F1,0B0,0B1|" + second));
  CHECK(early.received == std::vector<int>{2, 1});
}

TEST_CASE("weight gradients follow their backward, each once and in order", "[pipeline]") {
  const std::string rows = "0F0,0F1,0B0,0B1,0W0,0W1|";
  CHECK(validate(from_rows(rows)).live == std::vector<int>{2});
  CHECK(validate(from_rows("0F0,0B0,0W0,0F1,0B1,0W1|")).live == std::vector<int>{1});
  CHECK(refusal(changed(rows, ",0W1", "")) ==
        "0W1 is missing on rank 0\n  rank 0: 0F0 0F1 0B0 --> 0B1 0W0");
  CHECK_THAT(refusal(changed(rows, "0W1", "0W0")), Contains("0W0 is there twice"));
  CHECK_THAT(refusal("0F0,0F1,0B0,0W1,0B1,0W0|"), Contains("0W1 comes before 0B1, which it needs"));
  CHECK_THAT(refusal("0F0,0F1,0B0,0B1,0W1,0W0|"),
             Contains("0W0 comes after 0W1: gradients are added in ascending order"));
}

TEST_CASE("stages are on one rank each", "[pipeline]") {
  CHECK(refusal("0F0,1F0,0B0|1B0|") ==
        "stage 1 is on rank 0 and on rank 1\n"
        "  rank 0: 0F0 --> 1F0 0B0\n"
        "  rank 1: --> 1B0");
  CHECK(refusal("0F0,0B0|2F0,2B0|") == "stage 1 is on no rank");
  CHECK(refusal("0F0,0B0|,|") == "rank 1 has no stage");
  CHECK(refusal("0F0,65535B65535|") == "stage 1 is on no rank");
  CHECK(refusal(Schedule{.stages = 2147483647, .micro_batches = 2147483647, .ranks = {}}) ==
        "stage 0 is on no rank");
  CHECK(refusal(Schedule{.stages = 0}) ==
        "a schedule of 0 stages and 1 micro-batches does nothing");
  CHECK(refusal(Schedule{.stages = 1, .micro_batches = -1}) ==
        "a schedule of 1 stages and -1 micro-batches does nothing");
}

TEST_CASE("every stage and micro-batch goes forward and backward once", "[pipeline]") {
  CHECK(refusal("0F0,0F1,0B0,0B1,0F2|") ==
        "0B2 is missing on rank 0\n  rank 0: 0F0 0F1 0B0 0B1 --> 0F2");
  CHECK(refusal("0F0,0B0,0B1|") == "0F1 is missing on rank 0\n  rank 0: 0F0 0B0 --> 0B1");
  CHECK(refusal("0F1,0B0,0B1|") == "0F0 is missing on rank 0\n  rank 0: 0F1 --> 0B0 0B1");
  CHECK(refusal("0F0,0B0,0F0,0B1,0F1|") ==
        "0F0 is there twice\n  rank 0: --> 0F0 0B0 0F0 0B1 0F1\n"
        "  rank 0: 0F0 0B0 --> 0F0 0B1 0F1");
  CHECK(refusal("0F0,0F0,0B1,0B1|").find("0F0 is there twice\n") ==
        0);  // as many as there should be
  CHECK(refusal("0F0,0F1,0B1,0B1|").find("0B1 is there twice\n") == 0);
  CHECK(refusal("0F0,0B65535|").find("0F1 is missing on rank 0\n") == 0);
}

TEST_CASE("actions are of stages and micro-batches that exist", "[pipeline]") {
  Schedule schedule = from_rows("0F0,0F1,0B0,0B1|");
  schedule.micro_batches = 1;
  CHECK(refusal(schedule) ==
        "there is no micro-batch 1: the schedule has 1\n  rank 0: 0F0 --> 0F1 0B0 0B1");
  schedule = from_rows("0F0,1F0,1B0,0B0|");
  schedule.stages = 1;
  CHECK(refusal(schedule) ==
        "there is no stage 1: the schedule has 1\n  rank 0: 0F0 --> 1F0 1B0 0B0");
  schedule.ranks[0][1].stage = -1;
  CHECK(refusal(schedule).find("there is no stage -1: ") == 0);
  schedule.ranks[0][1] = {Action::Kind::forward, 0, -1};
  CHECK(refusal(schedule).find("there is no micro-batch -1: ") == 0);
}

TEST_CASE("a rank computes in the order of what is needed", "[pipeline]") {
  CHECK(refusal("0B0,0F0|") ==
        "0B0 comes before 0F0, which it needs\n  rank 0: --> 0B0 0F0\n  rank 0: 0B0 --> 0F0");
  CHECK(refusal("1F0,0F0,1B0,0B0|").find("1F0 comes before 0F0, which it needs\n") == 0);
  CHECK(refusal("0F0,1F0,0B0,1B0|").find("0B0 comes before 1B0, which it needs\n") == 0);
}

TEST_CASE("gradients are added in ascending order", "[pipeline]") {
  CHECK(refusal("0F0,0F1,0B1,0B0|") ==
        "0B0 comes after 0B1: gradients are added in ascending order of the micro-batches\n"
        "  rank 0: 0F0 0F1 0B1 --> 0B0");
  CHECK(refusal("0F1,0F0,0B0,0B1|") == "(no error)");  // of the forwards any order does
}

TEST_CASE("what is needed of another rank is received in time", "[pipeline]") {
  CHECK(refusal(first + changed(second, "1RECV_F1,", "")) ==
        "1RECV_F1 is missing: 1F1 needs it from rank 0\n"
        "  rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 --> 1F1 1B1 1SEND_B1");
  CHECK(refusal(changed(first, "0RECV_B1,", "") + second)
            .find("0RECV_B1 is missing: 0B1 needs it from rank 1\n") == 0);
  CHECK(refusal(first + changed(second, "1RECV_F0,1F0", "1F0,1RECV_F0")) ==
        "1RECV_F0 is too late for 1F0\n"
        "  rank 1: --> 1F0 1RECV_F0 1RECV_F1 1B0 1SEND_B0 ...\n"
        "  rank 1: 1F0 --> 1RECV_F0 1RECV_F1 1B0 1SEND_B0 1F1 ...");
  CHECK(refusal(first + "1RECV_F0," + second).find("1RECV_F0 is there twice\n") == 0);
}

TEST_CASE("what another rank needs is sent", "[pipeline]") {
  CHECK(refusal(changed(first, ",0SEND_F1", "") + second) ==
        "0SEND_F1 is missing: rank 1 needs what 0F1 computes\n"
        "  rank 0: 0F0 0RECV_B0 0SEND_F0 --> 0F1 0B0 0RECV_B1 0B1");
  CHECK(refusal(first + changed(second, ",1SEND_B1", ""))
            .find("1SEND_B1 is missing: rank 0 needs what 1B1 computes\n") == 0);
  CHECK(refusal(changed(first, "0F1,0SEND_F1", "0SEND_F1,0F1") + second)
            .find("0SEND_F1 comes before 0F1, which computes it\n") == 0);
  CHECK(refusal(changed(first, "0SEND_F1", "0SEND_F1,0SEND_F1") + second)
            .find("0SEND_F1 is there twice\n") == 0);
}

TEST_CASE("messages have two sides", "[pipeline]") {
  CHECK(refusal("0F0,0SEND_F0,1F0,1B0,0B0|") ==
        "0SEND_F0 has no other side: no stage on another rank has a part in it\n"
        "  rank 0: 0F0 --> 0SEND_F0 1F0 1B0 0B0");
  for (const std::string odd : {"0RECV_F0", "0SEND_B0"})
    CHECK(refusal(odd + "," + first + second).find(odd + " has no other side: ") == 0);
  for (const std::string odd : {"1SEND_F0", "1RECV_B1"})
    CHECK(refusal(first + odd + "," + second).find(odd + " has no other side: ") == 0);
}

TEST_CASE("messages between two stages keep their order", "[pipeline]") {
  CHECK(refusal("0F0,0RECV_B0,0SEND_F0,0F1,0SEND_F1,0B0,0RECV_B1,0B1|"
                "1RECV_F1,1RECV_F0,1F1,1F0,1B0,1SEND_B0,1B1,1SEND_B1|") ==
        "rank 1 posts 1RECV_F0 after the receive of 0SEND_F1, but rank 0 sends it first\n"
        "  rank 1: 1RECV_F1 --> 1RECV_F0 1F1 1F0 1B0 1SEND_B0 ...\n"
        "  rank 0: 0F0 0RECV_B0 --> 0SEND_F0 0F1 0SEND_F1 0B0 0RECV_B1 ...");
  CHECK(refusal("0F0,0SEND_F0,0F1,0RECV_B1,0RECV_B0,0SEND_F1,0B0,0B1|" + second)
            .find("rank 0 posts 0RECV_B0 after the receive of 1SEND_B1, but rank 1") == 0);
}

TEST_CASE("ranks that wait for one another are found", "[pipeline]") {
  // Rank 1 wants last first.
  CHECK(refusal("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0F2,0SEND_F2,0RECV_B1,0B0,0RECV_B2,0B1,0B2|"
                "1RECV_F2,1RECV_F1,1F2,1RECV_F0,1F1,1F0,1B0,1SEND_B0,1B1,1SEND_B1,1B2,1SEND_B2|") ==
        "deadlock: rank 0 waits in 0SEND_F0 for rank 1, which waits in 1F2 for rank 0\n"
        "  rank 0: 0F0 --> 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0F2 ...\n"
        "  rank 1: 1RECV_F2 1RECV_F1 --> 1F2 1RECV_F0 1F1 1F0 1B0 ...");
  // Both send before either has memory: where messages are buffered they would run.
  CHECK(refusal("0F0,0RECV_B0,0SEND_F0,0F1,0SEND_F1,0B0,0RECV_B1,0B1|"
                "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1|") == "(no error)");
  CHECK(refusal("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1|"
                "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1|") ==
        "deadlock: rank 0 waits in 0SEND_F1 for rank 1, which waits in 1SEND_B0 for rank 0\n"
        "  rank 0: 0F0 0SEND_F0 0F1 --> 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n"
        "  rank 1: 1RECV_F0 1F0 1B0 --> 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1");
}

TEST_CASE("receives posted after the send before them would not do", "[pipeline]") {
  Schedule schedule = lower(interleaved(2, 2, 4));
  CHECK(refusal(schedule) == "(no error)");
  for (auto& row : schedule.ranks)
    for (std::size_t i = 1; i < row.size(); ++i) {
      const bool receives = row[i - 1].kind == Action::Kind::receive_input ||
                            row[i - 1].kind == Action::Kind::receive_gradient;
      const bool sends =
          row[i].kind == Action::Kind::send_output || row[i].kind == Action::Kind::send_gradient;
      if (receives && sends) std::swap(row[i - 1], row[i]);
    }
  CHECK(refusal(schedule).find("deadlock: rank 0 waits in 2SEND_B0 for rank 1, which waits in "
                               "3SEND_B1 for rank 0\n") == 0);
}

TEST_CASE("a rank outside of the circle is not blamed", "[pipeline]") {
  const std::string message = refusal(
      "0F0,0RECV_B0,0SEND_F0,0F1,0RECV_B1,0SEND_F1,0B0,0B1|"
      "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,1RECV_B0,1B0,1SEND_B0,1RECV_B1,1B1,1SEND_B1|"
      "2RECV_F0,2F0,2B0,2SEND_B0,2RECV_F1,2F1,2B1,2SEND_B1|");
  CHECK(message.find("deadlock: rank 1 waits in 1SEND_F1 for rank 2, which waits in 2SEND_B0 for "
                     "rank 1\n  rank 1: ") == 0);
  CHECK(message.find("rank 0") == std::string::npos);
}

TEST_CASE("a circle begins with its first rank", "[pipeline]") {
  const std::string message = refusal(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1|"
      "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0,1RECV_F1,1F1,1SEND_F1,1RECV_B1,1B1,1SEND_B1|"
      "2RECV_F0,2F0,2B0,2SEND_B0,2RECV_F1,2F1,2B1,2SEND_B1|");
  CHECK(message.find("deadlock: rank 0 waits in 0SEND_F1 for rank 1, which waits in 1SEND_B0 for "
                     "rank 0\n  rank 0: ") == 0);
  CHECK(message.find("rank 2") == std::string::npos);
}

TEST_CASE("a long circle is shown in part", "[pipeline]") {
  Schedule schedule = interleaved(12, 2, 1);
  for (auto& row : schedule.ranks)
    std::swap(row[0], row[1]);  // the later stage first: its input comes from round the circle
  const std::string message = refusal(lower(schedule));
  CHECK(message.find("deadlock: rank 0 waits in 12F0 for rank 11, which waits in 23F0 for rank 10, "
                     "which waits in 22F0 for rank 9, ") == 0);
  CHECK(message.find(" for rank 4, and so on round 12 ranks\n") != std::string::npos);
  CHECK(std::count(message.begin(), message.end(), '\n') == 8);
}

TEST_CASE("what a rank may hold is limited", "[pipeline]") {
  const Schedule schedule = lower(one_forward_one_backward(3, 8));
  CHECK(validate(schedule, 3).live == std::vector<int>{3, 2, 1});
  CHECK(error_message([&] { validate(schedule, 2); }) ==
        "rank 0 holds more than 2 micro-batches for backward\n"
        "  rank 0: ... 0SEND_F0 0F1 0RECV_B0 0SEND_F1 --> 0F2 0SEND_F2 0B0 0RECV_B1 0F3 ...");
  try {
    validate(schedule, 0);
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
  }
}

}  // namespace
}  // namespace sluice::test::validator_test
