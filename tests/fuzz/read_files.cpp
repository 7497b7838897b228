#include <nlohmann/json.hpp>
#include <vector>

#include "engine/io/json_document.h"
#include "engine/io/safetensors.h"
#include "engine/io/token_file.h"
#include "models/decoder/config.h"
#include "models/decoder/config_json/config_file.h"
#include "models/decoder/config_json/config_writer.h"
#include "tests/fuzz/harness.h"

namespace sluice::fuzz {
namespace {

bool same(const StoredTensor& a, const StoredTensor& b) {
  return a.name == b.name && a.type == b.type && a.shape == b.shape && a.begin == b.begin &&
         a.end == b.end;
}

}  // namespace

void read_safetensors(Bytes input) {
  const auto path = put("model.safetensors", input);
  const SafetensorsReader reader(path);
  std::uint64_t covered = 0;
  std::vector<std::byte> bytes;
  for (const StoredTensor& tensor : reader.tensors()) {
    require(tensor.begin == covered && tensor.end >= covered, "the tensors do not follow");
    require(reader.find(tensor.name) == &tensor, "a tensor cannot be found");
    bytes.resize(tensor.byte_size());
    reader.read(tensor, 0, bytes);
    covered = tensor.end;
  }
  require(covered <= input.size(), "more data than there are bytes");

  const SafetensorsHeader header{reader.tensors(), reader.metadata()};
  const auto again = parse_safetensors_header(format_safetensors_header(header), covered, "again");
  require(again.metadata == header.metadata, "metadata differ once written");
  require(again.tensors.size() == header.tensors.size(), "tensors are lost once written");
  for (std::size_t i = 0; i < again.tensors.size(); ++i)
    require(same(again.tensors[i], header.tensors[i]), "a tensor differs once written");
}

void read_json(Bytes input) {
  const auto document = parse_json(input, "the input");
  require(parse_json(document.dump(), "again") == document, "JSON differs once written");
}

void read_config(Bytes input) {
  const DecoderConfig config = sluice::read_config(put("config.json", input));
  require(config.n_embd % config.n_head == 0, "heads do not divide the width");
  require(config.parameter_count() > 0, "the number of parameters has wrapped");
  require(sluice::read_config(put("again.json", config_json(config, "float32", -1))) == config,
          "a configuration differs once written");
}

void read_tokens(Bytes input) {
  constexpr std::int64_t all_ids = 65536;
  TokenFile file(put("tokens.bin", input));
  require(file.size() <= input.size() / 2, "more tokens than there are bytes");
  std::vector<std::int32_t> ids(file.size());
  file.read(0, ids);
  file.read_all(all_ids);
  std::vector<std::int32_t> checked(file.size());
  file.read(0, checked);
  require(checked == ids, "tokens differ once they are checked");
  require(file[ids.size() - 1] == ids.back(), "the last token differs");

  // A file without a header must not begin as llm.c's does.
  if (ids.size() >= 2 && ids[0] == 55432 && ids[1] == 308) return;
  TokenFileWriter writer(scratch() / "again.bin");
  writer.append(ids);
  writer.finish();
  std::vector<std::int32_t> again(ids.size());
  TokenFile(scratch() / "again.bin").read(0, again);
  require(again == ids, "tokens differ once written");
  file.read_all(all_ids - 1);
}

}  // namespace sluice::fuzz
