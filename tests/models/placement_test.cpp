#include "models/decoder/placement.h"

#include "kernels/base/error.h"
#include "tests/support/catch.h"

// Tests --placement's text; tests/apps/plan and tests/apps/programs test what it does.

namespace sluice::test::placement_test {
namespace {

using enum Recompute;
using enum Residency;
using Places = std::vector<Residency>;
using Modes = std::vector<Recompute>;

}  // namespace

TEST_CASE("a placement text stands for one place and one mode a block", "[placement]") {
  const auto places = [](const std::string& text, std::int64_t layers) {
    return parse_placement(text, layers).residency.value_or(Places());
  };
  const auto modes = [](const std::string& text, std::int64_t layers) {
    return parse_placement(text, layers).recompute.value_or(Modes());
  };
  CHECK(places("resident", 2) == Places{device, device});
  CHECK(places("resident*1,offload-state*1,speculative*1,offload-optimizer", 5) ==
        Places{device, streamed, speculative, cpu, cpu});
  CHECK(places("resident*1,offload-all*2", 3) == Places{device, Residency::host, Residency::host});
  CHECK(places("auto:none", 2).empty());
  CHECK(places("", 2).empty());
  CHECK(modes("resident", 2).empty());
  CHECK(modes("auto:gelu+ln", 3) == Modes(3, gelu_ln));
  CHECK(modes("auto:block*2,auto:gelu+ln", 3) == Modes{block, block, gelu_ln});
  CHECK(modes("resident:none*1,offload-state:block+host*2,offload-state:gelu", 4) ==
        Modes{none, block_on_host, block_on_host, gelu});
  CHECK(places("resident:none*1,offload-state:block+host*2,offload-state:gelu", 4) ==
        Places{device, streamed, streamed, streamed});
  CHECK(parse_placement("offload-all,offload-embeddings", 2).offload_embeddings);
  CHECK(parse_placement("resident*1,offload-all*1,offload-embeddings", 2).offload_embeddings);
  CHECK_FALSE(parse_placement("offload-all", 2).offload_embeddings);
}

TEST_CASE("the text of a placement is the shortest that is read as it", "[placement]") {
  for (const char* text :
       {"resident:none", "offload-state:gelu*2,offload-state:none",
        "resident:none*1,offload-state:none*1,offload-state:block*1,offload-optimizer:block",
        "resident:gelu+ln*3,offload-all:gelu+ln,offload-embeddings"}) {
    const PlacementRequest read = parse_placement(text, 4);
    ModelPlacement placement{.offload_embeddings = read.offload_embeddings};
    placement.set_residency(*read.residency);
    placement.set_recompute(*read.recompute);
    CHECK(to_string(placement) == text);
  }
  ModelPlacement placement{.blocks = {{}, {.residency = cpu}, {.residency = cpu}}};
  placement.blocks[0].recompute = gelu_ln;
  CHECK(recompute_text(placement) == "1 gelu+ln, 2 none");
}

TEST_CASE("a placement text that makes no sense is refused with what is allowed", "[placement]") {
  const std::pair<const char*, const char*> cases[] = {
      {",resident", "an item is empty"},
      {"resident*2,", "an item is empty"},
      {"*2,resident", "an item is empty"},
      {"gpu", "\"gpu\" is no PLACE"},
      {"Resident", "\"Resident\" is no PLACE"},
      {"resident ", "\"resident \" is no PLACE"},
      {"block", "\"block\" is no PLACE"},
      {"resident:", "\"\" is no RECOMPUTE"},
      {"resident:blok", "\"blok\" is no RECOMPUTE"},
      {"resident*5,offload-all", "\"5\" blocks where 4 are left"},
      {"resident*2,offload-all*3", "where 2 are left"},
      {"resident*0,offload-all", "\"0\" blocks"},
      {"resident*-1,offload-all", "\"-1\" blocks"},
      {"resident*,offload-all", "\"\" blocks"},
      {"resident*2x,offload-all", "\"2x\" blocks"},
      {"resident*99999999999999999999,offload-all", "99999"},
      {"resident,offload-all", "has no *COUNT"},
      {"resident*2", "it is about 2 blocks"},
      {"resident*4,offload-all", "no block is left for \"offload-all\""},
      {"auto*2,resident", "a PLACE for 2 of the blocks only"},
      {"resident:gelu*1,resident", "a RECOMPUTE for 1 of the blocks only"},
      {"offload-all*2,resident", "the order is resident, offload-state, "},
      {"offload-optimizer*2,offload-state", "the order is resident, offload-state, "},
      {"resident,offload-embeddings", "of which blocks are offload-all"},
      {"offload-embeddings", "is no PLACE"}};
  for (const auto& [text, why] : cases) {
    CAPTURE(text);
    try {
      parse_placement(text, 4);
      FAIL_CHECK("accepted");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      for (const std::string& part :
           {"--placement \"" + std::string(text) + "\"", std::string(why), std::string("4 blocks")})
        CHECK_THAT(error.what(), Contains(part));
    }
  }
}

}  // namespace sluice::test::placement_test
