#include "parallel/comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "parallel/comm/backend/host_backend.h"

namespace sluice {
namespace {

/// Message tags have 15 bits, what the MPI standard promises: two for the channel of an operation's
/// messages, nine for its sequence number and four for a hash of its signature.
constexpr int channels = 4, signature_channel = 3;  ///< of Phase::channel, the data have the others
constexpr std::uint64_t operations_under_way = 512;
/// All p2p operations share a tag, since they match in order. No signature has this hash.
constexpr int p2p_tag = Transport::tags - 1;

std::uint64_t hash_of(const Signature& s) {
  std::uint64_t mixed = static_cast<std::uint64_t>(s.count) * 64;
  for (const auto part :
       {static_cast<std::uint64_t>(s.kind), static_cast<std::uint64_t>(s.dtype),
        static_cast<std::uint64_t>(s.root + 1), static_cast<std::uint64_t>(s.any_order)})
    mixed = (mixed + part) * 0x9E3779B97F4A7C15ull;
  return mixed;
}

/// Returns the upper bits of the tags of an operation's data, a hash of its signature, so that
/// different operations rarely exchange data. Where they do, the signatures differ all the same.
int data_tag(const Signature& signature) {
  constexpr int bits = 4;
  static_assert((channels * operations_under_way) << bits == Transport::tags);
  return static_cast<int>((hash_of(signature) >> (64 - bits)) * operations_under_way) * channels;
}

std::uint64_t hash_with_label(const Signature& signature) {
  return hash_of(signature) + std::hash<std::string_view>()(signature.label_text());
}

std::string sentence_of(const std::exception_ptr& error) try {
  std::rethrow_exception(error);
} catch (const std::exception& known) {
  return known.what();
}

View as_view(std::span<std::byte> bytes) {
  return {bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.size())}};
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Backend> backend, std::shared_ptr<Transport> transport,
                           std::shared_ptr<Monitor> monitor, const Options& options)
    : backend_(std::move(backend)),
      transport_(std::move(transport)),
      monitor_(std::move(monitor)),
      options_(options),
      rank_(transport_->rank()),
      size_(transport_->size()) {
  if (options_.together) options_.together->push_back(this);
}

Communicator::Communicator(std::shared_ptr<Transport> transport, std::shared_ptr<Monitor> monitor,
                           const Options& options)
    : Communicator(make_host_backend(transport), transport, std::move(monitor), options) {}

Communicator::~Communicator() {
  if (options_.together) std::erase(*options_.together, this);
}

std::unique_ptr<Communicator> Communicator::planned(int size, int rank) {
  auto one = std::make_unique<Communicator>(make_idle_backend(), make_self_transport(), nullptr,
                                            Options{.name = "planned", .checked = false});
  one->size_ = size;
  one->rank_ = rank;
  return one;
}

/// A planned communicator moves nothing. It may stand for thousands of ranks, and a plan makes
/// thousands of calls.
std::vector<Part> Communicator::used(const std::vector<Part>& parts) const {
  return transport_->size() == size_ ? parts : std::vector<Part>();
}

Handle Communicator::start(CollectiveCall call, std::int64_t count, DType dtype,
                           const CallOptions& options) {
  const Monitor::Fault fault = monitor_ ? monitor_->before() : Monitor::Fault::none;
  if (fault == Monitor::Fault::mismatch) {
    const bool barrier = call.kind == Collective::barrier;
    if (barrier) dtype = DType::f32;  // a dtype that can be reduced
    call = {.kind = barrier ? Collective::all_reduce : Collective::barrier,
            .data = View(nullptr, dtype, {0})};
    count = 0;
  }
  if (fault == Monitor::Fault::count) {
    count = std::max<std::int64_t>(0, count - 1);
    call.data = View(call.data.address, call.data.dtype, {count});
    for (Part& part : call.parts)
      part = {.offset = 0, .count = std::min<std::int64_t>(part.count, 1)};
  }
  if (fault == Monitor::Fault::type && size_of(dtype) > 1) {
    dtype = dtype == DType::bf16 ? DType::f16 : DType::bf16;  // a dtype that is no wider
    call.data = View(call.data.address, dtype, {count});
  }
  const bool collective = call.kind != Collective::p2p;
  Signature signature{.sequence = sequence_,
                      .count = count,
                      .root = call.root,
                      .kind = call.kind,
                      .dtype = dtype,
                      .any_order = options.any_order};
  signature.set_label(options.label);
  const Handle operation(new Operation(*this, signature));
  if (fault == Monitor::Fault::skip) {
    operation->over_ = true;
    operation->work_ = make_idle_backend()->start(call, 0);
    return operation;
  }
  call.stream = options.stream;
  call.scratch = options.scratch;
  call.op = options.op;
  call.any_order = options.any_order;
  if (collective) wait_for_a_tag();
  const int first_tag = static_cast<int>(sequence_ % operations_under_way) * channels;
  if (collective) ++sequence_;
  if (monitor_) operation->number_ = monitor_->begin(options_.name, signature);
  try {
    if (options_.checked && collective && size_ > 1)
      operation->check_ = std::make_unique<SignatureCheck>(*transport_, options_.name, signature,
                                                           first_tag + signature_channel);
    operation->work_ =
        backend_->start(call, collective ? data_tag(signature) + first_tag : p2p_tag);
  } catch (const Error&) {
    operation->explain_failure();
    give_up_all(std::current_exception());
    throw;
  }
  open_.push_back(operation);
  return operation;
}

/// Waits until no operation under way has the tags of the next one.
void Communicator::wait_for_a_tag() {
  while (true) {
    const auto oldest = std::ranges::find_if(open_, [](const Handle& operation) {
      return !operation->over_ && operation->signature_.kind != Collective::p2p;
    });
    if (oldest == open_.end() || sequence_ - (*oldest)->signature_.sequence < operations_under_way)
      return;
    Handle(*oldest)->wait();
  }
}

void Communicator::progress() {
  try {
    if (!options_.together) return advance();
    for (Communicator* member : *options_.together)
      member->advance();
  } catch (...) {
    give_up_all(std::current_exception());
    throw;
  }
}

Progress Communicator::all_together() {
  return options_.together ? *options_.together : Progress{this};
}

void Communicator::finish() {
  for (const Communicator* member : all_together())
    for (const Handle& operation : std::deque<Handle>(member->open_))
      operation->wait();
}

void Communicator::give_up_all(const std::exception_ptr& why) {
  const Progress all = all_together();
  const bool stuck = std::ranges::any_of(all, [](const Communicator* member) {
    return member->one_at_a_time() && !std::ranges::all_of(member->open_, &Operation::over);
  });
  for (Communicator* member : all)
    member->give_up(why);
  if (stuck && monitor_) monitor_->gpu_is_stuck(sentence_of(why));
}

void Communicator::give_up(const std::exception_ptr& why) {
  failure_ = why;
  for (const Handle& operation : open_) {
    if (operation->over_) continue;
    operation->work_.reset();
    operation->check_.reset();
  }
  open_.clear();
}

void Communicator::advance() {
  // The order matters: a backend may hold back later operations until earlier ones have started.
  for (const Handle& operation : open_) {
    try {
      if (!operation->advance()) continue;
    } catch (const Error&) {
      operation->explain_failure();
      throw;
    }
    if (monitor_) monitor_->end(operation->number_);
    if (operation->work_->joinable()) agreed_.insert(hash_with_label(operation->signature_));
  }
  std::erase_if(open_, [](const Handle& operation) { return operation->over_; });
}

bool Communicator::has_agreed_on(const Signature& signature) const {
  return size_ <= SignatureCheck::most_direct && agreed_.contains(hash_with_label(signature));
}

void Communicator::time_out(const Operation& operation) {
  const std::string sentence = monitor_ ? monitor_->post_mortem() : std::string();
  try {
    fail(fmt::format("{}; rank {} waited {:g} s in {} of '{}' (--collective-timeout)",
                     sentence.empty() ? "some rank did not join in" : sentence, rank_,
                     options_.timeout, to_string(operation.signature()), options_.name));
  } catch (const Error&) {
    give_up_all(std::current_exception());
    throw;
  }
}

Handle Communicator::all_reduce(const View& data, const CallOptions& options) {
  return start({.kind = Collective::all_reduce, .data = data}, data.size(), data.dtype, options);
}

Handle Communicator::reduce(const View& data, int root, const CallOptions& options) {
  return start({.kind = Collective::reduce, .data = data, .root = root}, data.size(), data.dtype,
               options);
}

Handle Communicator::broadcast(const View& data, int root, const CallOptions& options) {
  return start({.kind = Collective::broadcast, .data = data, .root = root}, data.size(), data.dtype,
               options);
}

Handle Communicator::all_gather(const View& data, const std::vector<Part>& parts,
                                const CallOptions& options) {
  check(static_cast<int>(parts.size()) == size_, "all_gather needs a part for each rank");
  return start({.kind = Collective::all_gather, .data = data, .parts = used(parts)}, data.size(),
               data.dtype, options);
}

Handle Communicator::gather(const View& data, const View& all, int root,
                            const CallOptions& options) {
  check(rank_ != root || all.size() == data.size() * size_,
        "the root of a gather needs room for every rank's data");
  return start({.kind = Collective::gather, .data = data, .all = all, .root = root}, data.size(),
               data.dtype, options);
}

Handle Communicator::scatter(const View& all, const View& data, int root,
                             const CallOptions& options) {
  check(rank_ != root || all.size() == data.size() * size_,
        "the root of a scatter needs data for every rank");
  return start({.kind = Collective::scatter, .data = data, .all = all, .root = root}, data.size(),
               data.dtype, options);
}

Handle Communicator::reduce_scatter(const View& data, const std::vector<Part>& parts,
                                    const CallOptions& options) {
  check(static_cast<int>(parts.size()) == size_, "reduce_scatter needs a part for each rank");
  return start({.kind = Collective::reduce_scatter, .data = data, .parts = used(parts)},
               data.size(), data.dtype, options);
}

Handle Communicator::barrier(std::string_view label) {
  return start({.kind = Collective::barrier}, 0, DType::u8, {.label = label});
}

Handle Communicator::p2p(std::vector<Transfer> transfers, const CallOptions& options) {
  std::int64_t count = 0;
  for (const Transfer& transfer : transfers)
    count += transfer.data.size();
  const DType dtype = transfers.empty() ? DType::u8 : transfers.front().data.dtype;
  return start({.kind = Collective::p2p, .transfers = std::move(transfers)}, count, dtype, options);
}

std::unique_ptr<Communicator> Communicator::split(int colour, int key, const Options& options) {
  const std::uint64_t id = sequence_;
  struct Member {
    int colour, key, rank;
  };
  // The groups may have different names, so the label contains none of them.
  auto places = gather_values(Member{colour, key, rank_}, "split");
  std::erase_if(places, [&](const Member& place) { return place.colour != colour; });
  std::ranges::stable_sort(places, {}, &Member::key);
  if (colour < 0) return nullptr;
  std::vector<int> members;
  for (const Member& place : places)
    members.push_back(place.rank);
  return std::make_unique<Communicator>(
      std::shared_ptr<Transport>(transport_->subgroup(members, id)), monitor_, options);
}

void Communicator::exchange(std::span<std::byte> all, std::size_t each, std::string_view label) {
  if (backend_->name() == "none") {  // in a plan, every rank gives the same values
    const auto mine = all.subspan(each * static_cast<std::size_t>(rank_), each);
    for (int rank = 0; rank < size_; ++rank)
      if (rank != rank_)
        std::ranges::copy(mine, all.subspan(each * static_cast<std::size_t>(rank)).begin());
    return;
  }
  all_gather(as_view(all), equal_parts(static_cast<std::int64_t>(each), size_), {.label = label})
      ->wait();
}

std::string Communicator::share_text(const std::string& text, int root, std::string_view label) {
  if (backend_->name() == "none") return text;
  std::int64_t size = static_cast<std::int64_t>(text.size());
  broadcast(as_view(std::as_writable_bytes(std::span(&size, 1))), root, {.label = label})->wait();
  std::string shared(static_cast<std::size_t>(size), '\0');
  if (rank_ == root) shared = text;
  if (!shared.empty())
    broadcast(as_view(std::as_writable_bytes(std::span(shared))), root, {.label = label})->wait();
  return shared;
}

std::vector<std::string> Communicator::gather_texts(const std::string& mine,
                                                    std::string_view label) {
  const auto sizes = gather_values(mine.size(), label);
  std::string padded = mine;
  padded.resize(std::ranges::max(sizes));
  const auto all = gather_values(std::span<const char>(padded), label);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank)
    texts.emplace_back(all.data() + rank * padded.size(), sizes[rank]);
  return texts;
}

}  // namespace sluice
