#include "apps/config/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/temp_dir.h"

// Which options of a training go together: each rule of the table is broken once and says its
// sentence, and docs/reference/option-rules.md is the table.

namespace sluice::test::rules_test {
namespace {

/// A run of a model of two blocks, on a GPU.
struct Run {
  TrainConfig o;
  DecoderConfig model;
  RunFacts facts{.o = o,
                 .model = &model,
                 .gpu = true,
                 .has_data = true,
                 .can_sample = true,
                 .can_validate = true,
                 .data_name = "data",
                 .working = DType::bf16,
                 .copies_fast = true};

  explicit Run(const std::string& flags) {
    std::vector<std::string> words{"test"};
    std::istringstream text(flags);
    for (std::string word; text >> word;)
      words.push_back(word);
    std::vector<const char*> arguments;
    for (const std::string& word : words)
      arguments.push_back(word.c_str());
    CommandLine line("test", "");
    declare_config(line, o);
    const nlohmann::ordered_json defaults = line.values();
    REQUIRE(line.parse(static_cast<int>(arguments.size()), arguments.data()));
    o.given = given_flags(line, defaults);
    model.n_layer = 2;
    model.n_head = 4;
    model.n_embd = 128;
    facts.placement = parse_placement(o.memory.placement, model.n_layer);
  }
};

struct Row {
  std::string flags, sentence;
  std::function<void(Run&)> change{};
};

const auto on_cpu = [](Run& run) { run.facts.gpu = run.facts.copies_fast = false; };
const auto slow = [](Run& run) { run.facts.copies_fast = false; };
const auto tokens = [](Run& run) { run.facts.can_sample = false; };
const auto planned_for_many = [](Run& run) { run.o.planning.gpus = 8; };

const std::vector<Row> rows{
    {"--pipeline-split 1,1", "--pipeline-split 1,1 is for pipelines: give --pp or --pipeline too"},
    {"--stash input:1MiB", "--stash input:1MiB is for pipelines: give --pp or --pipeline too"},
    {"--pipeline layer-major --pp 2",
     "--pipeline layer-major has all layers on one rank: leave out --pp 2, or take gpipe, 1f1b, "
     "interleaved or zb-h1"},
    {"--pipeline layer-major --pipeline-split 1,1",
     "--pipeline layer-major has a stage for each block: leave out --pipeline-split 1,1"},
    {"--sequence-parallel",
     "--sequence-parallel is for ranks that divide the matrices: give --tp too"},
    {"--tp 2 --optimizer adafactor",
     "--optimizer adafactor cannot go with --tp 2: it needs the sums of whole rows and columns, "
     "which --tp divides between ranks; use adamw"},
    {"--tp 2 --optimizer adamw8bit",
     "--optimizer adamw8bit cannot go with --tp 2: it has a scale for every 256 elements of a "
     "row, which --tp divides between ranks; use --state-layout bf16mv"},
    {"--tp 2 --state-layout int8",
     "--state-layout int8 cannot go with --tp 2: it has a scale for every 256 elements of a row, "
     "which --tp divides between ranks; use --state-layout bf16mv"},
    {"--lora-rank 4 --sequence-parallel --tp 2",
     "--lora-rank 4 cannot go with --sequence-parallel: adapters read all tokens"},
    {"--adapter a --sequence-parallel --tp 2",
     "--adapter a cannot go with --sequence-parallel: adapters read all tokens"},
    {"--lora-alpha 4", "--lora-alpha is for adapters: give --lora-rank too"},
    {"--int8-base", "--int8-base is for adapters: give --lora-rank too"},
    {"--adapter a --lora-targets all", "--lora-targets: --adapter a decides it; leave it out"},
    {"--muon-momentum 0.95", "--muon-momentum is for --optimizer muon, not adamw; leave it out"},
    {"--optimizer adafactor --beta1 0.5",
     "--beta1 is AdamW's, and the optimizer is adafactor; leave it out"},
    {"--optimizer sgd --eps 1e-4", "--eps is AdamW's, and the optimizer is sgd; leave it out"},
    {"--lr-schedule constant --min-lr 1e-5",
     "--min-lr is where the rate ends, and --lr-schedule constant keeps it; leave it out"},
    {"--optimizer sgd --gradients bf16",
     "--gradients bf16: SGD updates from fp32 gradients; use --gradients fp32"},
    {"--optimizer sgd --state-layout split",
     "--state-layout split is AdamW's; --optimizer sgd keeps its state in fp32"},
    {"--optimizer muon --state-layout bf16m",
     "--state-layout bf16m is AdamW's; --optimizer muon keeps its momentum in fp32; use fp32 or "
     "split"},
    {"--optimizer adafactor --state-layout int8",
     "--state-layout int8 is AdamW's; --optimizer adafactor has no moments to narrow; use fp32 or "
     "split"},
    {"--optimizer adamw8bit --state-layout fp32",
     "--optimizer adamw8bit is adamw with --state-layout int8, not fp32"},
    {"--state-home d --optimizer adafactor",
     "--state-home d: with --optimizer adafactor state is small and stays in memory"},
    {"--sample-tokens 0 --prompt a",
     "--prompt is for samples, and --sample-tokens is 0; leave it out"},
    {"--quiet --verbose", "--quiet and --verbose ask for opposite things; give one of them"},
    {"--cuda-graph --dp 2", "--cuda-graph is for one rank without a pipeline; leave it out"},
    {"--pipeline gpipe", "--scaling predicts data parallelism alone; leave --pp and --pipeline out",
     [](Run& run) { run.o.planning.scaling = true; }},
    {"--tp 2", "--scaling predicts data parallelism alone; leave --tp out",
     [](Run& run) { run.o.planning.scaling = true; }},
    {"", "--gpus looks at many ways; --scaling, --schedule-svg and --schedule-csv are for one",
     [](Run& run) {
       run.o.planning.gpus = 8;
       run.o.planning.schedule_csv = "a.csv";
     }},
    {"--pipeline mine.csv", "--gpus with --pipeline mine.csv: a file is for one number of ranks",
     planned_for_many},
    {"--pipeline layer-major",
     "--gpus does not try --pipeline layer-major; plan it with --dp and --tp", planned_for_many},
    {"--state-home d", "--gpus gives CPUs no share of the updates; --state-home is for one way",
     planned_for_many},
    {"--cuda-graph", "--gpus looks at many ranks; --cuda-graph is for one", planned_for_many},
    {"--placement offload-all",
     "--gpus does not try offload-all, which --placement offload-all has; plan it with --dp and "
     "--tp",
     planned_for_many},

    {"--lora-rank 4 --tp 2",
     "--tp 2: ranks would drop other columns than one process, and the adapters' dropout is 0.5; "
     "give --lora-dropout 0",
     [](Run& run) { run.model.lora.dropout = 0.5; }},
    {"--lora-rank 4 --cuda-graph",
     "--cuda-graph would draw the same numbers in every step, and the adapters' dropout is 0.5; "
     "leave it out",
     [](Run& run) { run.model.lora.dropout = 0.5; }},
    {"--gradients bf16", "--gradients bf16 needs --precision bf16, not f32 weights",
     [](Run& run) { run.facts.working = DType::f32; }},
    {"--state-home d --optimizer muon",
     "--state-home d: the CPU would update the state, and --optimizer muon updates on the GPU "
     "alone"},
    {"--model gpt2 --n-head 4",
     "--n-head is for a shape of your own, and --model gpt2 decides it (12); leave it out",
     [](Run& run) { run.model.n_head = 12; }},
    {"--tokenizer bytes", "--tokenizer is for text, and data holds tokens; leave it out", tokens},
    {"--sample-every 5",
     "--sample-every is for samples, and data has no tokenizer; give --tokenizer-dir; leave it "
     "out",
     tokens},
    {"--keep-best",
     "--keep-best is for validation, for which data has no data; give --val-data; leave it out",
     [](Run& run) { run.facts.can_validate = false; }},
    {"--stream-chunks 4096*2",
     "--stream-chunks has a number of chunks for state on its way to a GPU or, with --state-home, "
     "to a disk; leave it out",
     on_cpu},
    {"--cuda-graph", "--cuda-graph is for a GPU, and this run computes on the CPU; leave it out",
     on_cpu},
    {"--cuda-graph",
     "--cuda-graph would draw the same numbers in every step, and --dropout is 0.25; leave it out",
     [](Run& run) { run.facts.dropout.attention = 0.25; }},
    {"--cuda-graph",
     "--cuda-graph divides each batch by the same number of targets, and in batches of pairs it "
     "differs; leave it out",
     [](Run& run) { run.facts.pairs = true; }},

    {"--placement offload-state --optimizer adafactor",
     "--placement offload-state: with --optimizer adafactor no state can be in host memory; its "
     "state is small"},
    {"--placement offload-state",
     "--placement offload-state: this run computes on the CPU, where all is in host memory; with "
     "--state-home state may be on a disk",
     on_cpu},
    {"--placement offload-optimizer --state-home d",
     "--placement offload-optimizer: this run computes on the CPU, where all is in host memory",
     on_cpu},
    {"--placement offload-state",
     "--placement offload-state: how fast this GPU copies from and to host memory is not known; "
     "measure it with plan --save-probe",
     slow},
    {"--placement offload-state --state-home d",
     "--placement offload-state: with --state-home the CPU updates all state that leaves the GPU; "
     "use offload-optimizer"},
    {"--placement offload-optimizer --optimizer muon",
     "--placement offload-optimizer: --optimizer muon updates on the GPU alone; use "
     "offload-state"},
    {"--placement speculative --dp 2",
     "--placement speculative: among several ranks and in a pipeline gradients are complete after "
     "the backward pass alone; use offload-state"},
    {"--placement offload-all --pipeline gpipe",
     "--placement offload-all: offload-all has all blocks on one rank, which serves all "
     "micro-batches block by block; leave out --pp and --pipeline"},
    {"--placement offload-all --dp 2 --zero 1",
     "--placement offload-all: each rank updates all weights; leave out --zero 1"},
    {"--placement offload-all --optimizer muon",
     "--placement offload-all: --optimizer muon updates on the GPU alone; use adamw"},
    {"--placement offload-all",
     "--placement offload-all: weights that are not trained stay on the GPU; leave out the "
     "adapters or offload-all",
     [](Run& run) { run.model.lora.rank = 4; }},
    {"--placement offload-state*1,offload-all",
     "--placement offload-state*1,offload-all: beside blocks that are offload-all the others are "
     "resident"},
    {"--placement auto:block+host --cuda-graph",
     "--placement auto:block+host: with --cuda-graph inputs stay on the GPU; use block"},
    {"--placement auto:block+host --pp 2",
     "--placement auto:block+host: in a pipeline inputs are in host memory by --stash input:SIZE"},
    {"--placement auto:block+host",
     "--placement auto:block+host: this run computes on the CPU, where all is in host memory; use "
     "block",
     on_cpu},
    {"--placement auto:block+host",
     "--placement auto:block+host: how fast this GPU copies from and to host memory could not be "
     "measured; use block",
     slow},
    {"--cuda-graph --placement offload-state",
     "--cuda-graph needs all state on the GPU, and --placement is offload-state; leave one of "
     "them out"},
};

/// Returns the words of a text that are options.
std::vector<std::string> options_in(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    if (word.starts_with("--")) found.push_back(word);
  return found;
}

std::string quoted_options(const std::string& text) {
  std::string quoted;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    quoted += (quoted.empty() ? "" : " ") + (word.starts_with("--") ? "`" + word + "`" : word);
  return quoted;
}

/// The page that is made from the table.
std::string page() {
  std::string text =
      "# Which options go together\n\n"
      "All options of `train_gpt2` and `plan` go together but those below. Both tables are made "
      "from the table of rules in the\nprogram (`apps/config/rules.h`). The message of a broken "
      "rule names the values and says what to do.\n\n"
      "## As a matrix\n\n"
      "x: some values of the two do not go together, or none. n: the option of the row needs that "
      "of the column, or another n of\nits row.\n\n";
  std::map<std::string, std::map<std::string, char>> pairs;
  std::set<std::string> columns;
  for (const Rule& rule : rules())
    for (const std::string& one : options_in(rule.options))
      for (const std::string& other : options_in(rule.beside)) {
        const bool needs = std::string_view(rule.beside).find("without") != std::string_view::npos;
        pairs[one][other] = needs ? 'n' : 'x';
        columns.insert(other);
      }
  text += "| |";
  for (const std::string& column : columns)
    text += " " + column.substr(2) + " |";
  text += "\n|---|";
  for (std::size_t i = 0; i < columns.size(); ++i)
    text += "---|";
  for (const auto& [one, others] : pairs) {
    text += "\n| `" + one + "` |";
    for (const std::string& column : columns)
      text += others.contains(column) ? fmt::format(" {} |", others.at(column)) : " |";
  }
  text += "\n\n## As sentences\n\n| option | does not go with | because |\n|---|---|---|\n";
  for (const Rule& rule : rules())
    text += fmt::format("| {} | {} | {} |\n", quoted_options(rule.options),
                        quoted_options(rule.beside), rule.why);
  return text;
}

}  // namespace

TEST_CASE("each rule between options can be broken, and says its sentence", "[options]") {
  const std::vector<Rule> all = rules();
  std::set<std::size_t> broken;
  for (const Row& row : rows) {
    Run run(row.flags);
    if (row.change) row.change(run);
    bool said = false;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].broken(run.facts, all[i]) != row.sentence) continue;
      said = true;
      broken.insert(i);
    }
    INFO(row.flags << ": " << row.sentence);
    CHECK(said);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    INFO(all[i].options << " beside " << all[i].beside << ": " << all[i].why);
    CHECK(broken.contains(i));
  }
}

TEST_CASE("the defaults break no rule, and a broken rule is an error of use", "[options]") {
  const Run usual("");
  for (const Known known : {Known::options, Known::run, Known::machine})
    CHECK(error_message([&] { require_rules(usual.facts, known); }) == "(no error)");
  const Run loud("--quiet --verbose");
  CHECK_THROWS_AS(require_rules(loud.facts, Known::options), Error);
  CHECK(error_message([&] { require_rules(loud.facts, Known::run); }) == "(no error)");
}

TEST_CASE("docs/reference/option-rules.md is the table of rules", "[options]") {
  const std::string file = SLUICE_SOURCE_DIR "/docs/reference/option-rules.md";
  const std::string made = SLUICE_BIN_DIR "/../option-rules.md";
  write_file(made, page());
  INFO("cp " << made << " " << file);
  CHECK(read_file(file) == page());
}

}  // namespace sluice::test::rules_test
