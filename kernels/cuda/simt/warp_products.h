#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace sluice::simt {

/// The products of a warpgroup (wgmma) that one of its warps has under way. The warp computes its
/// own 16 rows. Until a wait for a product its accumulators are NaN in the lanes' registers.
class WarpProducts {
 public:
  /// A product reads both operands, also one in the lanes' registers, when it runs.
  struct Product {
    void (*multiply)(const Product& product, float* sums);  ///< sums: [lane][tile][4]
    std::array<float*, 32> sums;
    int tiles;
    bool described;                             ///< the left operand is in shared memory
    std::array<const std::uint32_t*, 32> left;  ///< otherwise, each lane's four registers of it
    std::uint64_t a;                            ///< its descriptor, if `described`
    std::uint64_t b;
    bool add;
    unsigned warp;  ///< of the warpgroup
    unsigned group;
    bool done = false;
  };

  /// Takes over the accumulators of a new product.
  void start(Product product);
  /// Runs all products that have been started, as the hardware may do at any time.
  void run();
  void end_group() { ++group_; }
  /// Runs all groups but the `pending` latest and gives their accumulators back.
  void wait(unsigned pending);

 private:
  struct Sums {
    std::array<float*, 32> of_lanes;
    std::vector<float> values;
  };
  Sums& sums_of(const Product& product);
  void run(Product& product);

  std::vector<Product> products_;
  std::vector<Sums> sums_;
  unsigned group_ = 0;
};

}  // namespace sluice::simt
