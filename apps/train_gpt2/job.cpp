#include "apps/train_gpt2/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "apps/cli/progress.h"
#include "apps/cli/run_program.h"
#include "apps/cli/same_program.h"
#include "apps/cli/shell_quote.h"
#include "apps/cli/stop_signal.h"
#include "engine/io/section_sums.h"
#include "engine/io/utf8.h"
#include "engine/process_state.h"
#include "kernels/cpu/parallel_for.h"
#include "parallel/flight_recorder/earlier_records.h"
#include "parallel/flight_recorder/last_words.h"
#include "parallel/flight_recorder/launcher_end.h"
#include "parallel/pipeline/schedule_text.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Returns how the ranks that were started divide the work.
Mesh mesh_of(const ParallelConfig& c, int size) {
  const std::int64_t part = c.pp * c.tp;  // the ranks of a replica
  const std::int64_t dp = c.dp.value_or(size % part == 0 ? size / part : 1);
  const std::int64_t wanted = dp * part;
  if (wanted == size)
    return {.dp = static_cast<int>(dp), .pp = static_cast<int>(c.pp), .tp = static_cast<int>(c.tp)};
  std::vector<std::string> flags;
  if (c.dp || part == 1) flags.push_back(fmt::format("--dp {}", dp));
  if (c.pp > 1) flags.push_back(fmt::format("--pp {}", c.pp));
  if (c.tp > 1) flags.push_back(fmt::format("--tp {}", c.tp));
  const std::string product = fmt::format("{}", fmt::join(flags, " x "));
  if (size == 1)
    fail(fmt::format("{} needs {} ranks, and this process was started alone: scripts/launch -n {} "
                     "train_gpt2 ... (or mpirun -n {})",
                     product, wanted, wanted, wanted),
         ErrorKind::usage);
  if (part > 1)
    fail(fmt::format("{} needs {} ranks{}, but {} were started; start {} (-n {})", product, wanted,
                     c.dp ? "" : ", or a multiple of them", size, wanted, wanted),
         ErrorKind::usage);
  fail(fmt::format("--dp {} needs {} ranks, but {} were started; give --dp {} or start {} (-n {})",
                   dp, dp, size, size, dp, dp),
       ErrorKind::usage);
}

/// Returns a resolved configuration without the options that ranks may set for themselves.
std::string without_own(const std::string& resolved) {
  constexpr std::array own{"data=",   "val-data=", "output=",     "threads=",    "trace=",
                           "config=", "inject=",   "rank-files=", "peak-tflops="};
  std::istringstream lines(resolved);
  std::string line, rest;
  while (std::getline(lines, line))
    if (std::ranges::none_of(own, [&](const char* name) { return line.starts_with(name); }))
      rest += line + '\n';
  return rest;
}

/// Returns the first lines that differ; two equal ones if none do.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a), lines_b(b);
  std::pair<std::string, std::string> lines;
  const auto next = [](std::istringstream& text) {
    std::string line;
    return std::getline(text, line) ? line : std::string("nothing more");
  };
  do
    lines = {next(lines_a), next(lines_b)};
  while (lines.first == lines.second && lines.first != "nothing more");
  return lines;
}

/// Returns how long ranks may take to start: --collective-timeout of the command line, which is
/// parsed only when they have. A faulty value is refused then.
double start_limit(const std::vector<std::string>& arguments) {
  const std::string flag = "--collective-timeout";
  double seconds = TrainConfig().parallel.collective_timeout;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string text;
    if (arguments[i].starts_with(flag + "="))
      text = arguments[i].substr(flag.size() + 1);
    else if (arguments[i] == flag && i + 1 < arguments.size())
      text = arguments[i + 1];
    if (const double given = std::strtod(text.c_str(), nullptr); given >= 1) seconds = given;
  }
  return std::min(seconds, 1e6);
}

std::string text_of(const Schedule& schedule) {
  const std::string text = to_csv(schedule);
  return fmt::format("{} stages x {} micro-batches, checksum {:08x}", schedule.stages,
                     schedule.micro_batches, crc32_of(std::as_bytes(std::span(text))));
}

/// mpirun of Open MPI 4 takes four seconds to end a job in which a rank has failed.
constexpr std::chrono::seconds launcher_patience(6);
/// The time that a rank waits before it ends without a report, since its end ends the job: another
/// rank reports meanwhile.
constexpr std::chrono::seconds time_to_report(3);

/// Removes the records that failed jobs have left in the memory of this host for a day or more. A
/// job that has run for so long keeps its own.
void remove_old_folders(const fs::path& parent, const std::string& prefix) {
  const auto day_ago = fs::file_time_type::clock::now() - std::chrono::hours(24);
  const auto gone = [](const RankRecord& r) { return r.process == ProcessState::gone; };
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;  // others' folders cannot be removed
    if (!entry->path().filename().string().starts_with(prefix) ||
        entry->last_write_time(ignored) >= day_ago || ignored)
      continue;
    const auto records = read_records(entry->path());
    if (!records.empty() && std::ranges::all_of(records, gone))
      fs::remove_all(entry->path(), ignored);
  }
}

/// Makes a folder for the records of this host's ranks, in its memory where there is room.
std::string new_folder(int ranks) {
  const std::string prefix = "sluice-ranks-";
  remove_old_folders("/dev/shm", prefix);
  const char* const named = std::getenv("TMPDIR");
  const std::array<std::string, 2> parents{"/dev/shm", named != nullptr ? named : "/tmp"};
  const auto needed = FlightRecorder::bytes * static_cast<std::size_t>(ranks);
  for (const std::string& parent : parents) {
    std::error_code error;
    std::string path = fmt::format("{}/{}XXXXXX", parent, prefix);
    if (fs::space(parent, error).available >= needed && !error && mkdtemp(path.data()) != nullptr)
      return path;
  }
  fail(fmt::format("no folder for the ranks' records can be made in {}; give --rank-files",
                   fmt::join(parents, " or ")));
}

}  // namespace

Job::Job(int argc, const char* const* argv)
    : world_(
          {.seconds = start_limit({argv, argv + argc}),
           .on_late = [](const std::string& sentence) { print_error("train_gpt2", sentence); }}) {
  set_speaking(rank() == 0);
  if (size() > 1) forget_terminal();
  if (!world_.note().empty()) say_note(world_.note());
}

void Job::choose_folder(const ParallelConfig& c, Communicator& local) {
  folder_is_ours_ = c.rank_files.empty();
  const bool first_here = local.rank() == 0;
  std::string mine = c.rank_files;
  if (folder_is_ours_ && first_here) mine = new_folder(local.size());
  folder_ = local.share_text(mine, 0, "rank files");
  if (folder_is_ours_) return;
  // Hosts may share the folder, so rank 0's sets records aside before the others do.
  const auto set_aside = [&] {
    const fs::path earlier = set_earlier_records_aside(folder_, restarted_by_slurm());
    if (!earlier.empty())
      say(fmt::format("{:<12} those of an earlier job are in {} now\n", "rank files",
                      earlier.string()));
    fs::create_directories(folder_);
  };
  if (rank() == 0) set_aside();
  control_->barrier("rank files")->wait();
  if (rank() != 0 && first_here) set_aside();
  control_->barrier("rank files")->wait();
}

std::vector<RankPlace> Job::places(Communicator& local) {
  const int first = local.gather_values(rank(), "ranks").front();
  const auto firsts = control_->gather_values(first, "hosts");
  const auto hosts = control_->gather_texts(this_process().host, "hosts");
  std::vector<RankPlace> places;
  for (std::size_t i = 0; i < firsts.size(); ++i)
    places.push_back({.first = firsts[i], .host = hosts[i]});
  return places;
}

void Job::end_launcher_if_needed() {
  if (!records_->several_hosts()) return;
  end_launcher_after(launcher_patience);
  // MPI_Abort may wait for a launcher that the network no longer reaches.
  std::thread([] {
    std::this_thread::sleep_for(launcher_patience);
    std::_Exit(1);
  }).detach();
}

void Job::start(MachineConfig& machine, ParallelConfig& c) {
  const Injection injection = parse_injection(c.inject);
  mesh_ = mesh_of(c, size());
  c.dp = mesh_.dp;
  communication_ = {.timeout = c.collective_timeout,
                    .checked = c.checked,
                    .together = std::make_shared<Progress>()};
  gpu_exchange_ = c.communication;
  // Signature checks stay on for now: --checked is itself an option in which ranks could differ.
  control_ = world_.communicator(
      nullptr, {.timeout = c.collective_timeout, .together = communication_.together});
  int threads = static_cast<int>(machine.threads);
  if (size() > 1) {
    require_same_program(*control_);
    Communicator local(world_.local(), nullptr,
                       {.name = "this host", .timeout = c.collective_timeout});
    gpu_ = take_gpu(local);
    if (threads == 0) threads = world_.cores();
    choose_folder(c, local);
    const auto say_error = [](const std::string& sentence) {
      fmt::print(stderr, "train_gpt2: error: {}\n", printable_line(sentence));
    };
    records_ = std::make_shared<RecordExchange>(world_.mailbox(), folder_, rank(), places(local));
    const RankMonitor::Reactions reactions{
        .on_failure =
            [this, say_error](const std::string& sentence, bool seen_here) {
              end_launcher_if_needed();
              const bool first = speak_first(folder_, sentence);
              // Ranks that do not report let the one that does have its turn.
              const bool turn = (first && seen_here) || records_->await_turn();
              if (first && turn) {
                say_error(sentence);
                records_->tell_reported();
              } else {
                std::this_thread::sleep_for(time_to_report);
              }
              MpiProcess::abort(1);
            },
        .on_stuck =
            [this, say_error](std::string sentence) {
              if (may_report(sentence, 1)) say_error(sentence);
              MpiProcess::abort(1);
            },
        .on_delay = [](const std::string& sentence) { say_warning(sentence); },
        .ending =
            [] {
              const char* const signal = StopSignal::received();
              return signal != nullptr && std::string_view(signal) == "SIGTERM";
            },
        .on_lost_elsewhere =
            [this, say_error](const std::string& sentence) {
              if (records_->reported_elsewhere() || !speak_first(folder_, sentence)) return;
              say_error(sentence);
              records_->tell_reported();
            }};
    monitor_ = std::make_shared<RankMonitor>(records_, injection, reactions);
    control_->set_monitor(monitor_);
  }
  cpu::set_threads(threads);
}

GpuLinks Job::connect(const DevicePtr& device, const PipelinePlan* pipeline) {
  on_gpu_ = device->device().kind == DeviceKind::cuda;
  require_equal("kind of device", on_gpu_ ? "cuda" : "cpu");
  if (pipeline != nullptr)
    require_equal("pipeline schedule (--pipeline)", text_of(pipeline->schedule));
  GpuLinks links;
  if (on_gpu_ && monitor_) monitor_->set_gpu(gpu_.uuid);
  if (!on_gpu_) return links;
  std::string reason;
  const auto connect = [&](const Group& group) {
    const auto& members = group.members;
    if (group.largest > 0 && members.size() > 1 && !links.by_members.contains(members)) {
      const auto id = static_cast<std::uint64_t>(GroupId::connect);
      const DeviceLink link = connect_devices(world_.transport()->subgroup(members, id), device,
                                              gpu_exchange_, communication_.timeout);
      if (links.by_members.empty()) {
        exchange_ = link.nccl != nullptr ? "nccl" : "staged";
        reason = link.reason;
      }
      links.by_members.emplace(members, link);
    }
    const auto place = std::ranges::find(members, rank());
    return Communicator::planned(static_cast<int>(members.size()),
                                 static_cast<int>(place - members.begin()));
  };
  const std::size_t free = device->runtime().info().free_memory;
  const Ranks planned =
      make_ranks(control_, mesh_, on_gpu_, {.data = 1, .stages = 1, .tensor = 1}, connect);
  if (pipeline != nullptr) PipelineLinks(*pipeline, planned.stage(), planned.group);
  // Ranks that share a GPU without NCCL see each other's memory here, so it counts only with NCCL.
  const std::size_t left = device->runtime().info().free_memory;
  control_->barrier("GPUs")->wait();
  const bool direct = std::ranges::any_of(
      links.by_members, [](const auto& each) { return each.second.nccl != nullptr; });
  links.bytes = direct && free > left ? free - left : 0;
  if (reason.empty()) return links;
  if (links.bytes > 0) reason += fmt::format("; {} of GPU memory", format_bytes(links.bytes));
  say(fmt::format("{:<12} {}\n", "exchange", reason));
  return links;
}

/// Makes a communicator with its own messages, since every communicator counts operations from 0.
std::shared_ptr<Communicator> Job::group(const Group& group, const DevicePtr& device,
                                         const GpuLinks& links) {
  if (group.members.size() == 1) return Communicator::planned(1, 0);
  const std::shared_ptr<Transport> transport =
      world_.transport()->subgroup(group.members, group.id);
  Communicator::Options options = communication_;
  options.name = group.name;
  if (group.largest == 0 || device->device().kind != DeviceKind::cuda)
    return std::make_shared<Communicator>(transport, monitor_, options);
  auto backend =
      make_device_backend(links.by_members.at(group.members), transport, device, group.largest);
  return std::make_shared<Communicator>(std::move(backend), transport, monitor_, options);
}

Ranks Job::ranks_on(const DevicePtr& device, GpuLinks links, const Exchanges& exchanges) {
  return make_ranks(control_, mesh_, device->device().kind == DeviceKind::cuda, exchanges,
                    [this, device, links = std::move(links)](const Group& members) {
                      return group(members, device, links);
                    });
}

std::string Job::place() const {
  return place_of(*control_) + (on_gpu_ && !gpu_.uuid.empty() ? ", " + gpu_.uuid : "");
}

void Job::require_equal(const std::vector<Fact>& facts) {
  sluice::require_equal(*control_, facts);
}

void Job::require_equal(std::string_view what, const std::string& mine) {
  sluice::require_equal(*control_, what, mine);
}

void Job::require_equal_options(const std::string& resolved) {
  if (size() == 1) return;
  const std::string mine = without_own(resolved);
  if (!all_equal(*control_, std::as_bytes(std::span(mine)), "options")) {
    const std::string first = control_->share_text(place(), 0, "options");
    const auto [here, there] = first_difference(mine, control_->share_text(mine, 0, "options"));
    refuse_together(*control_,
                    here == there ? ""
                                  : fmt::format("{} was started with other options than {}: {} and "
                                                "{}",
                                                place(), first, here, there),
                    "options");
  }
  control_->set_checked(communication_.checked);
}

void Job::note(std::string_view text) {
  if (monitor_) monitor_->note(text);
}

void Job::finish() {
  if (size() == 1) return;
  control_->barrier("end")->wait();
  monitor_->finish();
  // Watchdogs of other ranks read the records until all ranks have come here.
  control_->barrier("records")->wait();
  std::error_code ignored;
  if (folder_is_ours_ && world_.local_rank() == 0) fs::remove_all(folder_, ignored);
}

bool Job::may_report(std::string& message, int exit_code) {
  if (size() == 1) return true;
  world_.leave(exit_code);
  const bool usage = exit_code == 2;
  std::error_code ignored;
  // If all ranks fail alike, the first to report ends the job, and with it the other ranks.
  if (!monitor_) {
    if (folder_is_ours_ && world_.local_rank() == 0) fs::remove_all(folder_, ignored);
    if (rank() != 0) std::this_thread::sleep_for(time_to_report);
    return true;
  }
  monitor_->fail(message);
  end_launcher_if_needed();
  if (!usage && message.find("rank ") == std::string::npos)
    message =
        fmt::format("{}, {}: {}",
                    on_gpu_ || records_->several_hosts() ? place() : fmt::format("rank {}", rank()),
                    monitor_->whereabouts(), message);
  const bool first = speak_first(folder_, message);
  // Ranks of several hosts often fail alike, as on a disk that they share.
  const bool report = records_->await_turn() && first;
  if (report) records_->tell_reported();
  const fs::path gone = folder_.string() + ".gone";
  if (folder_is_ours_ && first && usage)  // the records would tell nothing
    fs::rename(folder_, gone, ignored);   // atomic, so that no other rank speaks
  else if (folder_is_ours_ && report)
    message += fmt::format(" (post_mortem {})", quoted(folder_.string()));
  // speak_first() may have left a file there after the rank that renamed the folder has removed it.
  if (folder_is_ours_ && (usage || !first)) fs::remove_all(gone, ignored);
  if (!report) std::this_thread::sleep_for(time_to_report);
  return report;
}

}  // namespace sluice
