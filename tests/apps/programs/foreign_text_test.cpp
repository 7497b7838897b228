#include "tests/apps/programs/foreign_text.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/plan/cost/device_profile.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "parallel/flight_recorder/record_layout.h"
#include "tests/engine/safetensors_files.h"

// Every message that can hold a stranger's text is made to hold some. Those of errors and of what
// programs say share a way to the terminal; the others are on their own.

namespace sluice::test::foreign_text_test {
namespace {

struct Call {
  std::string program;
  Arguments arguments;
};
struct Place {
  const char* name;
  /// Writes what the program is to read.
  Call (*prepare)(const ForeignFolder& in);
};

Call evaluate(const std::string& model) {
  return {"evaluate", {"--model", model, "--data", "text.txt"}};
}

/// The model with one file changed or added.
Call evaluate_with(const ForeignFolder& in, const std::string& file, const std::string& bytes) {
  std::filesystem::copy(in.path() / "gpt2", in.path() / "changed");
  in.write("changed/" + file, bytes);
  return evaluate("changed");
}

/// Evaluates with one field of config.json changed.
Call evaluate_with_field(const ForeignFolder& in, const char* field) {
  Json config = Json::parse(in.read("gpt2/config.json"));
  config[field] = hostile;
  return evaluate_with(in, "config.json", config.dump());
}

Call evaluate_with_header(const ForeignFolder& in, const std::string& header) {
  return evaluate_with(in, "model.safetensors", file_of(header, 8));
}

/// The model with the files of another tokenizer.
Call generate_with(const ForeignFolder& in, const std::string& vocabulary,
                   const std::string& merges) {
  in.write("tokenizer/vocab.json", vocabulary);
  in.write("tokenizer/merges.txt", merges);
  return {
      "generate",
      {"--model", "gpt2", "--tokenizer-dir", "tokenizer", "--prompt", "x", "--max-tokens", "1"}};
}

Call plan_with_probe(const ForeignFolder& in, const char* field) {
  save_profile(in.path() / "p.json", known_profile("a100"));
  Json probe = Json::parse(in.read("p.json"));
  probe[field] = hostile;
  in.write("p.json", probe.dump());
  return {"plan", {"--model", "gpt2/", "--probe", "p.json"}};
}

Call train(const Arguments& more) {
  Arguments all{"--save", "never", "--data", "text.txt", "--model", "gpt2/"};
  all.insert(all.end(), more.begin(), more.end());
  return {"train_gpt2", tiny_training(all)};
}

Call configured(const ForeignFolder& in, const std::string& text) {
  in.write("c.toml", text);
  return train({"--config", "c.toml"});
}

/// The record of a rank, changed.
template <class Change>
Call ranks_with(const ForeignFolder& in, Change change) {
  std::filesystem::create_directory(in.path() / "ranks");
  const FlightRecorder ring(in.path() / "ranks", 0, 2);
  std::string bytes = read_file(ring.path());
  RecordLayout layout;
  std::memcpy(static_cast<void*>(&layout), bytes.data(), sizeof layout);
  change(layout);
  std::memcpy(bytes.data(), &layout, sizeof layout);
  write_file(ring.path(), bytes);
  return {"post_mortem", {"--all", "ranks"}};
}

void open_operation(RecordLayout& ring, const std::string& communicator, const std::string& label) {
  RecordSlot& slot = ring.slots[0];
  slot.version = 2;
  slot.begin = 1;
  std::ranges::copy(communicator, slot.communicator.begin());
  slot.signature.set_label(label);
}

/// The hostile text as TOML has it.
const std::string escaped = Json(hostile).dump();
/// A hostile text that fits into a record of 16 bytes.
const std::string short_hostile = "owned\x1b\xC2\x9B\xE2\x80\xAE\xE2\x80\x8B";

/// A run of two saved steps, of which the newer is damaged.
Call train_on_after_damage(const ForeignFolder& in, const std::string& output) {
  Arguments flags = tiny_training({"--data", "text.txt", "--model", "gpt2/", "--save-every", "1",
                                   "--steps", "2", "--keep", "2", "--output", output});
  flags.erase(std::ranges::find(flags, "--steps"), std::ranges::find(flags, "--steps") + 2);
  run_program("train_gpt2", flags, "", in.path());
  const auto newest = in.path() / output / "checkpoints/step-00000002/weights.safetensors";
  std::string bytes = read_file(newest);
  const auto name = bytes.find("wte.weight");
  if (name != bytes.npos) bytes.replace(name, 10, "owned\xE2\x80\x8B\xC2\x9B");  // as many bytes
  write_file(newest, bytes);
  return {"train_gpt2", flags};
}

const std::vector<Place> places{
    // Text that a user types.
    {"a flag", [](const ForeignFolder&) { return train({"--" + hostile}); }},
    {"a number",
     [](const ForeignFolder&) {
       return train({"--lr", hostile});
     }},
    {"a whole number",
     [](const ForeignFolder&) {
       return train({"--keep", hostile});
     }},
    {"a choice",
     [](const ForeignFolder&) {
       return train({"--optimizer", hostile});
     }},
    {"a switch", [](const ForeignFolder&) { return train({"--quiet=" + hostile}); }},
    {"an argument", [](const ForeignFolder&) { return train({hostile}); }},
    {"a size",
     [](const ForeignFolder&) {
       return train({"--host-memory", hostile});
     }},
    {"--micro-batch",
     [](const ForeignFolder&) {
       return train({"--micro-batch", hostile});
     }},
    {"--placement",
     [](const ForeignFolder&) {
       return train({"--placement", hostile});
     }},
    {"--save-every",
     [](const ForeignFolder&) {
       return train({"--save-every", hostile});
     }},
    {"--inject",
     [](const ForeignFolder&) {
       return train({"--inject", hostile});
     }},
    {"--pipeline-split",
     [](const ForeignFolder&) {
       return Call{"plan", {"--model", "gpt2", "--pp", "2", "--pipeline-split", hostile}};
     }},
    {"--tokens",
     [](const ForeignFolder&) {
       return Call{"generate", {"--model", "gpt2", "--tokens", hostile}};
     }},
    {"a card",
     [](const ForeignFolder&) {
       return Call{"plan", {"--model", "gpt2", "--device-profile", hostile}};
     }},
    // Names of files.
    {"a text that is not there",
     [](const ForeignFolder&) {
       return train({"--val-data", hostile});
     }},
    {"a pattern",
     [](const ForeignFolder&) {
       return train({"--val-data", hostile + "*"});
     }},
    {"a model that is not there", [](const ForeignFolder&) { return evaluate(hostile); }},
    {"a configuration that is not there",
     [](const ForeignFolder&) {
       return train({"--config", hostile});
     }},
    {"a schedule that is not there",
     [](const ForeignFolder&) {
       return train({"--pipeline", hostile + ".csv"});
     }},
    {"--resume",
     [](const ForeignFolder&) {
       return train({"--resume", hostile});
     }},
    {"ranks that are not there",
     [](const ForeignFolder&) {
       return Call{"post_mortem", {hostile}};
     }},
    {"a text that is read",
     [](const ForeignFolder& in) {
       in.write(hostile + ".txt", in.read("text.txt"));
       return Call{"train_gpt2", tiny_training({"--save", "never", "--model", "gpt2/", "--data",
                                                hostile + ".txt"})};
     }},
    {"a file that train_gpt2 leaves out",
     [](const ForeignFolder& in) {
       in.write("data/a.txt", in.read("text.txt"));
       in.write("data/" + hostile + ".png", "");
       return Call{"train_gpt2",
                   tiny_training({"--save", "never", "--model", "gpt2/", "--data", "data"})};
     }},
    {"a file that prepare_data leaves out",
     [](const ForeignFolder& in) {
       in.write("data/a.txt", in.read("text.txt"));
       in.write("data/" + hostile + ".png", "");
       return Call{"prepare_data", {"--input", "data", "--output", "out"}};
     }},
    {"the folder of prepare_data",
     [](const ForeignFolder&) {
       return Call{"prepare_data", {"--input", "text.txt", "--output", hostile}};
     }},
    {"the file of prepare_data",
     [](const ForeignFolder&) {
       return Call{"prepare_data", {"--input", "text.txt", "--encode-only", hostile + ".bin"}};
     }},
    {"the folder of convert",
     [](const ForeignFolder&) {
       return Call{"convert", {"--input", "gpt2", "--output", hostile}};
     }},
    {"the folder of a run and a damaged checkpoint in it",
     [](const ForeignFolder& in) { return train_on_after_damage(in, hostile); }},
    // Files for --config.
    {"a key", [](const ForeignFolder& in) { return configured(in, escaped + "=1\n"); }},
    {"a section", [](const ForeignFolder& in) { return configured(in, "[" + escaped + "]\n"); }},
    {"a value", [](const ForeignFolder& in) { return configured(in, "lr=" + escaped + "\n"); }},
    {"a value of a switch",
     [](const ForeignFolder& in) { return configured(in, "quiet=" + escaped + "\n"); }},
    // Probe files.
    {"a device's name", [](const ForeignFolder& in) { return plan_with_probe(in, "name"); }},
    {"a device's memory", [](const ForeignFolder& in) { return plan_with_probe(in, "memory"); }},
    // Models.
    {"activation_function",
     [](const ForeignFolder& in) { return evaluate_with_field(in, "activation_function"); }},
    {"model_type", [](const ForeignFolder& in) { return evaluate_with_field(in, "model_type"); }},
    {"n_embd", [](const ForeignFolder& in) { return evaluate_with_field(in, "n_embd"); }},
    {"a key of JSON",
     [](const ForeignFolder& in) {
       const std::string key = Json(hostile).dump();
       return evaluate_with(in, "config.json", "{" + key + ":1," + key + ":2}");
     }},
    {"a tensor's name",
     [](const ForeignFolder& in) {
       const std::string name = Json(hostile).dump();
       return evaluate_with_header(
           in, "{" + entry(name.substr(1, name.size() - 2), "F32", "[3]", "[0,8]") + "}");
     }},
    {"a tensor's type",
     [](const ForeignFolder& in) {
       const Json tensor{{"dtype", hostile}, {"shape", {2}}, {"data_offsets", {0, 8}}};
       return evaluate_with_header(in, Json{{"a", tensor}}.dump());
     }},
    {"a header's metadata",
     [](const ForeignFolder& in) {
       return evaluate_with_header(in, Json{{"__metadata__", {{hostile, {hostile}}}}}.dump());
     }},
    {"a shard's name",
     [](const ForeignFolder& in) {
       std::filesystem::remove(in.path() / "gpt2/model.safetensors");
       return evaluate_with(
           in, "model.safetensors.index.json",
           Json{{"weight_map", {{"wte.weight", hostile + ".safetensors"}}}}.dump());
     }},
    {"an entry of a vocabulary",
     [](const ForeignFolder& in) {
       return generate_with(in, Json{{hostile, "no number"}}.dump(), "#version: 0.2\n");
     }},
    {"a merge",
     [](const ForeignFolder& in) {
       Json vocabulary;
       for (int id = 0; id < 256; ++id)
         vocabulary[std::string(id < 128 ? "a" : "b") + std::to_string(id)] = id;
       return generate_with(in, vocabulary.dump(), "#version: 0.2\n" + hostile + "\n");
     }},
    {"a tokenizer.json",
     [](const ForeignFolder& in) {
       in.write("tokenizer/tokenizer.json", Json{{"model", {{"type", hostile}}}}.dump());
       return Call{"generate",
                   {"--model", "gpt2", "--tokenizer-dir", "tokenizer", "--prompt", "x"}};
     }},
    // Data.
    {"the fields of JSON Lines",
     [](const ForeignFolder& in) {
       in.write("lines.jsonl", Json{{hostile, 1}}.dump() + "\n");
       return Call{"prepare_data", {"--input", "lines.jsonl", "--output", "out"}};
     }},
    {"a cell of a schedule",
     [](const ForeignFolder& in) {
       in.write("s.csv", hostile + ",1\n");
       return Call{"plan", {"--model", "gpt2", "--pp", "2", "--pipeline", "s.csv"}};
     }},
    // Records of ranks.
    {"a rank's host",
     [](const ForeignFolder& in) {
       return ranks_with(in, [](RecordLayout& ring) {
         ring.header.host.fill('\0');
         std::ranges::copy(hostile, ring.header.host.begin());
       });
     }},
    {"a rank's note",
     [](const ForeignFolder& in) {
       return ranks_with(
           in, [](RecordLayout& ring) { std::ranges::copy(hostile, ring.status.note.begin()); });
     }},
    {"a rank's error",
     [](const ForeignFolder& in) {
       return ranks_with(in, [](RecordLayout& ring) {
         ring.status.outcome = 2;
         std::ranges::copy(hostile, ring.status.message.begin());
       });
     }},
    {"a communicator",
     [](const ForeignFolder& in) {
       return ranks_with(in, [](RecordLayout& ring) { open_operation(ring, short_hostile, "x"); });
     }},
    {"an operation's label",
     [](const ForeignFolder& in) {
       return ranks_with(in, [](RecordLayout& ring) { open_operation(ring, "world", hostile); });
     }},
};

}  // namespace

TEST_CASE("no foreign text reaches a terminal raw in any message", "[row16]") {
  for (const Place& place : places) {
    const ForeignFolder in;
    const auto [program, arguments] = place.prepare(in);
    const ProgramResult result = run_program(program, arguments, "", in.path());
    INFO(place.name << ", " << program << ": " << printable(result.out + result.err));
    CHECK(safe(result.out));
    CHECK(safe(result.err));
    // Else nothing was seen of it.
    CHECK_THAT(result.out + result.err, Contains("owned"));
  }
}

TEST_CASE("a name of a device is exact in JSON and safe", "[row16]") {
  const ForeignFolder in;
  Call call = plan_with_probe(in, "name");
  call.arguments.push_back("--json");
  const ProgramResult json = run_program(call.program, call.arguments, "", in.path());
  INFO(json.err);
  CHECK(safe(json.out));
  CHECK(Json::parse(json.out).at("device") == hostile);
}

}  // namespace sluice::test::foreign_text_test
