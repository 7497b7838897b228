#include <fmt/format.h>

#include <algorithm>

#include "tests/faults/runs.h"
#include "tests/faults/trace.h"
#include "tests/faults/walk/run.h"
#include "tests/support/catch.h"

// Lineage by a random walk: sequences of runs, stops, kills, goings back, batches left out, other
// layouts, second runs at the same time, copies, damage and files of the user's. After each command
// the folders hold what the rules say (walk_model.h), each checkpoint with the bytes of a run that
// nothing happened to.

namespace sluice::test::walk {
namespace {

struct Draw {
  std::mt19937_64 random;

  int below(int end) { return static_cast<int>(random() % static_cast<std::uint64_t>(end)); }
  int from(int first, int last) { return first + below(last - first + 1); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  T one_of(const std::vector<T>& all) {
    return all[static_cast<std::size_t>(below(static_cast<int>(all.size())))];
  }
};

/// Those that can be named.
std::vector<int> present(const Rules& rules, int folder) {
  std::vector<int> all = rules.folders[folder].chain;
  const auto& aside = rules.folders[folder].aside;
  all.insert(all.end(), aside.begin(), aside.end());
  return all;
}

Ending draw_ending(Draw& draw, int steps) {
  const int kind = draw.below(100);
  if (kind < 40) return {};
  if (kind < 65 && have_strace()) {
    // The upper bounds are about the number of such calls in a run.
    const auto [call, most] =
        draw.one_of<std::pair<const char*, int>>({{"rename", 10 + 4 * steps},
                                                  {"rename", 10 + 4 * steps},
                                                  {"rename", 6},
                                                  {"fsync", 8 + 6 * steps},
                                                  {"mkdir", 3 + 2 * steps},
                                                  {"unlinkat", 4 * steps},
                                                  {"rmdir", 1 + steps},
                                                  {"unlink", 4},
                                                  {"write", 20 + 20 * steps}});
    return {.how = Ending::How::at_call, .call = call, .number = draw.from(1, most)};
  }
  Ending held{.how = Ending::How::held, .room = draw.from(1300, 1400 + 130 * steps)};
  const int then = draw.below(10);
  held.then = then < 4 ? Ending::Then::stop : then < 7 ? Ending::Then::kill : Ending::Then::second;
  held.signal = draw.one_of<int>({SIGTERM, SIGINT, SIGUSR1, SIGHUP});
  return held;
}

class Walker {
 public:
  Walker(References& references, const Arguments& flags, bool half)
      : sequence_(references, flags), half_(half) {}

  Sequence& sequence() { return sequence_; }

  void operation(Draw& draw) {
    const int folder = sequence_.exists(1) && draw.chance(35) ? 1 : 0;
    const int kind = draw.below(100);
    if (!sequence_.exists(0) || kind < 72)
      run(draw, kind >= 68 ? 1 : folder);
    else if (kind < 80)
      refused(draw, folder);
    else
      user(draw, folder);
  }

 private:
  struct Given {
    Command command;
    Manner manner;
  };

  void run(Draw& draw, int folder) {
    if (!sequence_.exists(0)) folder = 0;
    const Rules& rules = sequence_.rules;
    Given given;
    given.command.folder = folder;
    Command& c = given.command;
    const int how = draw.below(100);
    // A run that has come far goes back.
    const bool far = first_step(c) > 40;
    auto sources = present(rules, draw.chance(75) ? folder : 1 - folder);
    if (far) std::erase_if(sources, [&](int one) { return rules.all[one].step() > 30; });
    if ((how >= 55 || far) && !sources.empty()) {
      c.resume = Resume::checkpoint;
      c.source = draw.one_of(sources);
    } else if (how >= 45 && sequence_.exists(1)) {
      c.resume = Resume::run;
      c.run = draw.below(2);
    } else if (how >= 35 && last_[folder] && sequence_.exists(folder)) {
      // The same command once more.
      given = *last_[folder];
      if (given.command.resume == Resume::checkpoint &&
          !holds(present(rules, rules.all[given.command.source].folder), given.command.source))
        given.command.resume = Resume::newest;
      return perform(draw, given, c.folder);
    }
    const bool goes_on = first_step(c) > 0;
    c.skip = draw.chance(c.resume == Resume::newest ? 15 : 35) && goes_on ? draw.from(1, 4) : 0;
    c.keep = draw.chance(40) ? draw.one_of<int>({1, 2, 3, 5, 9}) : 0;
    c.save_every = draw.chance(70) ? draw.from(1, 3) : 0;
    c.no_save = draw.chance(12);
    c.micro_batch = !goes_on || draw.chance(15) ? draw.one_of<int>({1, 2, 4}) : 0;
    const int more = draw.chance(6) ? draw.from(-2, 0) : draw.from(1, 5);
    c.steps = std::max(first_step(c) + more, 1);
    Manner& m = given.manner;
    m.absolute = draw.chance(25);
    if (draw.chance(15)) m.from = "elsewhere";
    if (draw.chance(10) && sequence_.exists(0)) m.from = "a";
    if (draw.chance(20) && !c.no_save) m.more.push_back("--save=background");
    if (draw.chance(20)) m.more.push_back("--threads=2");
    if (half_) m.more.push_back(draw.chance(50) ? "--state-layout=fp32" : "--state-layout=split");
    if (draw.chance(2) && have_mpirun()) {
      c.ranks = 2;
      c.micro_batch = draw.from(1, 2);
    }
    last_[folder] = given;
    perform(draw, given, folder);
  }

  void perform(Draw& draw, const Given& given, int folder) {
    static_cast<void>(folder);
    const int steps = std::max(given.command.steps - first_step(given.command), 1);
    sequence_.run(given.command, given.manner,
                  given.command.ranks > 1 ? Ending{} : draw_ending(draw, steps));
  }

  int first_step(const Command& command) const {
    const auto plan = sequence_.rules.plan(command);
    return plan.starts.empty() ? 0 : sequence_.rules.step_of(plan.starts.front());
  }

  void refused(Draw& draw, int folder) {
    Command c{.folder = folder};
    const auto plan = sequence_.rules.plan(c);
    if (plan.may_refuse || plan.starts.empty() || plan.starts.front().source < 0) return;
    auto sources = present(sequence_.rules, draw.below(2));
    std::erase_if(sources, [&](int one) { return sequence_.rules.all[one].damaged; });
    if (draw.chance(40) && !sources.empty()) {
      c.resume = Resume::checkpoint;
      c.source = draw.one_of(sources);
    }
    c.steps = first_step(c) + 3;
    c.skip = draw.chance(30) ? 2 : 0;
    c.micro_batch = 1;
    sequence_.refused(c, draw.one_of<Arguments>({{"--seed=7"},
                                                 {"--batch-size=8"},
                                                 {"--n-embd=16"},
                                                 {"--seq-len=4"},
                                                 {"--precision=fp16"},
                                                 {"--optimizer=sgd"}}));
  }

  void user(Draw& draw, int folder) {
    const Rules& rules = sequence_.rules;
    const auto& chain = rules.folders[folder].chain;
    const int kind = draw.below(100);
    if (kind < 20 && !chain.empty()) {
      const int one = draw.one_of(chain);
      const int step =
          draw.chance(50) ? rules.all[chain.back()].step() + draw.from(1, 4) : 20261123;
      if (!rules.all[one].damaged) sequence_.copy_under_false_name(one, step);
    } else if (kind < 50 && !chain.empty()) {
      const int one = draw.chance(70) ? chain.back() : draw.one_of(chain);
      if (!rules.all[one].damaged)
        sequence_.damage(one, static_cast<Sequence::Damage>(draw.below(4)));
    } else if (kind < 60) {
      sequence_.remove_aside(folder);
    } else if (kind < 80) {
      sequence_.add_user_file(
          folder, draw.one_of<std::string>(
                      {"notes.txt", "plots/loss.png", "checkpoints/README",
                       "checkpoints/paper.tmp.backup/x", "checkpoints/step-00000004.bak/x",
                       "checkpoints/step-12/state.json", "checkpoints/set-aside/notes.txt",
                       "checkpoints/step-00000003.tmp.paper", "model/notes.txt"}));
    } else if (!sequence_.exists(1)) {
      sequence_.copy_run();
    }
  }

  Sequence sequence_;
  bool half_;
  std::optional<Given> last_[2];
};

}  // namespace

TEST_CASE("random walk through runs, stops, kills and goings back") {
  const TempDir data;
  std::string text;
  for (int i = 0; text.size() < 430; ++i)
    text += "to be or not to be " + std::to_string(i * i) + ", that is the question\n";
  write_file(data.path() / "t.txt", text);
  Arguments flags = words(
      "--n-layer=1 --n-head=2 --n-embd=8 --context=8 --batch-size=4 --lr-schedule=constant "
      "--warmup-steps=2 --val-every=0 --sample-tokens=0 --device=cpu --tokenizer=bytes "
      "--log-every=1 --dropout=0.1 --threads=1 --peak-tflops=1");
  flags.push_back("--data=" + (data.path() / "t.txt").string());
  Arguments half_flags = flags;
  half_flags.push_back("--precision=bf16");
  References references(flags), half_references(half_flags);

  Tally tally("g: random walk");
  const int sequences = by_form(2, 300);
  for (int number = 0; number < sequences; ++number) {
    if (chosen_draws().round >= 0 && number != chosen_draws().round) continue;
    Draw shape{draws(static_cast<std::uint64_t>(number) * 1000)};
    const bool half = shape.chance(20);
    const int operations = shape.from(6, 15);
    Walker walker(half ? half_references : references, half ? half_flags : flags, half);
    for (int i = 1; i <= operations && !walker.sequence().wrong(); ++i) {
      Draw draw{draws(static_cast<std::uint64_t>(number) * 1000 + static_cast<std::uint64_t>(i))};
      walker.operation(draw);
    }
    tally.round(fmt::format("sequence {} (--seed {} --round {})\n{}", number, chosen_draws().seed,
                            number, walker.sequence().told()),
                walker.sequence().problem());
    references.tidy();
    half_references.tidy();
  }
}

}  // namespace sluice::test::walk
