#include "kernels/reduce.h"

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"

namespace sluice {

void launch_cpu(const Sum& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    using A = cpu::Accumulator<T>;
    const T* in = op.in.data<T>();
    T* out = op.out.data<T>();
    double sum = 0;
    for (std::int64_t i = 0; i < op.in.size(); ++i)
      sum += static_cast<double>(static_cast<A>(in[i]));
    sum *= op.scale;
    if (op.accumulate) sum += static_cast<double>(static_cast<A>(*out));
    cpu::store(*out, static_cast<A>(sum));
  });
}

}  // namespace sluice
