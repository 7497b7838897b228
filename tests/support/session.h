#pragma once

namespace sluice::test {

/// Returns what a test program returns after Catch2's `result`: 0 if all is well; 1 if something
/// failed, no case ran, or a case that was not skipped made no assertion; 4, which CMakeLists.txt
/// tells ctest of, if every case was skipped.
int exit_code(int result);

/// What Catch2 2 and 3 list each alone.
template <class Asked>
bool lists_more(const Asked& asked) {
  if constexpr (requires { asked.listTestNamesOnly; }) {
    return asked.listTestNamesOnly;
  } else {
    return asked.listListeners;
  }
}

/// Does what the command line says. (Only a program's main has Catch2's Session.)
template <class Session>
int run(Session& session, int argc, char** argv) {
  const int wrong = session.applyCommandLine(argc, argv);
  if (wrong != 0) return wrong;
  const auto& asked = session.configData();
  const bool runs_none = asked.showHelp || asked.libIdentify || asked.listTests || asked.listTags ||
                         asked.listReporters || lists_more(asked);
  const int result = session.run();
  return runs_none ? result : exit_code(result);
}

}  // namespace sluice::test
