#include "parallel/pipeline/schedule_text.h"

#include "tests/parallel/pipeline/all_schedules.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"

namespace sluice::test::schedule_text_test {
namespace {

using Kind = Action::Kind;

std::string refusal(const std::string& text) {
  return error_message([&] { schedule_from_csv(text); });
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

TEST_CASE("cells of a schedule", "[pipeline]") {
  const std::vector<Action> row{{Kind::forward, 0, 3},       {Kind::backward, 0, 3},
                                {Kind::send_output, 0, 3},   {Kind::receive_input, 1, 3},
                                {Kind::send_gradient, 1, 3}, {Kind::receive_gradient, 0, 3}};
  const Schedule schedule{.stages = 2, .micro_batches = 4, .ranks = {row}};
  CHECK(to_csv(schedule) == "0F3,0B3,0SEND_F3,1RECV_F3,1SEND_B3,0RECV_B3\n");
  CHECK(schedule_from_csv(to_csv(schedule)) == schedule);
}

TEST_CASE("schedules are read as they were written", "[pipeline]") {
  for (const int ranks : {1, 2, 3, 8, 16})
    for (const int micro_batches : {1, 2, 7, 16, 100})
      for (const auto& [name, schedule] : all_schedules(ranks, micro_batches)) {
        INFO(name << " of " << ranks << " ranks and " << micro_batches << " micro-batches");
        CHECK(schedule_from_csv(to_csv(schedule)) == schedule);
        const Schedule lowered = lower(schedule);
        CHECK(schedule_from_csv(to_csv(lowered)) == lowered);
      }
  const Schedule idle{.ranks = {{}, {{Kind::forward, 0, 0}}, {}}};
  CHECK(to_csv(idle) == ",\n0F0\n,\n");
  CHECK(schedule_from_csv(to_csv(idle)) == idle);
}

TEST_CASE("schedules are read as people write them", "[pipeline]") {
  const Schedule wanted = gpipe(2, 1);
  for (const std::string text :
       {"0F0,0B0\n1F0,1B0", "0F0,0B0\r\n1F0,1B0\r\n", " 0F0 ,\t0B0\t\n1F0, 1B0 \n\n \r\n\n",
        "# made by hand\n0F0,0B0\n  # the last rank\n1F0,1B0\n", "0F0,,,0B0,\n,1F0,1B0,,\n",
        "\n\n0F0,0B0\n1F0,1B0\n# end\n",
        "\xef\xbb\xbf"
        "0F0,0B0\n1F0,1B0\n"}) {
    INFO(text);
    CHECK(schedule_from_csv(text) == wanted);
  }
}

TEST_CASE("malformed cells are named", "[pipeline]") {
  for (const std::string cell :
       {"F0",   "0F",      "0",       "FF",       "0f0",      "0X0",     "0F0x",      "x0F0",
        "0 F0", "0F 0",    "-1F0",    "0F-1",     "+0F0",     "00F0",    "0F00",      "0F01",
        "0FF0", "0SENDF0", "0SEND_0", "0SEND_X0", "0send_F0", "0RECV_F", "0RECV_F_0", "SEND_F0",
        "0V0",  "0F0;0B0", "0F0.0",   "1e3F0",    "\"0F0\"",  "0F0#",    "0F0B0"}) {
    INFO(cell);
    CHECK(refusal("# first\n0F0,0B0\n1F0, " + cell + " ,1B0\n") ==
          "schedule, line 3, column 2: '" + cell +
              "' is not an action such as 0F3, 0B3, 0W3, 0SEND_F3 or 1RECV_F3");
  }
  CHECK(refusal("0F0,\x01\xff\x7f\n").find("line 1, column 2: '\?\?\?' is not") !=
        std::string::npos);
  CHECK(refusal(std::string("0F\0", 3)).find("'0F?' is not") != std::string::npos);
  CHECK(refusal("0F0\r,0B0\n").find("column 1: '0F0?' is not") != std::string::npos);
  CHECK(refusal(std::string(1000, '7') + "\n").find("'" + std::string(40, '7') + "'... is not") !=
        std::string::npos);
}

TEST_CASE("sizes of a schedule that is read are limited", "[pipeline]") {
  CHECK(refusal("0F0,65536F0\n") == "schedule, line 1, column 2: '65536F0' has a stage over 65535");
  CHECK(refusal("0F65536\n") ==
        "schedule, line 1, column 1: '0F65536' has a micro-batch over 65535");
  for (const std::string large : {"2147483648", "4294967296", "18446744073709551616",
                                  "99999999999999999999999999999999999"}) {
    CHECK(refusal(large + "F0\n").find("has a stage over 65535") != std::string::npos);
    CHECK(refusal("0B" + large + "\n").find("has a micro-batch over 65535") != std::string::npos);
  }
  const Schedule largest = schedule_from_csv("65535F65535\n");
  CHECK(largest.stages == 65536);
  CHECK(largest.micro_batches == 65536);
  std::string rows;
  for (int rank = 0; rank < max_ranks; ++rank)
    rows += std::to_string(rank) + "F0\n";
  CHECK(schedule_from_csv(rows).ranks.size() == static_cast<std::size_t>(max_ranks));
  CHECK(refusal(rows + "4096F0\n") == "schedule, line 4097: more than 4096 ranks");
}

TEST_CASE("files without a schedule are refused", "[pipeline]") {
  for (const std::string empty : {"", "\n\n", "# nothing\n", "\xef\xbb\xbf", "  \r\n"})
    CHECK(refusal(empty).find("the schedule has no rows") == 0);
  CHECK(refusal(",\n") == "the schedule has no actions");
  CHECK(refusal("0F0\n\n\n# here\n1F0\n") ==
        "schedule, line 2: blank, but line 5 goes on: a rank without actions is a row of two "
        "empty cells");
}

TEST_CASE("a grid shows who waits", "[pipeline]") {
  CHECK(to_grid(one_forward_one_backward(3, 3)) ==
        "rank 0 |F0 F1 F2             B0---    B1---    B2---\n"
        "rank 1 |   F0 F1       B0--- F2 B1---    B2---\n"
        "rank 2 |      F0 B0--- F1 B1--- F2 B2---\n");
  CHECK(to_grid(lower(gpipe(2, 2)), {.backward = 1}) ==
        "rank 0 |F0 F1       B0 B1\n"
        "rank 1 |   F0 F1 B0 B1\n");
  CHECK(to_grid(interleaved(2, 2, 2)) ==
        "rank 0 |0F0 0F1 2F0 2F1         2B0----     2B1---- 0B0---- 0B1----\n"
        "rank 1 |    1F0 1F1 3F0 3B0---- 3F1 3B1---- 1B0---- 1B1----\n");
}

TEST_CASE("a long grid is cut", "[pipeline]") {
  CHECK(to_grid(gpipe(2, 12), {.width = 30}) ==
        "rank 0 |F0  F1  F2  F3  F4 ...\n"
        "rank 1 |    F0  F1  F2  F3 ...\n");
  const std::string grid = to_grid(one_forward_one_backward(12, 4000), {.width = 61});
  std::size_t lines = 0;
  for (std::size_t at = 0; at < grid.size(); ++lines) {
    const auto end = grid.find('\n', at);
    CHECK(end - at == 61);
    CHECK(grid.substr(end - 3, 3) == "...");
    at = end + 1;
  }
  CHECK(lines == 12);
  CHECK(grid.find("rank 11 |") != std::string::npos);
  CHECK(error_message([] { to_grid(gpipe(1, 1), {.width = 19}); }).find("20 characters") !=
        std::string::npos);
  CHECK(error_message([] { to_grid(gpipe(1, 1), {.forward = 0}); }).find("one slot") !=
        std::string::npos);
  CHECK(error_message([] { to_grid(schedule_from_csv("0B0,0F0\n")); }).find("cannot run") !=
        std::string::npos);
}

TEST_CASE("a backward in two parts is drawn as two actions", "[pipeline]") {
  const Schedule schedule = zero_bubble_h1(2, 3);
  CHECK(to_grid(schedule) ==
        "rank 0 |F0 F1    B0 W0 F2 B1 W1 B2 W2\n"
        "rank 1 |   F0 B0 F1 B1 W0 F2 B2 W1 W2\n");
  CHECK(schedule_from_csv(to_csv(schedule)) == schedule);
  CHECK(error_message([&] { to_grid(schedule, {.backward = 1}); }).find("two slots") !=
        std::string::npos);
  const auto run = simulate(schedule, std::vector<StageCosts>(2));
  const std::string svg = to_svg(lower(schedule), run, "zb-h1");
  for (const std::string colour : {"hsl(210,70%,78%)", "hsl(30,70%,78%)", "hsl(130,70%,78%)"})
    CHECK(count(svg, colour) == 6);
}

TEST_CASE("a picture has a bar for everything computed", "[pipeline]") {
  const Schedule schedule = interleaved(2, 2, 2);
  const auto run = simulate(schedule, std::vector<StageCosts>(4));
  const std::string svg = to_svg(lower(schedule), run, "a < b & c");
  CHECK(svg.find("<svg ") == 0);
  CHECK(svg.substr(svg.size() - 7) == "</svg>\n");
  CHECK(svg.find(">a &lt; b &amp; c: bubble 20.0 %</text>") != std::string::npos);
  CHECK(count(svg, "<rect ") == 1 + 16);  // with the ground
  for (const std::string colour :
       {"hsl(210,70%,78%)", "hsl(210,70%,50%)", "hsl(30,70%,78%)", "hsl(30,70%,50%)"})
    CHECK(count(svg, colour) == 4);
  CHECK(count(svg, ">rank 0</text>") == 1);
  CHECK(count(svg, ">rank 1</text>") == 1);
  const auto height_of = [&](const std::string& label) {
    const std::size_t end = svg.find(">" + label + "</text>"), at = svg.rfind(" y=\"", end);
    return std::stoi(svg.substr(at + 4));
  };
  const auto bar_at = [&](int rank) {
    std::size_t at = svg.find("<rect ") + 1;  // the ground
    for (int bar = 0; bar <= 8 * rank; ++bar)
      at = svg.find("<rect ", at + 1);
    return std::stoi(svg.substr(svg.find(" y=\"", at) + 4));
  };
  CHECK(height_of("rank 1") - height_of("rank 0") == bar_at(1) - bar_at(0));
  CHECK(bar_at(1) > bar_at(0));
  CHECK(count(svg, ">0</text>") == 8 + 1);  // the axis has a 0 too
  CHECK(count(svg, ">1</text>") == 8);
  CHECK(count(svg, ">14</text>") == 1);  // of 15 units of time, every second is marked
  CHECK(count(svg, ">16</text>") == 0);
  CHECK(count(svg, "<text ") == count(svg, "</text>"));
  // The first backward of rank 1 begins after 4 of 15 units and takes two.
  CHECK(svg.find("<rect x=\"362.67\" y=\"70\" width=\"149.33\" height=\"24\" fill=\"hsl(30") !=
        std::string::npos);
}

TEST_CASE("a picture without room leaves numbers out", "[pipeline]") {
  const Schedule schedule = gpipe(2, 1000);
  const auto run = simulate(schedule, std::vector<StageCosts>(2));
  const std::string svg = to_svg(schedule, run, "long");
  CHECK(count(svg, "<rect ") == 1 + 4000);
  CHECK(count(svg, ">999</text>") == 0);
  CHECK(error_message([&] { to_svg(gpipe(3, 1), run, ""); }) ==
        "a schedule of 3 ranks and a simulation of 2");
  const auto nothing = simulate(gpipe(1, 1), {{.forward = 0, .backward = 0}});
  CHECK(to_svg(gpipe(1, 1), nothing, "none").find("nan") == std::string::npos);
}

}  // namespace
}  // namespace sluice::test::schedule_text_test
