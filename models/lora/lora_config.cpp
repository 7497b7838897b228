#include "models/lora/lora_config.h"

#include <algorithm>

namespace sluice {

bool LoraConfig::adapts(std::string_view layer) const {
  return rank > 0 && std::ranges::any_of(targets, [layer](std::string_view target) {
           return layer.ends_with(target) &&
                  (layer.size() == target.size() || layer[layer.size() - target.size() - 1] == '.');
         });
}

}  // namespace sluice
