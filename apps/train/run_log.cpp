#include "apps/train/run_log.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace sluice {

RunLog::RunLog(const std::filesystem::path& file)
    : path_(file), file_(std::fopen(file.c_str(), "ae"), &std::fclose) {
  if (!file_)
    fail(fmt::format("cannot write {}: {}", file.string(), std::strerror(errno)), ErrorKind::usage);
}

void RunLog::write(std::string_view event, const nlohmann::ordered_json& fields) {
  nlohmann::ordered_json line{{"event", event}};
  line.update(fields);
  // Text from a half-trained model may be cut inside a character: replaced, not refused.
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() ||
      std::fflush(file_.get()) != 0)
    fail(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
}

}  // namespace sluice
