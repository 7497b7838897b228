// The collectives' battery under MPI: mpirun -n 4 mpi_collectives. Exits with 1 and a message at
// the first difference.
#include <cstdio>
#include <exception>
#include <memory>

#include "parallel/comm/transport/mpi_transport.h"
#include "tests/parallel/battery.h"
#include "tests/parallel/ranks.h"
#include "tests/support/form.h"

namespace {

using namespace sluice;
using namespace sluice::test;

void check_on(Communicator& c) {
  for (const std::size_t count : {0U, 1U, 65U, 4095U, 4096U, 16383U, 100003U}) {
    Battery<float>::all(c, count);
    Battery<BFloat16>::all(c, count);
  }
  for (const std::size_t count : {1U, 1000U, 16383U}) {
    Battery<double>::all(c, count);
    Battery<Half>::all(c, count);
    Battery<std::int32_t>::all(c, count);
  }
  check_cuts(c, 100003);
  check_message_order(c);
  check_split(c);
  check_values(c);
  c.barrier("between")->wait();
}

void run(bool launched_as_many) {
  MpiProcess process;
  const std::shared_ptr<Transport> world = process.world();
  expect(process.local_rank() < process.local_size(), "the place among this computer's ranks");
  if (launched_as_many) expect(launched_rank() >= 0, "mpirun was not noticed");
  const bool many = world->size() > 1;
  expect(many == launched_as_many, "mpirun started another number of ranks");
  Communicator c(world, nullptr, patient());
  expect(c.backend() == "mpi", "the name of the backend");
  check_on(c);

  auto unchecked_options = patient();
  unchecked_options.checked = false;
  auto unchecked = c.split(0, -c.rank(), unchecked_options);  // with the ranks reversed
  Battery<float>::all(*unchecked, 4097);
  check_message_order(*unchecked);

  // Large messages, which MPI does not buffer.
  const std::size_t large = std::size_t{by_form(1U, 12U)} << 18;
  Battery<float>::all_reduce(c, large);
  Battery<float>::all_gather(c, large);
  Battery<float>::ring_shift(c, large);
  Battery<float>::all_exchange(c, large);
  check_cuts(c, large);
  if (c.rank() == 0) std::printf("all collectives agree on %d ranks\n", c.size());
  c.barrier("end")->wait();
}

}  // namespace

int main(int argc, char**) {
  try {
    run(argc < 2);  // any argument: started as one rank
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_collectives: %s\n", error.what());
    return 1;
  }
}
