// Catch2's own main takes seconds to compile: it stands alone here.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
