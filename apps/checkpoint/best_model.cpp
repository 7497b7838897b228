#include "apps/checkpoint/best_model.h"

#include <nlohmann/json.hpp>

#include "engine/io/json_document.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr const char* note_name = "validation.json";

}  // namespace

BestModel::BestModel(fs::path folder, Communicator& ranks) : folder_(std::move(folder)) {
  if (const fs::path note = folder_ / note_name; ranks.rank() == 0 && fs::exists(note))
    loss_ = read_json_file(note, 4096).value("loss", loss_);
  loss_ = ranks.gather_values(loss_, "best loss").front();
}

bool BestModel::improves(double loss) {
  if (!(loss < loss_)) return false;
  loss_ = loss;
  return true;
}

ModelNote BestModel::record(std::int64_t step) const {
  return {.name = note_name, .text = nlohmann::json{{"step", step}, {"loss", loss_}}.dump() + "\n"};
}

}  // namespace sluice
