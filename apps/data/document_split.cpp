#include "apps/data/document_split.h"

#include <algorithm>
#include <numeric>

#include "engine/io/section_sums.h"
#include "kernels/base/philox.h"

namespace sluice {
namespace {

std::vector<std::uint64_t> by_bytes(std::span<const DocumentFacts> documents, std::uint64_t left) {
  // Some text must remain to train on, however short it is.
  if (left == 0) left = ~std::uint64_t{0};
  std::vector<std::uint64_t> training;
  for (const DocumentFacts& document : documents) {
    training.push_back(std::min(document.bytes, left));
    left -= training.back();
  }
  return training;
}

std::vector<std::uint64_t> by_document(std::span<const DocumentFacts> documents,
                                       std::uint64_t for_validation, std::uint64_t seed) {
  std::vector<std::uint64_t> training, keys;
  for (const DocumentFacts& document : documents) {
    training.push_back(document.bytes);
    keys.push_back(mix_key(mix_key(seed, document.sum), document.bytes));
  }
  std::vector<std::size_t> order(documents.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t document) { return keys[document]; });
  const std::uint64_t wanted = for_validation;
  for (const std::size_t document : order) {
    if (documents[document].bytes > for_validation) continue;
    for_validation -= documents[document].bytes;
    training[document] = 0;
  }
  if (for_validation == wanted && wanted > 0)
    training[*std::ranges::min_element(
        order, {}, [&](std::size_t document) { return documents[document].bytes; })] = 0;
  return training;
}

/// Returns how many bytes of the documents are for training.
std::uint64_t border_of(std::uint64_t all, double fraction) {
  return std::min(all, static_cast<std::uint64_t>(static_cast<double>(all) * fraction + 1e-6));
}

std::uint64_t bytes_of(std::span<const DocumentFacts> documents) {
  std::uint64_t all = 0;
  for (const DocumentFacts& document : documents)
    all += document.bytes;
  return all;
}

}  // namespace

DocumentFacts facts_of(std::string_view text) {
  return {text.size(), crc32_of(std::as_bytes(std::span(text)))};
}

std::vector<std::uint64_t> training_pairs(std::span<const DocumentFacts> pairs, double fraction,
                                          std::uint64_t seed) {
  const std::uint64_t all = bytes_of(pairs);
  if (pairs.size() == 1) return {all};
  std::vector<std::uint64_t> training = by_document(pairs, all - border_of(all, fraction), seed);
  if (std::ranges::count(training, std::uint64_t{0}) == std::ssize(training))
    training.front() = pairs.front().bytes;
  return training;
}

std::vector<std::uint64_t> training_bytes(std::span<const DocumentFacts> documents, double fraction,
                                          std::uint64_t seed) {
  const std::uint64_t all = bytes_of(documents), border = border_of(all, fraction);
  if (documents.size() < few_documents) return by_bytes(documents, border);
  return by_document(documents, all - border, seed);
}

std::size_t character_border(std::string_view text, std::size_t at) {
  const auto inside = [&](std::size_t place) {
    return place < text.size() && (static_cast<unsigned char>(text[place]) & 0xC0) == 0x80;
  };
  while (at > 0 && inside(at))
    --at;
  return at;
}

}  // namespace sluice
