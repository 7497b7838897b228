#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/checkpoint/save_cadence.h"
#include "models/decoder/parallelize.h"
#include "models/decoder/placement.h"
#include "models/text/tokenizer.h"
#include "parallel/flight_recorder/injection.h"
#include "tests/fuzz/harness.h"

namespace sluice::fuzz {
namespace {

constexpr std::int64_t layers = 12;
constexpr int stages = 4;

void read_placement(const std::string& text) {
  const PlacementRequest read = parse_placement(text, layers);
  if (!read.residency || !read.recompute) return;
  ModelPlacement placement{.offload_embeddings = read.offload_embeddings};
  placement.set_residency(*read.residency);
  placement.set_recompute(*read.recompute);
  const PlacementRequest again = parse_placement(to_string(placement), layers);
  require(again.residency == read.residency && again.recompute == read.recompute &&
              again.offload_embeddings == read.offload_embeddings,
          "a placement differs once written");
}

void read_split(const std::string& text) {
  const DecoderConfig config{.n_layer = layers};
  const auto parts = split_blocks(config, stages, parse_block_split(text));
  require(parts.size() == stages, "not a part for each stage");
  std::int64_t covered = 0;
  std::vector<std::int64_t> blocks;
  for (const DecoderPart& part : parts) {
    require(part.first == covered && part.last > part.first, "the parts do not follow");
    blocks.push_back(part.last - part.first);
    covered = part.last;
  }
  require(covered == layers, "blocks are left");
  const auto again =
      split_blocks(config, stages, parse_block_split(fmt::format("{}", fmt::join(blocks, ","))));
  for (std::size_t i = 0; i < again.size(); ++i)
    require(again[i].first == parts[i].first && again[i].last == parts[i].last,
            "a split differs once written");
}

void read_fault(const std::string& text) {
  const Injection fault = parse_injection(text);
  if (text.empty()) return require(fault.kind == Injection::Kind::none, "a fault out of nothing");
  require(fault.kind != Injection::Kind::none && fault.kind <= Injection::Kind::slow,
          "a kind of fault that there is not");
  require(fault.rank >= 0 && fault.operation <= 1u << 30, "a fault out of range");
  const std::string kind = text.substr(text.find("kind=") + 5);
  const Injection again = parse_injection(fmt::format("op={},rank={},kind={}", fault.operation,
                                                      fault.rank, kind.substr(0, kind.find(','))));
  require(
      again.rank == fault.rank && again.operation == fault.operation && again.kind == fault.kind,
      "a fault differs once written");
}

void read_ids(const std::string& text) {
  const auto ids = parse_token_ids(text);
  require(ids.size() <= text.size() / 2 + 1, "more ids than there is text");
  for (const std::int32_t id : ids)
    require(id >= 0, "a negative token id");
  require(parse_token_ids(fmt::format("{}", fmt::join(ids, " "))) == ids,
          "token ids differ once written");
}

void read_cadence(const std::string& text) {
  const SaveCadence cadence(text);
  require_showable(cadence.text());
  require(!cadence.due_by_time(), "a checkpoint is due at once");
  const bool steps = cadence.text().find(" step") != std::string::npos;
  require(steps == cadence.due_by_steps(0), "steps are told that do not count");
}

}  // namespace

void read_lists(Bytes input) {
  // An argument of a program ends at NUL.
  const Bytes bytes = input.substr(0, input.find('\0'));
  const std::string text(bytes.substr(std::min<std::size_t>(1, bytes.size())));
  switch (bytes.empty() ? 'r' : bytes[0]) {
    case 'p':
      return read_split(text);
    case 'i':
      return read_fault(text);
    case 't':
      return read_ids(text);
    case 's':
      return read_cadence(text);
    default:
      return read_placement(text);
  }
}

}  // namespace sluice::fuzz
