#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/command_line.h"
#include "apps/cli/run_program.h"
#include "apps/config/train_config.h"
#include "apps/flags/no_effect.h"
#include "apps/train_gpt2/job.h"
#include "apps/train_gpt2/session.h"

int main(int argc, char** argv) {
  std::optional<sluice::Job> job;
  const auto may_report = [&](std::string& message, int exit_code) {
    return !job || job->may_report(message, exit_code);
  };
  const auto body = [&] {
    job.emplace(argc, argv);
    sluice::TrainConfig options;
    sluice::CommandLine line("train_gpt2",
                             "Trains a GPT-2, GPT-J, GPT-NeoX, Llama, Mistral or Qwen. Without "
                             "arguments: a small one, on the text that "
                             "ships with the program.");
    sluice::declare_config(line, options);
    const auto defaults = line.values();
    if (!line.parse(argc, argv)) return 0;
    options.given = sluice::given_flags(line, defaults);
    options.asked =
        line.repeated({sluice::CommandLine::Role::training, sluice::CommandLine::Role::ranks});
    sluice::run_training(options, line.resolved(), *job);
    return 0;
  };
  return sluice::run_program("train_gpt2", body, may_report);
}
