#include "apps/train/command_line.h"
#include "apps/train/options.h"
#include "apps/train/session.h"

int main(int argc, char** argv) {
  return sluice::run_program("train_gpt2", [&] {
    sluice::TrainOptions options;
    sluice::CommandLine line("train_gpt2",
                             "Trains a GPT-2. Without arguments: a small one, on the text that "
                             "ships with the program.");
    sluice::declare_options(line, options);
    if (line.parse(argc, argv)) sluice::run_training(options, line.resolved());
    return 0;
  });
}
