#include "apps/trace/rank_spans.h"

#include <algorithm>
#include <type_traits>

namespace sluice {
namespace {

static_assert(std::is_trivially_copyable_v<RankSpan> && sizeof(RankSpan) % sizeof(double) == 0);

double milliseconds(Timeline::Clock::time_point time) {
  return std::chrono::duration<double, std::milli>(time.time_since_epoch()).count();
}

View bytes_of(std::vector<RankSpan>& spans) {
  return {reinterpret_cast<std::byte*>(spans.data()),
          DType::u8,
          {static_cast<std::int64_t>(spans.size() * sizeof(RankSpan))}};
}

}  // namespace

RankSpan::RankSpan(std::string_view name, int of_rank, double begin, double duration,
                   Timeline::Label label, Timeline::Lane in)
    : rank(of_rank),
      lane(static_cast<std::int32_t>(in)),
      stage(label.stage),
      micro_batch(label.micro_batch),
      start(begin),
      length(duration) {
  std::ranges::copy(name.substr(0, text.size() - 1), text.begin());
}

RankSpans::RankSpans(Communicator& all, bool one_computer, Timeline::Clock::time_point started)
    : all_(all) {
  double behind = 0;  // milliseconds that rank 0's clock is ahead
  if (!one_computer) {
    all.barrier("clocks")->wait();
    const double here = milliseconds(Timeline::Clock::now());
    behind = all.gather_values(here, "clocks")[0] - here;
  }
  const double here = milliseconds(started) + behind;
  offset_ = here - all.gather_values(here, "timelines")[0];
}

std::vector<RankSpan> RankSpans::gather(std::span<const Timeline::Span> mine) {
  std::vector<RankSpan> here;
  for (const Timeline::Span& span : mine)
    here.emplace_back(span.name, all_.rank(), offset_ + span.start, span.length, span.label,
                      span.lane);
  if (all_.size() == 1) return here;
  const auto counts = all_.gather_values(here.size(), "spans");
  const std::size_t most = std::ranges::max(counts);
  if (most == 0) return {};
  here.resize(most);
  const bool first = all_.rank() == 0;
  std::vector<RankSpan> padded(first ? counts.size() * most : 0), together;
  all_.gather(bytes_of(here), first ? bytes_of(padded) : View{}, 0, {.label = "spans"})->wait();
  if (!first) return {};
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const auto begin = padded.begin() + static_cast<std::ptrdiff_t>(rank * most);
    together.insert(together.end(), begin, begin + static_cast<std::ptrdiff_t>(counts[rank]));
  }
  return together;
}

}  // namespace sluice
