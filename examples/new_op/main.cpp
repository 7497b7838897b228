// Checks the op `swish`: its gradient against finite differences, and its CUDA kernels against
// those of the CPU where Sluice was built with a GPU, or with the emulated one.
#include <engine/gradcheck.h>
#include <kernels/base/error.h>

#include <cmath>
#include <cstdio>

#include "swish.h"

int main() {
  using namespace sluice;
  std::vector<double> values;
  for (int i = 0; i < 1003; ++i)
    values.push_back(std::sin(i) * 4);

  const DevicePtr cpu = make_cpu_device();
  const Tensor x = Tensor::from_host(cpu, {17, 59}, DType::f64, values);
  const std::string report =
      gradcheck([](const std::vector<Tensor>& in) { return mine::swish(in[0]); }, {x});
  std::printf("gradient: %s\n", report.empty() ? "agrees with finite differences" : report.c_str());

  double difference = 0;
  try {
    const DevicePtr gpu = make_cuda_device();
    const auto on = [&](const DevicePtr& device) {
      return mine::swish(Tensor::from_host(device, {1003}, DType::f32, values)).to_host();
    };
    const std::vector<double> here = on(cpu), there = on(gpu);
    for (std::size_t i = 0; i < here.size(); ++i)
      difference = std::max(difference, std::abs(here[i] - there[i]));
    std::printf("GPU: differs from the CPU by at most %.1e\n", difference);
  } catch (const Error& error) {
    std::printf("GPU: not compared: %s\n", error.what());
  }
  return report.empty() && difference < 1e-5 ? 0 : 1;
}
