#include "tests/faults/trace.h"

#include <cstdlib>
#include <map>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/skip.h"

namespace sluice::test {

namespace {

/// `4</a/b>` and `"/a/b"`; what is given in relation to an open folder is put together.
std::vector<fs::path> paths_in(const std::string& line) {
  std::vector<fs::path> found;
  for (std::size_t i = line.find('('); i < line.size(); ++i) {
    if (line[i] == '<') {
      const std::size_t end = line.find('>', i);
      if (end == std::string::npos) break;
      if (line[i + 1] == '/') found.emplace_back(line.substr(i + 1, end - i - 1));
      i = end;
    } else if (line[i] == '"') {
      const std::size_t end = line.find('"', i + 1);
      if (end == std::string::npos) break;
      const std::string text = line.substr(i + 1, end - i - 1);
      if (!found.empty() && line.find("at(") < i && !text.starts_with("/"))
        found.back() /= text;
      else if (!text.empty())
        found.emplace_back(text);
      i = end;
    }
    if (line.compare(i, 3, ") =") == 0) break;
  }
  return found;
}

}  // namespace

Arguments tracing(const std::string& log, const std::string& names) {
  Arguments all;
  // LeakSanitizer cannot work in a process that is traced.
  if (const char* options = std::getenv("ASAN_OPTIONS"))
    all = {"/usr/bin/env", "ASAN_OPTIONS=" + std::string(options) + ":detect_leaks=0"};
  all.insert(all.end(),
             {"strace", "-DDD", "-f", "-qq", "-y", "-s", "96", "-o", log, "-e", "trace=" + names});
  return all;
}

bool have_strace() {
  static const bool works = [] {
    const auto tried =
        run_program("/usr/bin/env", {"strace", "-f", "-o", "/dev/null", "/bin/true"});
    return tried.exit_code == 0;
  }();
  if (!works) skip("strace cannot trace here");
  return works;
}

bool Call::reached(const fs::path& folder) const {
  for (const auto& path : paths)
    if (path == folder || path.string().starts_with(folder.string() + "/")) return true;
  return false;
}

std::vector<Call> parse_trace(const std::string& text) {
  std::vector<Call> calls;
  std::map<std::pair<int, std::string>, int> counted;
  std::map<int, std::size_t> open;  // of a thread, the call that another one's has interrupted
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    Call call;
    std::istringstream words(line);
    words >> call.thread;
    std::string rest;
    std::getline(words >> std::ws, rest);
    if (rest.starts_with("<... ")) {
      const std::size_t at = rest.find("resumed>");
      if (open.contains(call.thread) && at != std::string::npos)
        calls[open[call.thread]].line += rest.substr(at + 8);
      continue;
    }
    const std::size_t end = rest.find('(');
    if (end == std::string::npos || rest.starts_with("+++") || rest.starts_with("---")) continue;
    call.name = rest.substr(0, end);
    call.number = ++counted[{call.thread, call.name}];
    call.paths = paths_in(rest);
    call.line = rest;
    if (rest.find("<unfinished ...>") != std::string::npos) open[call.thread] = calls.size();
    calls.push_back(std::move(call));
  }
  return calls;
}

std::vector<Call> traced(const FaultRuns& runs, const std::string& output, const Arguments& names,
                         const Flags& changes) {
  std::string all;
  for (const auto& name : names)
    all += (all.empty() ? "" : ",") + name;
  const std::string log = runs.at(output + ".strace");
  const Ended ended = runs.run(output, {.flags = changes, .tracer = tracing(log, all)});
  INFO(ended.err);
  REQUIRE(ended.exit_code == 0);
  auto calls = parse_trace(read_file(log));
  std::erase_if(calls, [&](const Call& call) { return !call.reached(runs.path() / output); });
  REQUIRE(calls.size() > 20);
  return calls;
}

Arguments injecting(const std::string& name, const std::string& what) {
  Arguments all = tracing("/dev/null", name);
  all.insert(all.end(), {"-e", "inject=" + name + ":" + what});
  return all;
}

Arguments injecting(const Call& call, const std::string& what) {
  return injecting(call.name, what + ":when=" + std::to_string(call.number));
}

std::vector<Call> thinned(const std::vector<Call>& calls, std::size_t stride) {
  if (long_form()) return calls;
  std::vector<Call> some;
  // Beginning in the middle of the first group: the very first calls are those before training.
  for (std::size_t i = stride / 2; i < calls.size(); i += stride)
    some.push_back(calls[i]);
  return some;
}

std::string text_of(const Call& call) {
  std::string text = call.name + " " + std::to_string(call.number);
  for (const auto& path : call.paths)
    text += " " + path.filename().string();
  return text;
}

}  // namespace sluice::test
