#pragma once

// Catch2 of both kinds that systems have: 2, one header, and 3, many. Sources of tests include this
// one and say Approx, Contains, StartsWith and EndsWith without more. CATCH_CONFIG_RUNNER before it
// brings Catch::Session too, CATCH_CONFIG_EXTERNAL_INTERFACES what listeners need, as version 2 has
// them.

#include <string>

#if __has_include(<catch2/catch_test_macros.hpp>)

#include <catch2/catch_approx.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <catch2/matchers/catch_matchers_vector.hpp>
#ifdef CATCH_CONFIG_RUNNER
#include <catch2/catch_session.hpp>
#endif
#ifdef CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch_test_case_info.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#endif

namespace sluice::test {
using Catch::Approx;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
inline auto Contains(const std::string& part) {
  return Catch::Matchers::ContainsSubstring(part);
}
}  // namespace sluice::test

#else

#include <catch2/catch.hpp>

#ifdef CATCH_CONFIG_RUNNER
namespace Catch {
namespace Clara = clara;
}
#endif
#ifdef CATCH_CONFIG_EXTERNAL_INTERFACES
namespace Catch {
using EventListenerBase = TestEventListenerBase;
}
#endif

namespace sluice::test {
using Catch::Detail::Approx;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
}  // namespace sluice::test

#endif
