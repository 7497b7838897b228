#include "apps/train/best_model.h"

#include <nlohmann/json.hpp>

#include "engine/io/durable.h"
#include "engine/io/json_document.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

fs::path record_in(const fs::path& folder) {
  return folder / "validation.json";
}

}  // namespace

BestModel::BestModel(fs::path folder, Communicator& ranks) : folder_(std::move(folder)) {
  if (ranks.rank() == 0 && fs::exists(record_in(folder_)))
    loss_ = read_json_file(record_in(folder_), 4096).value("loss", loss_);
  loss_ = ranks.gather_values(loss_, "best loss").front();
}

bool BestModel::improves(double loss) {
  if (!(loss < loss_)) return false;
  loss_ = loss;
  return true;
}

void BestModel::record(std::int64_t step, double loss) const {
  const std::string text = nlohmann::json{{"step", step}, {"loss", loss}}.dump() + "\n";
  write_file_durably(record_in(folder_), std::as_bytes(std::span(text)));
}

}  // namespace sluice
