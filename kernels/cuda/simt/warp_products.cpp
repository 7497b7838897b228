#include "kernels/cuda/simt/warp_products.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace sluice::simt {

WarpProducts::Sums& WarpProducts::sums_of(const Product& product) {
  return *std::ranges::find(sums_, product.sums, &Sums::of_lanes);
}

void WarpProducts::start(Product product) {
  product.group = group_;
  const auto each = static_cast<std::size_t>(product.tiles) * 4;
  if (std::ranges::find(sums_, product.sums, &Sums::of_lanes) == sums_.end()) {
    Sums sums{product.sums, {}};
    for (float* lane : product.sums) {
      sums.values.insert(sums.values.end(), lane, lane + each);
      std::fill_n(lane, each, std::numeric_limits<float>::quiet_NaN());
    }
    sums_.push_back(std::move(sums));
  }
  products_.push_back(product);
}

void WarpProducts::run(Product& product) {
  if (product.done) return;
  product.done = true;
  Sums& sums = sums_of(product);
  if (!product.add) std::ranges::fill(sums.values, 0.0f);
  product.multiply(product, sums.values.data());
}

void WarpProducts::run() {
  for (Product& product : products_)
    run(product);
}

void WarpProducts::wait(unsigned pending) {
  const auto ended = [&](const Product& product) { return product.group + pending < group_; };
  for (Product& product : products_)
    if (ended(product)) run(product);
  std::erase_if(products_, ended);
  std::erase_if(sums_, [&](const Sums& sums) {
    if (std::ranges::find(products_, sums.of_lanes, &Product::sums) != products_.end())
      return false;
    const std::size_t each = sums.values.size() / sums.of_lanes.size();
    for (std::size_t lane = 0; lane < sums.of_lanes.size(); ++lane)
      std::copy_n(sums.values.begin() + static_cast<std::ptrdiff_t>(lane * each), each,
                  sums.of_lanes[lane]);
    return true;
  });
}

}  // namespace sluice::simt
